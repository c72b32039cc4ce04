"""Runs as MLflow models: the same answers as `MMLDLM`, refusals of the client, and the best of the registry."""

import re
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from tests.inference.runs import LATENTS, write_run

from mm_ldlm import MMLDLM
from mm_ldlm.evaluation.compare import Result, keep
from mm_ldlm.evaluation.suites.inversion import BLEU_COLUMNS
from mm_ldlm.extras.mlflow.client import MlflowRun
from mm_ldlm.extras.mlflow.model import save_model
from mm_ldlm.extras.mlflow.registry import ALIAS, is_better, register
from mm_ldlm.inference.exporting import source_of

TEXTS = ["w1 w2 w3", "w4 w5"]
VECTORS = {"vector": LATENTS.tolist()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    save_model(source_of(write_run(place / "run-1"), place / "new"), place)
    return place


@pytest.fixture(scope="module")
def served(folder: Path) -> Any:
    return mlflow.pyfunc.load_model(str(folder / "model"))


@pytest.mark.parametrize(
    ("request_", "table", "params", "options"),
    [
        ("embed", {"text": TEXTS}, {"steps": 2, "seed": 3}, {"texts": TEXTS, "steps": 2, "seed": 3}),
        ("invert", VECTORS, {"length": "4"}, {"targets": LATENTS, "length": 4}),
        ("invert", VECTORS, {"temperature": 0.5, "samples": 2}, {"targets": LATENTS, "temperature": 0.5, "samples": 2}),
        ("infill", {"text": ["w1 [MASK] w3"]}, {}, {"texts": ["w1 [MASK] w3"]}),
        ("generate", {"text": [None]}, {"n": 3, "seed": 2}, {"n": 3, "seed": 2}),
        ("score", {"text": TEXTS}, {"draws": 4}, {"texts": TEXTS, "draws": 4}),
        ("score", {"text": TEXTS, "vector": VECTORS["vector"][:2]}, {}, {"texts": TEXTS, "latents": LATENTS[:2]}),
    ],
)
def test_a_served_request_has_the_answer_of_the_run(
    request_: str, table: dict[str, Any], params: dict[str, Any], options: dict[str, Any], folder: Path, served: Any
) -> None:
    found = served.predict(pd.DataFrame(table), params={"request": request_, **params})
    expected = getattr(MMLDLM.from_run(folder / "run-1", device="cpu"), request_)(**options).to_frame()
    assert list(found) == list(expected)
    for name in found:
        values, others = found[name].tolist(), expected[name].tolist()
        if name in ("text", "source"):
            assert values == others
        else:
            np.testing.assert_allclose(np.array(values, float), np.array(others, float), rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "params", "named"),
    [
        ({"text": TEXTS}, {"request": "scor"}, "'score'"),
        ({"text": TEXTS}, {"request": "score", "n": 3}, "n"),
        ({"text": TEXTS}, {"request": "generate", "n": 3}, "text"),
        ({"text": [None]}, {"request": "score"}, "texts in the column text"),
        ({"text": [None]}, {"request": "generate"}, "the parameter n"),
        ({"text": TEXTS}, {"request": "embed", "steps": 0}, "steps"),
        ({"text": TEXTS}, {"request": "invert", "sampler": "antigravity:X"}, "import paths are refused"),
    ],
)
def test_a_wrong_request_is_an_error_of_the_client(
    table: dict[str, Any], params: dict[str, Any], named: str, served: Any
) -> None:
    with pytest.raises(MlflowException, match=named) as raised:
        served.predict(pd.DataFrame(table), params=params)
    assert raised.value.get_http_status_code() == 400


def test_a_model_has_pinned_requirements_and_no_pickle(folder: Path, served: Any) -> None:
    files = [file.relative_to(folder / "model").as_posix() for file in (folder / "model").rglob("*") if file.is_file()]
    assert not [name for name in files if name.endswith((".pkl", ".pt", ".bin"))]
    lines = (folder / "model" / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert {"mm-ldlm", "torch", "transformers"} <= {line.partition("=")[0] for line in lines}
    assert {"text", "vector"} == {*served.metadata.signature.inputs.input_names()}
    assert served.predict(served.input_example).columns.size  # the example is answered without a parameter


# --- the registry -----------------------------------------------------------------------------------------------------


def result(cost: float, *, count: int = 60, seed: int = 0) -> Result:
    nll = 5 * cost + np.random.default_rng(seed).normal(0, 0.1, count)
    rows = pd.DataFrame({"id": [f"s{i}" for i in range(count)], "tokens": 5, "nll": nll})
    return Result("run", {"nll.per_token": cost, "nll.exact": 1.0}, {"likelihood": rows})


def inverted(exact: float, count: int = 60) -> pd.DataFrame:
    right = np.arange(count) < exact * count
    rows = {"id": [f"s{i}" for i in range(count)], "exact": right, "matches": 1 + right, "positions": 3}
    return pd.DataFrame({**rows, **dict.fromkeys(BLEU_COLUMNS, 3)})


def test_one_run_is_better_only_if_no_significant_difference_is_against_it() -> None:
    low, high = result(1.5), result(2.0)
    assert is_better(high, low)[0]
    assert not is_better(low, high)[0]
    assert not is_better(low, low)[0]
    assert not is_better(result(2.0, count=5), result(1.5, count=5))[0]
    mixed = [
        Result("run", each.metrics, {**each.rows, "inversion": inverted(exact)})
        for each, exact in ((low, 0.2), (high, 0.8))
    ]
    assert not is_better(*mixed)[0]
    assert not is_better(*reversed(mixed))[0]


def test_the_alias_moves_to_the_better_evaluation(tmp_path: Path) -> None:
    owners = []
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "MLmodel").write_text("flavors: {}\n")
    for number, cost in enumerate([2.0, 2.0, 2.5, 1.5]):
        run = MlflowRun(f"sqlite:///{tmp_path}/mlflow.db", "")
        run.create(experiment="e", name="n", parameters={}, parent="above")
        keep(result(cost), tmp_path / str(number))
        run.add_folder(tmp_path / str(number) / "evaluation", "evaluation")
        run.add_model(
            tmp_path / "model",
            "run",
            1,
            register=lambda *given, cost=cost: register(*given, name="m", ours=result(cost)),
        )
        owners.append(int(run.client.get_model_version_by_alias("m", ALIAS).version))
    assert owners == [1, 1, 1, 4]
    assert run.client.get_run(run.run_id).data.tags["mlflow.parentRunId"] == "above"
    assert len(run.client.search_model_versions("name='m'")) == 4
