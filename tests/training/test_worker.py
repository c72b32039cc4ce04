"""Runs in one process: resuming, roll-backs, refusals, stopping, and the packages that a worker needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import faults
import helpers
import pytest
import torch

from mm_ldlm.core.errors import CheckpointError, ConfigurationError, FingerprintError, TrainingDiverged, WorkerFailed
from mm_ldlm.training import status
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.jsonl import read_events, read_lines, read_metrics
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.status import read_status, sole_writer
from mm_ldlm.training.worker import Result, train

FILES = ("model", "ema", "optimizer")


def run(root: Path, *, fault: dict[str, Any] | None = None, pause_at: int | None = None, **settings: Any) -> Result:
    return train(
        helpers.spec(**settings), root=root, data=helpers.data(), pause_at=pause_at,
        wrap_objective=(lambda inner: faults.Faulty(inner, **fault)) if fault else None,
    )  # fmt: skip


def log(root: Path) -> Path:
    return root / "run" / "training_log.jsonl"


@pytest.mark.parametrize("mode", ["l2t", "t2l", "unconditional", "mixed", "sequential"])
def test_pitfall_16_ten_steps_are_five_and_resume_and_five_bit_for_bit(mode: str, tmp_path: Path) -> None:
    """Weights, averages, optimizer, counters and logged losses; with accumulation, dropout and a token budget."""
    settings: dict[str, Any] = {
        "objective": {"mode": mode, "self_condition": True},
        "model": {"dropout": 0.1, "self_condition": True},
        "batch": {"tokens": 96, "accumulation": 2, "length_multiple": 4, "example_multiple": 4},
    }
    run(tmp_path / "whole", **settings)
    assert run(tmp_path / "parts", pause_at=5, **settings).ending == "paused"
    assert run(tmp_path / "parts", **settings).ending == "finished"
    for name in FILES:
        a, b = (helpers.tensors(tmp_path / part / "run", 10, name) for part in ("whole", "parts"))
        assert helpers.same_bits(a, b), name
    losses = [
        [(line["step"], line["loss"]) for line in read_metrics(log(tmp_path / part))] for part in ("whole", "parts")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 10
    states = []
    for part in ("whole", "parts"):
        found = folder.document(folder.find(tmp_path / part / "run"), "training_state.json")
        found["state"].pop("seconds")
        states.append((found["state"], found["guard"]))
    assert states[0] == states[1]


def test_muon_resumes_bit_for_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": {"name": "muon", "warmup_steps": 2}}
    run(tmp_path / "whole", **settings)
    run(tmp_path / "parts", pause_at=5, **settings)
    run(tmp_path / "parts", **settings)
    for name in FILES:
        a, b = (helpers.tensors(tmp_path / part / "run", 10, name) for part in ("whole", "parts"))
        assert helpers.same_bits(a, b), name


@pytest.mark.parametrize("kind", ["latent_dit", "latent_dit_cross"])
def test_models_given_latents_resume_bit_for_bit(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": {"kind": kind, "dim": 16, "depth": 2, "heads": 2, "dropout": 0.1},
        "objective": {"kind": "latent_conditioned", "condition_dropout": 0.3},
        "diagnose_every": 5,
    }
    run(tmp_path / "whole", **settings)
    run(tmp_path / "parts", pause_at=5, **settings)
    run(tmp_path / "parts", **settings)
    for name in FILES:
        a, b = (helpers.tensors(tmp_path / part / "run", 10, name) for part in ("whole", "parts"))
        assert helpers.same_bits(a, b), name


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(tmp_path / name, seed=seed)
    a, b, c = (helpers.tensors(tmp_path / name / "run", 10) for name in "abc")
    assert helpers.same_bits(a, b)
    assert not helpers.same_bits(a, c)


@pytest.mark.parametrize("kind", ["nan_loss", "inf_gradient", "nan_input"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_pitfall_08_a_poisoned_step_changes_nothing(kind: str, accumulation: int, tmp_path: Path) -> None:
    """Weights, averages and optimizer after the poisoned fourth step are those after the third."""
    settings: dict[str, Any] = {
        "batch": {"examples": 16, "accumulation": accumulation},
        "checkpoint": {"every_steps": 1, "keep_last": 20, "background": False},
    }
    run(tmp_path, fault={"kind": kind, "steps": [3], "ranks": [0]}, max_steps=6, **settings)
    for name in FILES:
        before, after = (helpers.tensors(tmp_path / "run", step, name) for step in (3, 4))
        assert helpers.same_bits(before, after), name
    assert not helpers.same_bits(helpers.tensors(tmp_path / "run", 4), helpers.tensors(tmp_path / "run", 5))
    (skip,) = read_events(log(tmp_path), "skip")
    assert skip["step"] == 3
    assert skip["examples"]
    assert skip["reason"]
    (diagnosis,) = read_events(log(tmp_path), "diagnosis")
    assert "Rank 0" in diagnosis["reason"]
    written = json.loads((tmp_path / "run" / "diagnosis-step-00000003.json").read_text())
    assert written["diagnosis"] == diagnosis["reason"]
    words = {"nan_loss": "not the loss", "inf_gradient": "gradients became non-finite", "nan_input": "received values"}
    assert words[kind] in diagnosis["reason"]


def test_a_non_finite_row_is_named(tmp_path: Path) -> None:
    train(helpers.spec(max_steps=8), root=tmp_path, data=helpers.data(poisoned=(5,)))
    told = [event["reason"] for event in read_events(log(tmp_path), "diagnosis")]
    assert told
    assert all("latents of examples [5]" in text for text in told)


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    class Breaks(faults.Faulty):
        def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
            if step in self.steps:
                with torch.no_grad():
                    model.blocks[1].streams[0].qkv.weight[0, 0] = torch.inf
            return self.inner(model, batch, generator, kind=kind, step=step)

    with pytest.raises(TrainingDiverged, match=r"blocks\.1\.streams\.0\.qkv\.weight"):
        train(
            helpers.spec(guard={"max_rollbacks": 0, "max_consecutive_skips": 2}), root=tmp_path, data=helpers.data(),
            wrap_objective=lambda inner: Breaks(inner, kind="none", steps=[4, 5, 6], ranks=[0]),
        )  # fmt: skip


def test_a_run_of_skips_rolls_back_lowers_the_rate_and_goes_on_with_other_data(tmp_path: Path) -> None:
    class Draws(faults.Faulty):
        """Poisons draws (global batches), which go on after a roll-back, not steps, which come again."""

        seen = 0

        def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
            self.seen += 1
            losses = self.inner(model, batch, generator, kind=kind, step=step)
            if 7 <= self.seen <= 10:  # three draws; the diagnosis repeats the first of them
                losses = {name: (value * torch.nan, count) for name, (value, count) in losses.items()}
            return losses

    result = train(
        helpers.spec(max_steps=12, guard={"max_consecutive_skips": 3}), root=tmp_path, data=helpers.data(),
        wrap_objective=lambda inner: Draws(inner, kind="none", steps=[], ranks=[]),
    )  # fmt: skip
    assert result.ending == "finished"
    assert result.step == 12
    (event,) = read_events(log(tmp_path), "rollback")
    assert event["to_step"] == 5
    assert event["lr_scale"] == 0.5
    state = folder.document(folder.find(tmp_path / "run"), "training_state.json")["state"]
    assert state["rollbacks"] == 1
    assert state["skipped"] == 3
    assert state["draw"] == state["step"] + 4
    lines = {line["step"]: line["lr"] for line in read_metrics(log(tmp_path))}
    plain = {
        line["step"]: line["lr"] for line in read_lines(log(tmp_path)) if "event" not in line and line["step"] <= 6
    }
    assert lines[6] == pytest.approx(0.5 * 3e-3, rel=0.4)
    assert plain


def test_the_guard_gives_up_with_a_diagnosis(tmp_path: Path) -> None:
    fault = {"kind": "nan_loss", "steps": list(range(6, 100)), "ranks": [0]}
    with pytest.raises(TrainingDiverged) as raised:
        run(tmp_path, fault=fault, guard={"max_consecutive_skips": 2, "max_rollbacks": 1})
    text = str(raised.value)
    assert "diverged" in text
    assert "not the loss" in text
    assert "step-00000005" in text
    assert read_status(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"dim": 32}}, "model.dim: checkpoint has 16, this run 32"),
        ({"model": {"qk_norm": False}}, "model.qk_norm"),
        ({"objective": {"parameterisation": "x0"}}, "parameterisation: checkpoint has 'v'"),
    ],
)
def test_another_architecture_is_refused_with_the_differing_fields(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run(tmp_path, pause_at=5)
    with pytest.raises(CheckpointError, match=words):
        run(tmp_path, **change)


@pytest.mark.parametrize("name", ["tokenizer", "normaliser", "encoder"])
def test_another_tokenizer_normaliser_or_encoder_is_refused(name: str, tmp_path: Path) -> None:
    import dataclasses

    run(tmp_path, pause_at=5)
    spec = helpers.spec()
    other = dataclasses.replace(spec, fingerprints={**spec.fingerprints, name: "another"})
    with pytest.raises(CheckpointError, match=f"{name}: checkpoint has '.', this run 'another'"):
        train(other, root=tmp_path, data=helpers.data())


def test_resume_never_moves_the_old_run_aside(tmp_path: Path) -> None:
    run(tmp_path, pause_at=5)
    run(tmp_path, resume="never", max_steps=3, optimizer={"warmup_steps": 1})
    assert [path.name for path in sorted(tmp_path.glob("run*"))] == ["run", "run.old-1"]
    assert read_events(log(tmp_path), "start")[0]["resumed_from"] is None


def test_resume_from_a_path(tmp_path: Path) -> None:
    run(tmp_path, pause_at=5)
    result = run(tmp_path, run_name="other", resume="run", max_steps=8)
    assert result.step == 8
    start = read_events(tmp_path / "other" / "training_log.jsonl", "start")[0]
    assert start["resumed_from"] == "step-00000005"
    assert start["step"] == 5
    differs = read_events(tmp_path / "other" / "training_log.jsonl", "resume_differs")[0]["fields"]
    assert "max_steps: checkpoint has 10, this run 8" in differs
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        run(tmp_path, run_name="third", resume="nowhere")


def test_init_from_takes_the_weights_and_nothing_else(tmp_path: Path) -> None:
    run(tmp_path)
    trained = helpers.tensors(tmp_path / "run", 10, "ema")
    run(
        tmp_path,
        run_name="next",
        init_from="run",
        objective={"mode": "l2t"},
        max_steps=3,
        optimizer={"warmup_steps": 1},
    )
    found = helpers.tensors(tmp_path / "next", 3)
    assert torch.equal(found["model.latent_encoder.linear.weight"], trained["model.latent_encoder.linear.weight"])
    assert not torch.equal(found["model.text_embedding.table.weight"], trained["model.text_embedding.table.weight"])
    assert read_metrics(tmp_path / "next" / "training_log.jsonl")[0]["step"] == 1


def test_sigterm_writes_a_checkpoint_and_resuming_is_exact(tmp_path: Path) -> None:
    class Tells(faults.Faulty):
        def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
            if step == 6 and self.once is None:
                self.once = "told"
                os.kill(os.getpid(), signal.SIGTERM)
            return self.inner(model, batch, generator, kind=kind, step=step)

    before = signal.getsignal(signal.SIGTERM)
    result = train(
        helpers.spec(), root=tmp_path / "told", data=helpers.data(),
        wrap_objective=lambda inner: Tells(inner, kind="none", steps=[], ranks=[]),
    )  # fmt: skip
    assert (result.ending, result.step) == ("stopped", 7)
    assert read_status(tmp_path / "told" / "run")["status"] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before
    run(tmp_path / "told")
    run(tmp_path / "whole")
    assert helpers.same_bits(helpers.tensors(tmp_path / "told/run", 10), helpers.tensors(tmp_path / "whole/run", 10))


def test_max_minutes_ends_cleanly(tmp_path: Path) -> None:
    result = run(tmp_path, max_minutes=1e-5)
    assert result.ending == "finished"
    assert result.step < 10
    assert result.checkpoint is not None


def test_pitfall_22_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    run(tmp_path / "a", checkpoint={"every_steps": 3, "keep_last": 5, "background": False})
    run(tmp_path / "b", checkpoint={"every_steps": 3, "keep_last": 5, "background": False}, pause_at=8)
    file = tmp_path / "b/run/checkpoints/step-00000008/model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    run(tmp_path / "b", checkpoint={"every_steps": 3, "keep_last": 5, "background": False})
    events = read_events(log(tmp_path / "b"))
    assert any(event["event"] == "checkpoint_damaged" and "model.safetensors" in event["reason"] for event in events)
    assert [event["resumed_from"] for event in events if event["event"] == "start"] == [None, "step-00000006"]
    assert helpers.same_bits(helpers.tensors(tmp_path / "a/run", 10), helpers.tensors(tmp_path / "b/run", 10))


@pytest.mark.parametrize(("best_is", "choose"), [("min", min), ("max", max)])
def test_validation_best_and_retention(tmp_path: Path, best_is: str, choose: Any) -> None:
    run(
        tmp_path, validate_every=2,
        checkpoint={
            "every_steps": 2, "keep_last": 1, "keep_every": 4, "best_metric": "validation/loss", "best_is": best_is,
        },
    )  # fmt: skip
    values = {
        line["step"]: line["validation/loss"] for line in read_metrics(log(tmp_path)) if "validation/loss" in line
    }
    assert sorted(values) == [2, 4, 6, 8, 10]
    best = folder.step_of(folder.find(tmp_path / "run", which="best"))
    assert values[best] == choose(values.values())
    kept = {folder.step_of(path) for path in folder.all_in(tmp_path / "run/checkpoints")}
    assert kept == {4, 8, 10} | {best}


@pytest.mark.parametrize(("every_minutes", "steps"), [(1e-9, list(range(1, 11))), (1e6, [10]), (None, [10])])
def test_checkpoints_by_elapsed_minutes(tmp_path: Path, every_minutes: float | None, steps: list[int]) -> None:
    run(tmp_path, checkpoint={"every_steps": None, "every_minutes": every_minutes, "background": False})
    assert [event["step"] for event in read_events(log(tmp_path), "checkpoint")] == steps


def test_a_best_metric_that_is_never_measured_is_refused_or_said(tmp_path: Path) -> None:
    for training in (
        {"checkpoint": {"best_metric": "validation/loss"}},
        {"validate_every": 3, "checkpoint": {"every_steps": 5, "best_metric": "validation/loss"}},
        {"checkpoint": {"every_steps": None, "best_metric": "loss"}},
    ):
        with pytest.raises(ConfigurationError, match="make the second a multiple of the first"):
            helpers.spec(**training)
    run(tmp_path, checkpoint={"every_steps": 5, "best_metric": "los"})
    said = read_events(log(tmp_path), "best_unknown")
    assert [event["step"] for event in said] == [5, 10]
    assert "no 'los' among" in said[0]["reason"]


def test_validation_changes_nothing_that_is_trained(tmp_path: Path) -> None:
    run(tmp_path / "with", validate_every=1)
    run(tmp_path / "without")
    assert helpers.same_bits(helpers.tensors(tmp_path / "with/run", 10), helpers.tensors(tmp_path / "without/run", 10))


def test_diagnostics_and_preflight_change_nothing_that_is_trained(tmp_path: Path) -> None:
    run(tmp_path / "with", diagnose_every=1, preflight=True)
    run(tmp_path / "without")
    assert helpers.same_bits(helpers.tensors(tmp_path / "with/run", 10), helpers.tensors(tmp_path / "without/run", 10))
    line = read_metrics(log(tmp_path / "with"))[-1]
    for name in ("grad_norm/block0.stream0", "param_norm/text_head",
        "update_ratio/block1.stream1", "attention_logit_max/block0",
                 "tflops_per_second", "activation_rms/block1", "grad_zeros/text_embedding",
                 "grad_nonfinite/conditioning", "memory_peak_gib"):  # fmt: skip
        assert name in line
    assert all(check.startswith("✓") for check in read_events(log(tmp_path / "with"), "preflight")[0]["checks"])


def test_the_log_has_the_fields_of_the_design(tmp_path: Path) -> None:
    run(tmp_path, objective={"mode": "unconditional"})
    line = read_metrics(log(tmp_path))[0]
    for name in ("epoch", "step", "batch_in_epoch", "loss", "lr", "text_loss", "latent_loss",
        "text_accuracy", "grad_norm",
                 "tokens_per_second", "skipped", "masking_rate", "noise_level", "text_nll_t0",
                 "waiting_fraction"):  # fmt: skip
        assert name in line


def test_pitfall_03_bf16_autocast_keeps_float32_weights(tmp_path: Path) -> None:
    run(tmp_path, precision={"autocast": "bf16"}, optimizer={"lr": 5e-5, "warmup_steps": 0}, max_steps=4)
    before = helpers.tensors(tmp_path / "run", 4)
    assert all(value.dtype == torch.float32 for value in before.values())
    run(tmp_path / "fp32", max_steps=4, optimizer={"lr": 5e-5, "warmup_steps": 0})
    other = helpers.tensors(tmp_path / "fp32/run", 4)
    assert not helpers.same_bits(before, other)  # the option has an effect
    assert max(float((before[name] - other[name]).abs().max()) for name in before) < 5e-3


def test_spec_to_run_from_stores_on_disk(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    (tmp_path / "runs").mkdir()
    spec = helpers.planned(tmp_path, max_steps=4)
    assert TrainingSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    result = train(spec, root=tmp_path / "runs")
    assert result.checkpoint is not None
    assert {path.name for path in result.checkpoint.iterdir()} >= {
        "model.safetensors", "ema.safetensors", "optimizer.safetensors", "training_state.json",
        "normaliser", "tokenizer",
        "rng_state_rank0.safetensors", "COMPLETE",
    }  # fmt: skip
    assert json.loads((result.directory / "config.json").read_text())["versions"]["torch"] == torch.__version__
    helpers.write_stores(tmp_path, count=72)
    with pytest.raises(FingerprintError, match="was committed with"):
        train(spec, root=tmp_path / "runs")


_BARE = """
import sys
BANNED = ("kedro", "kedro_datasets", "mlflow", "datasets", "pandas", "pydantic", "transformers",
        "sentence_transformers", "tqdm")
from importlib.machinery import PathFinder
find = PathFinder.find_spec.__func__
def hide(cls, name, path=None, target=None):  # as where the package is not installed
    return None if name.split(".")[0] in BANNED else find(cls, name, path, target)
PathFinder.find_spec = classmethod(hide)
from mm_ldlm.training.worker import main
code = main(sys.argv[1:])
assert not [name for name in sys.modules if name.split(".")[0] in BANNED]
sys.exit(code)
"""


def test_a_bare_host_is_enough(tmp_path: Path) -> None:
    """The worker's command runs where Kedro, MLflow, datasets, pandas and pydantic cannot be imported."""
    helpers.write_stores(tmp_path)
    (tmp_path / "runs").mkdir()
    file = tmp_path / "runs" / "training_spec.json"
    file.write_text(json.dumps(helpers.planned(tmp_path, max_steps=3, preflight=True).to_dict()))
    done = subprocess.run([sys.executable, "-c", _BARE, str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert read_status(tmp_path / "runs" / "run")["status"] == "finished"


def test_two_trainings_never_share_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOCK_SECONDS", 0.0)
    with sole_writer(tmp_path, "run") as held:
        assert held
        with pytest.raises(WorkerFailed, match=r"another training is writing to .*run \(it holds the lock"):
            run(tmp_path)
        assert not (tmp_path / "run").exists()
    assert run(tmp_path).ending == "finished"
