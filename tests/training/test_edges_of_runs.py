"""Edges of runs: links, restarts, slow ranks, numbers that are not finite, and estimates at their limits."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from mm_ldlm.training.remaining import Remaining
from parts import ALONE, Heard

from mm_ldlm.core.errors import PreflightError
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.base import Batch
from mm_ldlm.training import build as building
from mm_ldlm.training import preflight, resuming, sanity, trial, worker
from mm_ldlm.training import throughput as throughputs
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.jsonl import JsonlTracker
from mm_ldlm.training.sanity import SanityConfig
from mm_ldlm.training.state import TrainingState, random_states, restore_random_states
from mm_ldlm.training.status import read_status, write_failure
from mm_ldlm.training.throughput import Throughput
from mm_ldlm.training.validation import Subset, Validation

SMALL = {"depth": 1}


def checkpoints(root: Path, **metrics: float) -> Path:
    """Checkpoints of the steps 2, 4, 6 and 8 of a run, with these losses."""
    directory = root / "run" / "checkpoints"
    for step in (2, 4, 6, 8):
        loss = metrics.get(f"at_{step}", 9.0)
        folder.write(directory, step, folder.Contents({}, {"training_state.json": {"metrics": {"loss": loss}}}))
    return directory


# -- going back --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_one_of_the_run_also_through_a_link_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    directory = checkpoints(tmp_path / "disk")
    (tmp_path / "link").symlink_to("disk")
    for resume in (str(directory / "step-00000004"), str(tmp_path / "link" / "run" / "checkpoints" / "step-00000004"),
                   "run/checkpoints/../checkpoints/step-00000004"):  # fmt: skip
        for root in (tmp_path / "disk", tmp_path / "link"):
            found = resuming.back_to(helpers.spec(resume=resume), root)
            assert found is not None
            assert found.resolve() == directory / "step-00000004"


@pytest.mark.parametrize("best", [6, 8])
def test_the_best_of_a_run_that_goes_back_is_chosen_again_if_it_is_moved(best: int, tmp_path: Path) -> None:
    directory = checkpoints(tmp_path, at_2=3.0, at_4=4.0)
    folder.point(directory, "best", directory / folder.name_of(best))
    state = SimpleNamespace(step=4, best=0.5)
    parts: Any = SimpleNamespace(
        checkpointer=SimpleNamespace(directory=directory, restore=lambda path: None), state=state, tracker=Heard(),
        process=SimpleNamespace(is_main=True),
    )  # fmt: skip
    resuming._go_back(parts, helpers.spec(checkpoint={"best_metric": "loss"}), directory / folder.name_of(4))
    assert (folder.pointer(directory, "best"), state.best) == ("step-00000002", 3.0)
    assert parts.tracker.events == [
        (4, "went_back", {"moved": ["step-00000006", "step-00000008"], "to": "checkpoints.old-1"})
    ]


def test_a_run_that_goes_back_to_its_newest_checkpoint_moves_none(tmp_path: Path) -> None:
    directory = checkpoints(tmp_path)
    parts: Any = SimpleNamespace(
        checkpointer=SimpleNamespace(directory=directory, restore=lambda path: None), tracker=Heard(),
        state=SimpleNamespace(step=8, best=None), process=SimpleNamespace(is_main=True),
    )  # fmt: skip
    spec = helpers.spec()
    resuming._go_back(parts, spec, directory / folder.name_of(8))
    assert parts.tracker.events == [(8, "went_back", {})]
    assert not (tmp_path / "run" / "checkpoints.old-1").exists()
    assert resuming._record(directory) == {"step": 8, "fingerprint": spec.fingerprint}
    assert (directory / "latest").read_text() == "step-00000008\n"


def test_a_run_goes_back_to_the_best_or_the_latest_by_their_names(tmp_path: Path) -> None:
    directory = checkpoints(tmp_path)
    folder.point(directory, "best", directory / folder.name_of(4))
    for name, step in (("best", 4), ("latest", 8), ("step-00000006", 6), ("6", 6)):
        assert resuming.named(directory / name) == directory / folder.name_of(step)


# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_new_command_trains_although_its_launcher_had_a_failure_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is submitted again may have the number of the one before; only a restarted rank repeats its error."""
    given = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0",
             "TORCHELASTIC_RUN_ID": "a-launch"}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "run").mkdir()
    write_failure(tmp_path / "run", "a-launch", PreflightError("no room"))
    monkeypatch.setattr(worker.loop, "run", lambda parts, *, pause_at: "finished")
    found = worker.train(helpers.spec(model=SMALL), root=tmp_path, data=helpers.data())
    assert (found.ending, read_status(tmp_path / "run")["status"]) == ("finished", "finished")


def test_lines_that_a_full_disk_did_not_take_do_not_replace_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    def close(tracker: JsonlTracker) -> None:
        closed.append(1)
        raise OSError("no space left")

    monkeypatch.setattr(JsonlTracker, "close", close)
    monkeypatch.setattr(worker.loop, "run", lambda parts, *, pause_at: "paused")
    found = worker.train(helpers.spec(model=SMALL), root=tmp_path, data=helpers.data())
    assert (found.ending, closed) == ("paused", [1])


def test_the_checks_of_a_configuration_join_with_its_device_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def joined(**given: Any) -> Any:
        asked.append(given)
        return contextlib.nullcontext(ALONE)

    monkeypatch.setattr(sanity, "joined", joined)
    monkeypatch.setattr(sanity, "learning", lambda *_: [])
    spec = helpers.spec(model=SMALL, device="cpu", threads=3)
    sanity.check_sanity(spec, root=tmp_path, config=SanityConfig(examples=2), data=helpers.data())
    assert asked == [{"device": "cpu", "threads": 3}]


# -- estimates ---------------------------------------------------------------------------------------------------------


def test_a_step_of_three_times_the_median_counts_and_thirty_seconds_are_enough() -> None:
    plan: Any = SimpleNamespace(epoch=lambda number: [(range(4), 10), (range(2), 10)])
    step: Any = SimpleNamespace(examples=range(4), length=8, epoch=0)
    found = Remaining(plan)
    for now in (0.0, 1.0, 2.0, 5.0):
        found.stepped(step, now)
    assert found.per_step() == pytest.approx(5 / 96 * 30), "steps of 1, 1 and 3 seconds, and 30 tokens in the mean"
    for seconds, ready in ((29.9, False), (30.0, True)):
        found = Remaining(plan)
        found.stepped(step, 0.0)
        found.stepped(step, seconds)
        assert found.first() is ready
        assert not found.first()


def test_the_seconds_of_a_step_are_kept_to_a_ten_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(throughputs, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    loader: Any = SimpleNamespace(waited=0.0, plan=SimpleNamespace(epoch=lambda number: [(range(4), 10)]))
    found = Throughput(loader, TrainingState(step=10), ALONE, max_steps=90, max_minutes=None)
    planned: Any = SimpleNamespace(tokens=40, examples=range(4), length=10, epoch=0)
    for _ in range(60):
        now[0] += 0.123456
        found.stepped(planned)
    assert found.estimate() == {"seconds_left": 9.9, "seconds_per_step": 0.1235, "measured_steps": 59}


def test_the_slowest_rank_ends_a_measurement_and_small_batches_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    batches = [(np.arange(8), 4)] * 5
    rank = SimpleNamespace(
        loader=SimpleNamespace(plan=SimpleNamespace(epoch=lambda number: batches)),
        draws_by_kind=lambda batch: {"a": [0]}, step=lambda batch, *, draw: steps.append(draw),
    )  # fmt: skip
    monkeypatch.setattr(trial, "_Rank", lambda *_: rank)
    monkeypatch.setattr(trial.collectives, "max_", lambda mine: mine + (2.0 if len(steps) > 3 else 0.0))
    process: Any = SimpleNamespace(world=2)
    assert trial.trial_steps(None, None, process)["measured"] == 3  # type: ignore[arg-type]
    monkeypatch.undo()
    made = trial._Rank(helpers.spec(model=SMALL), helpers.data(), ALONE)
    assert (made.loader.fill, made.loader.rank, made.loader.world) == (False, 0, 1)
    assert made.stepper.parallel.module.training


# -- GPUs, without one -------------------------------------------------------------------------------------------------


def test_the_generator_of_a_gpu_is_saved_and_restored_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    device = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda of: {device: torch.tensor([4, 2])}[of])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, of: given.append((state.tolist(), of)))
    states = random_states(device)
    assert states["cuda"].tolist() == [4, 2]
    restore_random_states(states, device)
    assert given == [([4, 2], device)]
    of_a_cpu = random_states(torch.device("cpu"))
    assert "cuda" not in of_a_cpu
    restore_random_states(of_a_cpu, device)
    restore_random_states(states, torch.device("cpu"))
    assert len(given) == 1, "a run that moves to another kind of device goes on"


def test_the_memory_of_a_gpu_is_freed_after_a_pass_that_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    module = torch.nn.Linear(1, 1)
    for kind, count in (("cpu", 0), ("cuda", 1)):
        module.weight.grad = torch.ones(1, 1)
        process = Process(RankInfo(), torch.device(kind), None)
        preflight._free_memory(SimpleNamespace(root=module, process=process))  # type: ignore[arg-type]
        assert (len(freed), module.weight.grad) == (count, None)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_batches_of_a_gpu_are_pinned_and_the_model_moves_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Any] = []
    plain = building._trainable_root

    def root(*given: Any) -> Any:
        made = plain(*given)
        made.to = lambda device: moved.append(device) or made
        return made

    monkeypatch.setattr(building, "_trainable_root", root)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: ("the scaler of", device))
    process = Process(RankInfo(), torch.device(kind), None)
    spec = helpers.spec(model=SMALL, validate_every=5, precision={"autocast": "fp16"})
    parts: Any = building.build(spec, root=tmp_path, data=helpers.data(), process=process, tracker=Heard())
    assert moved == [torch.device(kind)]
    assert parts.loader.pin is (kind == "cuda")
    assert parts.stepper.scaler == ("the scaler of", kind)
    assert parts.diagnostics.device == torch.device(kind)


# -- validation --------------------------------------------------------------------------------------------------------


def test_the_examples_of_a_validation_are_the_same_in_every_version() -> None:
    """Otherwise the losses before and after an update could not be compared."""
    rows: Any = helpers.Rows(50)
    for seed in (0, 3):
        order = np.random.default_rng([seed, 0]).permutation(50)
        assert Subset(rows, 20, seed=seed).examples.tolist() == sorted(order[:20].tolist())


@pytest.mark.parametrize("filling", [float("inf"), float("nan")])
def test_the_likelihood_of_a_filling_is_no_part_of_the_sum_whatever_it_is(filling: float) -> None:
    lengths = torch.tensor([2, 0])
    batch = Batch(
        tokens_BL=torch.ones(2, 3, dtype=torch.long), valid_BL=torch.arange(3) < lengths[:, None], fields={},
        examples_B=torch.tensor([7, -1]), position_B=torch.arange(2), global_size=1, global_tokens=2,
    )  # fmt: skip
    model: Any = SimpleNamespace(
        has_length=False, likelihood=lambda *_, **__: SimpleNamespace(nll_KB=torch.tensor([[1.5, filling]]))
    )
    validation: Any = SimpleNamespace(_scores="score", seed=0)
    found = Validation._negative_log_likelihood(validation, model, batch, draw=0)
    assert (found.tolist(), found.dtype) == ([1.5, 2.0], torch.float64)
