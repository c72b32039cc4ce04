"""Edges of single parts: types and positions of a batch, modules without parameters, files that are no folders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from parts import ALONE, Heard
from test_checkpointer import made as checkpointer_of
from test_saves_by_hand import made as saves_of
from torch import nn

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import build as building
from mm_ldlm.training import precision, session
from mm_ldlm.training.batches import Planned, deal
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import EmaConfig, OptimizerConfig, PrecisionConfig
from mm_ldlm.training.diagnosis import Findings, _Watch
from mm_ldlm.training.optimizer import parameter_groups
from mm_ldlm.training.status import write_status
from mm_ldlm.training.stepper import Stepper

SMALL = {"depth": 1}


# -- batches and construction ------------------------------------------------------------------------------------------


class Typed:
    """A source whose fields have types of their own."""

    pad_id, lengths = 0, np.array([1, 2, 3])

    def tokens(self, rows: Any, *, length: int) -> Any:
        return np.ones((len(rows), length), np.int64)

    def field(self, name: str, rows: Any) -> Any:
        return (rows[:, None] + np.array([[1 / 3]])).astype(name)


@pytest.mark.parametrize("fill", [False, True])
def test_a_batch_keeps_the_types_of_its_fields_and_counts_real_examples_and_tokens(fill: bool) -> None:
    planned = Planned(0, 0, np.array([2, 0, 1]), 4, 8, 6)
    types = ("float64", "float32", "float16", "int64", "bool")
    for rank in (0, 1):
        (batch,) = deal(planned, Typed(), fields=types, rank=rank, world=2, accumulation=1, fill=fill)
        assert (batch.global_size, batch.global_tokens) == (3, 6)
        assert len(batch.examples_B) == (4 if fill else 2)
        assert {name: str(value.dtype) for name, value in batch.fields.items()} == {
            name: f"torch.{name}" for name in types
        }  # fmt: skip
        if rank == 0:
            assert batch.fields["float64"][0].item() == 2 + 1 / 3


class WithoutParameters(nn.Module):
    """A wrapped objective that is a module and has nothing to train."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = [inner]

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "_parameters", "_buffers", "_modules"):
            return super().__getattr__(name)
        return getattr(self.__dict__["inner"][0], name)


def test_an_objective_without_parameters_may_be_a_module_beside_a_sharded_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "shard", lambda *given: None)
    spec = helpers.spec(model=SMALL, parallel="fsdp")
    parts: Any = build(
        spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard(), wrap_objective=WithoutParameters
    )
    assert isinstance(parts.stepper.objective, WithoutParameters)


def test_the_precision_that_the_devices_decided_is_that_of_steps_and_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("bf16", "fp32"):
        monkeypatch.setattr(
            building, "resolve", lambda given, process, kind=kind: dataclasses.replace(given, autocast=kind)
        )
        spec = helpers.spec(model=SMALL, precision={"autocast": "auto"})
        parts: Any = build(spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard())
        assert parts.stepper.precision.autocast == parts.config.precision.autocast == kind
        assert parts.checkpointer.session["precision"]["autocast"] == kind


def test_autocast_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    asked: list[Any] = []
    monkeypatch.setattr(torch, "autocast", lambda kind, *, dtype: asked.append((kind, dtype)) or nullcontext())
    for kind in ("cuda", "cpu"):
        process = Process(RankInfo(), torch.device(kind), None)
        inner: Any = None
        stepper = Stepper(inner, process, precision=PrecisionConfig(autocast="bf16"), scaler=None, seed=0)
        with stepper.autocast():
            pass
    assert asked == [("cuda", torch.bfloat16), ("cpu", torch.bfloat16)]


def test_a_gpu_that_emulates_bf16_is_not_faster_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def supported(*, including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert precision.multiplies_bf16(torch.device("cuda")) is False


def test_kernels_of_three_dimensions_are_no_matrices_for_muon() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Conv1d(2, 2, 3), nn.Linear(2, 2)])
    found = {
        group["kind"]: [name for name, _ in group["params"]]
        for group in parameter_groups(model, OptimizerConfig(name="muon"))
        if group["weight_decay"]
    }
    assert found == {"muon": ["blocks.1.weight"], "adamw": ["blocks.0.weight"]}


@pytest.mark.parametrize(
    ("config", "key"), [(EmaConfig, "decay"), (OptimizerConfig, "muon_momentum"), (OptimizerConfig, "betas")]
)
def test_a_factor_of_an_average_is_below_1(config: Any, key: str) -> None:
    """With 1 the average never changes; 0 is the newest value alone."""

    def given(value: float) -> dict[str, Any]:
        return {key: [value, value] if key == "betas" else value}

    assert parse(config, given(0.0), at="x")
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(ConfigurationError, match=rf"'x\.{key}"):
            parse(config, given(wrong), at="x")


def test_a_module_with_inputs_that_are_not_finite_however_deep_is_not_the_first_cause() -> None:
    found = Findings(rank=0, kind="a", examples={}, parameters=[])
    hook = _Watch(nn.Module(), found)._forward("m")  # type: ignore[arg-type]
    bad = torch.tensor([1.0, torch.nan])
    for inputs in (([bad],), ({"x": (bad,)},), (torch.ones(2), [torch.ones(1), bad])):
        hook(None, inputs, bad)
        assert found.forward is None
    hook(None, ([torch.ones(2)], 3, None), bad)
    assert found.forward == "m"
    assert found.largest == {}, "magnitudes are those of finite outputs"


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_one_process_gets_its_random_state_back(tmp_path: Path) -> None:
    saves, _ = checkpointer_of(tmp_path)
    torch.manual_seed(17)
    saves.save({})
    expected = float(torch.rand(()))
    torch.manual_seed(99)
    saves.restore()
    assert float(torch.rand(())) == expected


def test_a_counter_that_an_earlier_version_did_not_save_begins_at_its_default(tmp_path: Path) -> None:
    saves = saves_of(tmp_path)
    saves.optimization.load, saves.guard.load = (lambda *_: None), (lambda found: None)
    saves.save({})
    path = tmp_path / "step-00000000"
    document = json.loads((path / "training_state.json").read_text())
    del document["state"]["rollbacks"], document["state"]["best"]
    saves.state.rollbacks, saves.state.best, saves.state.tokens = 3, 0.5, 77
    found = saves._restore_state(path, document | {"guard": {}, "scaler": None})
    assert (found.rollbacks, found.best, found.tokens) == (0, None, 0)
    assert saves.state == found


# -- sessions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["resume", "init_from"])
def test_a_file_that_is_no_checkpoint_is_no_origin(key: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    with pytest.raises(ConfigurationError) as refused:
        session._refuse_missing_origin(helpers.spec(**{key: "notes"}), tmp_path)
    assert str(refused.value) == (
        f"parameter 'training.{key}': expected the folder of a run or a checkpoint, found none at notes (relative to "
        f"{tmp_path}). Correct the name, or set an absolute path."
    )
    torch.save({}, tmp_path / "model.pt")
    spec = helpers.spec(**{key: "model.pt"})
    if key == "resume":
        with pytest.raises(ConfigurationError, match=r"'training\.resume'"):
            session._refuse_missing_origin(spec, tmp_path)
    else:
        session._refuse_missing_origin(spec, tmp_path)


def test_a_run_without_metrics_has_none_and_a_resumed_one_continues_by_itself(tmp_path: Path) -> None:
    spec = helpers.spec(resume="other")
    folder.write(tmp_path / "run" / "checkpoints", 4, folder.Contents({}, {"a.json": {}}))
    write_status(tmp_path / "run", "stopped", 5)
    found = session.reference(spec, tmp_path)
    assert (found["metrics"], found["step"], found["checkpoint"]) == ({}, 5, "step-00000004")
    assert session._how_to_continue(spec, tmp_path / "run").endswith("The same command continues from there.")


@pytest.mark.parametrize(("step", "words"), [(2, "step-00000004, step-00000006"), (6, "none")])
def test_the_later_checkpoints_of_a_run_that_goes_back_are_listed(
    step: int, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (2, 4, 6):
        folder.write(tmp_path / "run" / "checkpoints", number, folder.Contents({}, {"a.json": {}}))
    path = tmp_path / "run" / "checkpoints" / folder.name_of(step)
    session._report_origin(helpers.spec(resume="x"), tmp_path, path)
    assert caplog.messages == [
        f"run run goes back to {path.name}; its later checkpoints ({words}) are moved to a folder checkpoints.old-N "
        "beside the others"
    ]
