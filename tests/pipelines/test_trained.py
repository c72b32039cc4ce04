"""The model that the nodes of sampling and of evaluation load, and the table that the node of `sanity` logs."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from mm_ldlm.inference import MMLDLM, loading
from mm_ldlm.pipelines import trained
from mm_ldlm.pipelines.evaluation import nodes as evaluation_nodes
from mm_ldlm.pipelines.sampling import nodes as sampling_nodes
from mm_ldlm.pipelines.sanity import nodes as sanity_nodes
from mm_ldlm.training.checkpoints.reference import weights_folder

CHOSEN = {"checkpoint": "best", "use_ema": False, "device": "cpu", "batch_tokens": 777}
USUAL = {"checkpoint": "latest", "use_ema": True, "device": None, "batch_tokens": None}
SAMPLERS = {"text": {"kind": "confidence"}, "latent": {"kind": "ddim"}}
DATASET: Any = SimpleNamespace(fingerprints={"tokenizer": "t"})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    model = SimpleNamespace(parts="the parts")
    monkeypatch.setattr(MMLDLM, "from_run", lambda *given, **how: found.append((given, how)) or model)
    monkeypatch.setattr(loading, "refuse_other_data", lambda *given: found.append(given))
    return found


def test_the_model_of_a_run_is_loaded_as_the_section_says_and_compared_with_the_data(
    asked: list[Any], tmp_path: Path
) -> None:
    run = {"name": "run-1"}
    for values in (CHOSEN, USUAL):
        asked.clear()
        model: Any = trained.load_trained(run, tmp_path, DATASET, SimpleNamespace(**values))
        assert model.parts == "the parts"
        assert asked == [((weights_folder(tmp_path, run),), values), ("the parts", {"tokenizer": "t"})]


@pytest.mark.parametrize(
    ("nodes", "more"), [(sampling_nodes, {**SAMPLERS, "unconditional": SAMPLERS}), (evaluation_nodes, {})]
)
def test_both_pipelines_load_the_model_by_their_own_section(
    nodes: Any, more: dict[str, Any], asked: list[Any], tmp_path: Path
) -> None:
    for given, values in ((CHOSEN, CHOSEN), ({}, USUAL)):
        asked.clear()
        nodes.load_model({"name": "run-1"}, tmp_path, DATASET, {**more, **given})
        assert asked[0][1] == values
        assert len(asked) == 2


def test_the_log_shows_the_checks_of_a_configuration_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mm_ldlm.training import plan, sanity
    from mm_ldlm.training.preflight import Check

    caplog.set_level("INFO", logger="mm_ldlm")
    checks = [Check("one", "fine"), Check("two", "less", "get more")]
    monkeypatch.setattr(plan, "plan", lambda *given, **named: "the spec")
    monkeypatch.setattr(sanity, "check_sanity", lambda spec, **named: checks if spec == "the spec" else [])
    monkeypatch.setattr(sanity, "as_table", lambda found: f"a table of {len(found)}")
    report = sanity_nodes.check_configuration(DATASET, tmp_path, {}, {}, {}, {}, 0, {})
    assert caplog.messages == ["sanity checks of this configuration:\na table of 2"]
    assert report == [
        {"name": "one", "found": "fine", "remedy": checks[0].remedy},
        {"name": "two", "found": "less", "remedy": "get more"},
    ]


SUITES = ("inversion", "sts", "likelihood", "latents", "generation", "classification", "images")


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_signs_its_metrics_and_its_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that read no samples, and those that are skipped."""
    from mm_ldlm.data import sentences
    from mm_ldlm.evaluation import suites
    from mm_ldlm.training.checkpoints import provenance

    weights = {"run": "r", "checkpoint": "c", "digest": "d", "weights": "last"}
    monkeypatch.setattr(provenance, "weights_of", lambda checkpoint, *, use_ema: weights if not use_ema else {})
    monkeypatch.setattr(sentences, "held_out", lambda *given, **how: None)
    module = importlib.import_module(f"{suites.__name__}.{name}")
    rows = pd.DataFrame({"id": ["a"]})
    made: dict[str, Any] = {"a number": 1.5}
    monkeypatch.setattr(
        module, "evaluate", lambda *_, **__: (rows, made) if name == "likelihood" else made, raising=False
    )
    monkeypatch.setattr(module, "skip_reason", lambda *_: "not today", raising=False)
    model = SimpleNamespace(
        parts=SimpleNamespace(checkpoint="c"), capabilities=SimpleNamespace(refusal=lambda use: "not today")
    )
    table = pd.DataFrame()
    table.attrs = {provenance.MADE_BY: {**weights, "seed": 9}}
    node = getattr(evaluation_nodes, f"evaluate_{name}")
    given = {key: table if key.startswith("samples_") else "data" for key in inspect.signature(node).parameters}
    found = node(**{**given, "model": model, "evaluation": {"use_ema": False}, "seed": 7})
    metrics = found[1] if isinstance(found, tuple) else found
    about = metrics.pop(provenance.MADE_BY)
    assert metrics in ({"a number": 1.5}, {"skipped": "not today"})
    assert {key: about[key] for key in weights} == weights
    assert (about["seed"], about["parameters"]["use_ema"]) == (7, False)
    read = {key: table.attrs[provenance.MADE_BY] for key in given if key.startswith("samples_")}
    assert about.get("samples", {}) == read
    if isinstance(found, tuple):
        assert found[0].attrs == {provenance.MADE_BY: about}
