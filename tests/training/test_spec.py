"""The spec of a run: its name follows what determines its result, and every field comes back from its file."""

from __future__ import annotations

import dataclasses
from typing import Any

import helpers

from mm_ldlm.core.config import parse, parse_kind, to_dict
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.spec import _FREE, TrainingSpec


def changed(value: Any, name: str) -> Any:
    """Another value that the option accepts."""
    choices = {
        "device": "cuda:1", "parallel": "fsdp", "resume": "never", "init_from": "run-x", "run_name": "other",
        "seed": 5, "name": "muon", "schedule": "linear", "autocast": "bf16", "spike_action": "skip", "best_is": "max",
        "betas": [0.8, 0.9], "best_metric": "loss", "max_minutes": 3.0, "validation_batch": 4, "keep_every": 50,
        "job": "j", "every_steps": 20, "every_minutes": 7, "clip": 0.5, "epochs": 3, "max_tokens": 999,
        "show_every_seconds": 9.0, "init_vocabulary": None, "tokens": None, "tokens_per_device": None,
        "examples_per_device": None,
    }  # fmt: skip
    if name in choices:
        return choices[name]
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2


OF_THE_RESULT = {
    "batch": {"examples", "accumulation", "length_multiple", "example_multiple"},
    "optimizer": {"name", "lr", "betas", "eps", "weight_decay", "muon_lr", "muon_momentum", "schedule", "warmup_steps",
                  "min_lr_ratio", "clip"},
    "ema": {"enabled", "decay"},
    "precision": {"autocast", "tf32", "compile", "detect_anomaly"},
    "guard": {"max_consecutive_skips", "max_rollbacks", "rollback_lr_factor", "spike_z", "spike_window", "spike_action",
              "spike_patience"},
}  # fmt: skip
"""Options of the sections of training that determine the result, and so the name of the run."""


def test_the_name_of_a_run_follows_every_option_that_determines_its_result_and_no_other() -> None:
    spec = helpers.spec(run_name=None, optimizer={"warmup_steps": 2}, diagnose_every=5)
    plain = to_dict(spec.training)
    followed = set()
    for key, value in plain.items():
        if key in ("launch", "checkpoint"):
            continue
        for name, inner in (value if isinstance(value, dict) else {key: value}).items():
            if (other := changed(inner, name)) is None:
                continue
            settings = {**plain, key: {**value, name: other}} if isinstance(value, dict) else {**plain, key: other}
            training = parse(TrainingConfig, settings, at="training")
            same = dataclasses.replace(spec, training=training).fingerprint == spec.fingerprint
            determines = name in OF_THE_RESULT[key] if key in OF_THE_RESULT else key not in _FREE
            assert same != determines, f"{key}.{name}"
            followed |= set() if same else {key}
    assert followed == {*OF_THE_RESULT, "max_steps", "validate_every", "validation_examples", "validation_batch",
                        "init_from"}  # fmt: skip
    for more in ({"seed": 8}, {"fingerprints": {"tokenizer": "u"}}):
        assert dataclasses.replace(spec, **more).fingerprint != spec.fingerprint  # type: ignore[arg-type]
    objective = to_dict(spec.objective)
    for process, same in (({"loss_weighting": "constant"}, False), ({"loss_weighting": "elbo"}, True)):
        other = parse_kind(OBJECTIVES, objective | {"process": objective["process"] | process}, at="objective")
        assert (dataclasses.replace(spec, objective=other).fingerprint == spec.fingerprint) is same
    for more in ({"dataset": "elsewhere"}, {"tracking": {"a": 1}}, {"encoder": {"name": "b"}}):
        assert dataclasses.replace(spec, **more).fingerprint == spec.fingerprint  # type: ignore[arg-type]
    assert spec.name == f"run-{spec.fingerprint[:12]}"


def test_every_field_of_a_spec_comes_back() -> None:
    spec = dataclasses.replace(
        helpers.spec(seed=11, max_minutes=3.0), encoder={"name": "e"}, tracking={"run_id": "r"}, dataset="elsewhere"
    )
    again = TrainingSpec.from_dict(spec.to_dict())
    assert again == spec
    assert spec.to_dict()["name"] == "run"
    assert {field.name for field in dataclasses.fields(spec)} <= spec.to_dict().keys()
