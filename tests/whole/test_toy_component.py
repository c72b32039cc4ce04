"""A model, an objective and a sampler from another package run through `kedro run` (tests/toy)."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

TOY = Path(__file__).parents[1] / "toy"
PARAMETERS = """
model: {kind: "toy_component:ToyModelConfig"}
objective: {kind: "toy_component:ToyObjectiveConfig"}
training: {checkpoint: {keep_last: 2}}
sampling:
  text: {kind: "toy_component:ToySampler"}
  unconditional:
    count: 8
    text: {kind: "toy_component:ToySampler"}
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(run_kedro: Callable[..., Any], finished: Path) -> Path:
    """The data of `kedro run --env=test+toy`, with tests/toy on Python's path; what does not depend on the model is
    there already.
    """
    environment = finished / "conf" / "toy"
    environment.mkdir()
    (environment / "globals.yml").write_text("results: /toy\n")
    (environment / "parameters.yml").write_text(PARAMETERS)
    path = os.pathsep.join([str(TOY), str(TOY.parents[1] / "src")])
    run_kedro("run", "--env=test+toy", "--only-missing-outputs", PYTHONPATH=path)
    return finished / "data" / "test" / "toy"


@pytest.fixture
def run_folder(results: Path) -> Path:
    (folder,) = (results / "06_models" / "runs").glob("run-*")
    return folder


def weights(folder: Path, step: int, name: str = "model") -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_package_has_no_line_about_it() -> None:
    sources = (TOY.parents[1] / "src").rglob("*.py")
    assert not [path for path in sources if "toy_component" in path.read_text(encoding="utf-8")]


def test_it_is_trained_with_what_its_objective_learns(run_folder: Path) -> None:
    assert read(run_folder / "config.json")["model"]["kind"] == "toy_component:ToyModelConfig"
    assert read(run_folder / "status.json")["status"] == "finished"
    for name in ("model", "ema"):
        found = weights(run_folder, 12, name)
        assert set(found) == {"model.logits_V", "objective.length_logits_N"}
        assert all(float(value.abs().max()) > 1e-3 for value in found.values())


def test_a_resumed_run_ends_at_the_same_weights(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOY)
    monkeypatch.setenv("PYTHONPATH", str(TOY))
    from mm_ldlm.training.session import run_session

    document = {key: value for key, value in read(run_folder / "config.json").items() if key != "versions"}
    document["training"] |= {"run_name": "resumed", "resume": f"{run_folder.name}/checkpoints/step-00000006"}
    run_session(document, run_folder.parent)
    resumed = run_folder.parent / "resumed"
    assert not (resumed / "checkpoints" / "step-00000006").exists()
    for name in ("model", "ema", "optimizer"):
        straight, again = weights(run_folder, 12, name), weights(resumed, 12, name)
        assert set(straight) == set(again)
        assert all(torch.equal(straight[key], again[key]) for key in straight)


def test_it_is_sampled(results: Path) -> None:
    samples = pd.read_parquet(results / "07_model_output" / "samples_unconditional.parquet")
    assert len(samples) == 8
    assert samples["text"].str.len().gt(0).all()


def test_it_is_scored_exactly(results: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOY)
    from mm_ldlm import MMLDLM

    model = MMLDLM.from_run(run_folder, device="cpu")
    text = pd.read_parquet(results / "07_model_output" / "samples_unconditional.parquet")["text"][0]
    scores = model.score([text])
    found = weights(run_folder, 12, "ema")
    ids = torch.tensor(model.tokenizer.encode([text])[0])
    special = [model.shape.pad_id, model.shape.mask_id]
    log_p = found["model.logits_V"].index_fill(0, torch.tensor(special), -torch.inf).log_softmax(0)
    length_log_p = found["objective.length_logits_N"].log_softmax(0)
    assert scores.likelihood == "exact"
    assert scores.token_nll[0] == pytest.approx(-float(log_p[ids].sum()), rel=1e-5)
    assert scores.length_nll[0] == pytest.approx(-float(length_log_p[len(ids) - 1]), rel=1e-5)
    assert read(results / "08_reporting" / "metrics_likelihood.json")["likelihood"] == "exact"


def test_what_it_cannot_do_is_skipped_with_a_reason(results: Path) -> None:
    for suite in ("inversion", "sts", "latents"):
        reason = read(results / "08_reporting" / f"metrics_{suite}.json")["skipped"]
        assert "it was trained with the toy objective" in reason


def test_it_is_reported(results: Path) -> None:
    metrics = read(results / "08_reporting" / "metrics_likelihood.json")
    page = (results / "08_reporting" / "report.html").read_text(encoding="utf-8")
    assert f"{metrics['unconditional']['per_token']['value']:.2f}" in page
