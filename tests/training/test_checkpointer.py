"""What a checkpoint of a run keeps for each rank, when it is due, and what is reported about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from parts import Heard

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import build as building
from mm_ldlm.training import checkpointer
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder


def made(root: Path, *, rank: int = 0, world: int = 1, **checkpoint: Any) -> tuple[Any, Heard]:
    """The checkpointer of a rank, without a group, and what it reported."""
    heard = Heard()
    process = Process(RankInfo(rank=rank, world=world), torch.device("cpu"), None)
    spec = helpers.spec(model={"depth": 1}, checkpoint={"background": False, **checkpoint})
    return build(spec, root=root, data=helpers.data(), process=process, tracker=heard).checkpointer, heard


@pytest.fixture
def _without_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = building.Parallel
    alone = Process(RankInfo(), torch.device("cpu"), None)
    monkeypatch.setattr(building, "Parallel", lambda inner, process, *, strategy: plain(inner, alone))


@pytest.mark.usefixtures("_without_ddp")
def test_every_rank_gets_its_own_random_state_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks save states of two seeds; a third one, which the run did not have, keeps its own."""
    states = []
    for seed in (11, 22):
        torch.manual_seed(seed)
        states.append(checkpointer.save_safetensors(checkpointer.random_states(torch.device("cpu"))))
    expected = [float(torch.rand((), generator=torch.Generator().manual_seed(seed))) for seed in (11, 22)]
    first, heard = made(tmp_path, world=2)
    monkeypatch.setattr(collectives, "gather_bytes", lambda data, *, device: states)
    first.state.step = 5
    first.save({})
    ((step, kind, about),) = heard.events
    assert (step, kind, about["folder"]) == (5, "checkpoint", "step-00000005")
    for rank, number in enumerate([*expected, None]):
        other, _ = made(tmp_path, rank=rank, world=3)
        torch.manual_seed(33)
        own = float(torch.rand((), generator=torch.Generator().manual_seed(33)))
        assert other.restore() == 5
        assert float(torch.rand(())) == (own if number is None else number)


@pytest.mark.usefixtures("_without_ddp")
def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    second, heard = made(tmp_path, rank=1, world=2)
    second.save({"loss": 1.0})
    assert heard.events == []
    assert not (tmp_path / "run").exists()


def test_a_best_metric_is_missed_only_in_lines_that_have_numbers(tmp_path: Path) -> None:
    """A checkpoint between two log lines has none."""
    found, heard = made(tmp_path, best_metric="loss")
    found.save({})
    assert folder.pointer(found.directory, "best") is None
    assert [kind for _, kind, _ in heard.events] == ["checkpoint"]
    found.save({"validation/loss": 1.0})
    assert heard.events[1] == (0, "best_unknown", {"reason": "no 'loss' among ['validation/loss']"})
    found.save({"loss": 3.0})
    assert folder.pointer(found.directory, "best") == "step-00000000"
    assert found.state.best == 3.0


@pytest.mark.parametrize(("every", "steps"), [(3, [3, 6]), (None, [])])
def test_a_checkpoint_is_due_at_multiples_or_when_the_minutes_have_passed(
    every: int | None, steps: list[int], tmp_path: Path
) -> None:
    found, _ = made(tmp_path, every_steps=every)
    assert [step for step in range(1, 8) if found.due(step, False)] == steps
    assert all(found.due(step, True) for step in range(1, 8))


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_latest_stays(tmp_path: Path) -> None:
    found, heard = made(tmp_path)
    assert found.latest() == "none yet"
    found.state.step = 4
    found.save({})
    assert found.latest() == str(tmp_path / "run/checkpoints/step-00000004")
    found.folders = {"tokenizer": tmp_path / "nowhere"}
    found.state.step = 8
    found.save({})
    assert (heard.events[-1][:2], found.failed() is None) == ((8, "checkpoint_failed"), False)
    assert "was deleted or moved during the training" in heard.events[-1][2]["reason"]
    assert found.latest() == str(tmp_path / "run/checkpoints/step-00000004")
    assert (found.directory / "latest").read_text() == "step-00000004\n"


def test_a_checkpoint_is_that_of_its_step_although_it_is_written_during_later_ones(tmp_path: Path) -> None:
    """On a CPU a copy to the CPU would be the weights themselves, which the next update changes."""
    found, _ = made(tmp_path)
    for parameter in found.root.parameters():
        parameter.grad = torch.ones_like(parameter)
    found.optimization.step()
    held: list[Any] = []
    found._writer.save = lambda step, contents, *, best: held.append(contents)
    found.save({})
    (before,) = held
    kept = {name: {key: value.clone() for key, value in part.items()} for name, part in before.tensors.items()}
    assert {"model.safetensors", "optimizer.safetensors", "ema.safetensors"} < set(kept)
    found.optimization.step()
    for value in found.ema.values.values():
        value.add_(1.0)
    for name, part in before.tensors.items():
        assert part
        assert all(torch.equal(value, kept[name][key]) for key, value in part.items()), name
