"""What ranks, sessions and the processes of checks are given, the data of the task, and the command's output."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.extras.gpu_check import __main__ as command
from mm_ldlm.extras.gpu_check import child, rank, ranks, runner, sessions, task
from mm_ldlm.extras.gpu_check import throughput as throughputs
from mm_ldlm.extras.gpu_check.outcome import Finding, Outcome, Setting
from mm_ldlm.extras.gpu_check.registry import CHECKS, Entry
from mm_ldlm.models.base import DataShape

# -- processes ---------------------------------------------------------------------------------------------------------


def test_ranks_train_every_mode_and_keep_every_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[Any] = []

    def start(setting: Setting, spec: Any, *, root: Path, **more: Any) -> None:
        if spec is not None:
            specs.append(spec)
            raise KeyboardInterrupt
        found = {"wrong": [], "world": 2, "backend": "b", "active": True, "gigabytes_per_second": 1.0}
        (root / "collectives.json").write_text(json.dumps(found))

    monkeypatch.setattr(ranks, "start", start)
    monkeypatch.setattr(ranks, "train_case", lambda spec, **_: None)
    for device, size in (("cpu", (32, 2)), ("cuda", (256, 4))):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        for check in (ranks.ranks, ranks.kill_resume):
            with pytest.raises(KeyboardInterrupt):
                check(Setting(device, tmp_path))
            spec = specs[-1]
            assert (spec.model.dim, spec.model.depth, spec.training.device) == (*size, device)
            assert (spec.objective.mode, spec.training.batch.examples) == ("mixed", 64)
            assert spec.training.batch.length_multiple == 4
    several, resumed = (spec.training for spec in specs[:2])
    kept = several.checkpoint
    assert (several.max_steps, kept.every_steps, kept.keep_last, kept.background) == (6, 1, 12, False)
    assert (resumed.max_steps, resumed.checkpoint.every_steps, resumed.checkpoint.background) == (8, 2, False)


def test_a_resumed_run_reports_from_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise ranks.WorkerFailed("SIGKILL")

    monkeypatch.setattr(ranks, "start", killed)
    monkeypatch.setattr(ranks, "train_case", lambda spec, *, root: None)
    monkeypatch.setattr(ranks.folder, "newest_whole", lambda path: (path / "step-00000004", []))
    monkeypatch.setattr(ranks, "read_events", lambda path, kind: [{"resumed_from": "step-00000002"}])
    monkeypatch.setattr(ranks, "_difference", lambda *given: {"model": 0.0, "ema": 0.5})
    found = ranks.kill_resume(Setting("cpu", tmp_path))
    assert found.numbers == {
        "killed in step": 5, "resumed from": "step-00000002", "difference of model": 0.0, "difference of ema": 0.5
    }  # fmt: skip
    assert found.faults == (
        "expected the run resumed from step-00000004 to equal the undisturbed one to the bit, found one resumed from "
        "step-00000002 with differences {'model': 0.0, 'ema': 0.5}. If two undisturbed runs differ as well, the device "
        "has no deterministic kernel for an operation of this model.",
    )


def test_a_case_has_padded_texts_and_warns_of_kernels_that_are_not_deterministic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def train(spec: Any, *, root: Path, data: Any, wrap_objective: Any) -> None:
        seen.append((torch.is_deterministic_algorithms_warn_only_enabled(), len(set(data.train.lengths.tolist())) > 1))

    monkeypatch.setattr(rank, "train", train)
    rank.train_case(task.spec(task.tiny_mmdit(), task.MULTIMODAL, device="cpu"), root=tmp_path)
    assert seen == [(True, True)]


def test_an_all_reduce_is_measured_after_a_first_one_and_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has finished whenever the clock is read."""
    done: list[Any] = []
    gpu = torch.device("cuda", 1)
    real = rank.collectives
    faked = {name: getattr(real, name) for name in ("rank", "world", "max_", "broadcast", "active", "gather_texts")}
    monkeypatch.setattr(rank, "collectives", SimpleNamespace(
        **faked, barrier=lambda: done.append("barrier"), sum_=lambda x: done.append(len(x)) or x
    ))  # fmt: skip
    monkeypatch.setattr(rank, "_wait", lambda device: done.append(device))
    clock = iter([1.0, 3.0])
    monkeypatch.setattr(rank, "time", SimpleNamespace(perf_counter=lambda: done.append("time") or next(clock)))
    process: Any = SimpleNamespace(device=torch.device("cpu"), backend="b")
    found = rank.check_collectives(process, megabytes=2.0)
    cpu = process.device
    assert done == [1000, "barrier", 2**19, cpu, "barrier", "time", *[2**19] * 10, cpu, "time"]
    assert found["gigabytes_per_second"] == pytest.approx(2**21 / 0.2 / 1e9)
    monkeypatch.undo()
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for module in (rank, sessions):
        module._wait(gpu)
        module._wait(cpu)
    assert waited == [gpu, gpu]


def test_a_session_trains_on_the_given_data_and_the_device_of_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    @contextlib.contextmanager
    def joined(**given: Any) -> Iterator[Any]:
        made.append(given)
        yield "process"

    monkeypatch.setattr(sessions, "joined", joined)
    monkeypatch.setattr(
        sessions, "build", lambda spec, **given: made.append(given) or SimpleNamespace(checkpointer=SimpleNamespace())
    )
    spec = task.spec(task.tiny_mmdit(), task.MULTIMODAL, device="cuda:1")
    for data in ("given", None):
        with sessions.session(spec, tmp_path, data=data, wrap_objective="wrap") as run:  # type: ignore[arg-type]
            assert run.parts.checkpointer.save("line") is None
        where, given = made[-2:]
        assert where == {"device": "cuda:1"}
        assert given.pop("data").shape == spec.shape if data is None else given.pop("data") == "given"
        assert given == {"root": tmp_path, "process": "process", "tracker": run.log, "wrap_objective": "wrap"}


# -- the task and the throughput ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latent", "image", "sizes"), [(5, (3, 2, 1), (5, 6)), (None, None, (1, 1)), (8, (4, 4, 3), (8, 48))]
)
def test_the_fields_of_the_task_have_the_sizes_of_the_shape(latent: Any, image: Any, sizes: tuple[int, int]) -> None:
    shape = DataShape(vocab_size=9, pad_id=0, mask_id=1, max_length=4, latent_dim=latent, image_size=image)
    made = task.Examples(shape, 3)
    rows = np.arange(3)
    assert (made.field("latents", rows).shape, made.field("images", rows).shape) == ((3, sizes[0]), (3, sizes[1]))


def test_the_data_of_a_spec_have_the_stores_of_its_objective_alone() -> None:
    for objective, stores in ((task.MULTIMODAL, set()), ({"kind": "classification"}, {"label_names"})):
        model = task.tiny_mmdit() if not stores else {"kind": "dit", "dim": 8, "depth": 1, "heads": 2}
        spec = task.spec(model, objective, device="cpu")
        assert (spec.seed, spec.dataset, spec.fingerprints) == (7, "", {})
        found = task.data(spec, count=9)
        assert (set(found.stores), found.shape, found.validation) == (stores, spec.shape, None)
        assert len(found.train.lengths) == 9  # type: ignore[attr-defined]


def test_small_and_large_measurements_are_asked_for_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(throughputs, "measure", lambda *given, **named: asked.append((given[1:], named)) or Finding())
        for check in (throughputs.throughput, throughputs.memory_892m):
            check(Setting("cpu", tmp_path))
    small = (throughputs.SMALL, task.TINY)
    assert asked == [
        (small, {"examples": 8, "accumulation": 1, "steps": 3}), (small, {"examples": 8, "accumulation": 2, "steps": 2})
    ]  # fmt: skip
    seen: list[Any] = []

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, *, data: Any) -> Iterator[Any]:
        training = spec.training
        seen.append((training.optimizer.lr, training.optimizer.warmup_steps, training.optimizer.clip,
                     training.precision.autocast, training.batch.length_multiple, len(data.train.lengths)))  # fmt: skip
        log = SimpleNamespace(losses=lambda: [math.nan, 1.0], lines=[{"masking_rate": 0.5}])
        yield SimpleNamespace(train=lambda steps: 1.0, log=log)

    monkeypatch.setattr(throughputs, "session", session)
    monkeypatch.setattr(throughputs, "sum_of_parameters", lambda model, shape: (model, shape))
    shape = DataShape(vocab_size=40, pad_id=0, mask_id=1, max_length=10, latent_dim=8)
    found = throughputs.measure(Setting("cpu", tmp_path), throughputs.SMALL, shape, examples=4, accumulation=1, steps=2)
    assert seen == [(5e-5, 2, 0.5, "bf16", 4, 256)]
    assert found.numbers["parameters"] == (throughputs.SMALL, shape)
    assert found.faults == ("expected finite losses, found [nan, 1.0]. Run the check bf16.",)


# -- the command and the processes of its checks -----------------------------------------------------------------------


def test_the_list_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    width = max(map(len, CHECKS))
    assert [(line[:width].rstrip(), line[width : width + 2], line[width + 2 :]) for line in lines] == [
        (name, "  ", entry.what) for name, entry in CHECKS.items()
    ]


def test_several_failures_have_the_exit_code_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [Outcome(name, "failed", {}, "x", 1.0) for name in ("flops", "bf16", "fp16")]
    monkeypatch.setattr(command, "run_checks", lambda names, **given: outcomes)
    assert command.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("3 failed\nwritten: ")


def test_a_line_is_shown_when_its_check_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    stream = SimpleNamespace(write=done.append, flush=lambda: done.append("flushed"))
    monkeypatch.setattr(sys, "stdout", stream)
    command._show("a line")
    assert done == ["a line", "\n", "flushed"]


def test_the_call_stack_of_a_check_is_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(setting: Setting) -> Finding:
        raise ValueError("why")

    monkeypatch.setattr(Entry, "load", lambda self: broken)
    assert child.run("flops", Setting("cpu", tmp_path)).faults == ("expected numbers, found ValueError: why",)
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "in broken" in said


def test_the_time_of_a_check_is_what_those_before_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], list[Any]()

    def run_alone(name: str, **given: Any) -> Outcome:
        asked.append((name, given))
        now[0] += 4.0
        return Outcome.of(name, Finding())

    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(runner, "run_alone", run_alone)
    shown: list[str] = []
    names = ["compile", "flops", "bf16", "fp16", "ranks"]
    found = runner.run_checks(names, device="cpu", out=tmp_path, seconds=10.0, show=shown.append, child="c")
    about = {"device": "cpu", "child": "c"}
    assert asked == [
        (name, {**about, "log": tmp_path / "logs" / f"{name}.log", "seconds": left})
        for name, left in (("flops", 10.0), ("bf16", 6.0), ("fp16", 2.0))
    ]
    assert [outcome.status for outcome in found] == ["left out", "passed", "passed", "passed", "left out"]
    assert [found[0].reason, found[-1].reason] == [
        "It is for GPUs only.", "The 10 s of --seconds were used up. Raise them."
    ]  # fmt: skip
    assert shown == [str(outcome) for outcome in found]


@pytest.mark.parametrize("written", ["{", None])
def test_a_check_runs_in_a_group_of_its_own_and_a_broken_finding_is_none(
    written: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is not buffered, and its last line is shown even if it is not UTF-8."""
    started: list[Any] = []

    class Process:
        def __init__(self, arguments: list[str], *, stdout: Any, **given: Any) -> None:
            started.append((arguments, given, Path(stdout.name)))
            Path(stdout.name).write_bytes(b"first\n \xff last \n")
            if written is not None:
                (Path(arguments[-1]) / "finding.json").write_text(written)

        def wait(self, *, timeout: float) -> int:
            started.append(timeout)
            return 3

        def poll(self) -> int:
            return 3

    monkeypatch.setattr(runner.subprocess, "Popen", Process)
    log = tmp_path / "deep" / "flops.log"
    found = runner.run_alone("flops", device="cuda", log=log, seconds=5.0, child="c")
    ((arguments, given, place), timeout) = started
    assert arguments[:-1] == [sys.executable, "-u", "-m", "c", "flops", "cuda"]
    assert (given, place, timeout) == ({"stderr": subprocess.STDOUT, "start_new_session": True}, log, 5.0)
    assert not Path(arguments[-1]).exists()
    assert (found.status, found.reason) == (
        "failed", f"expected a finding, found exit code 3 (\ufffd last). Read {log}."
    )  # fmt: skip


def test_a_group_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may end between the question and the signal."""
    done: list[Any] = []

    def gone(pid: int, number: int) -> None:
        done.append(number)
        raise ProcessLookupError

    process: Any = SimpleNamespace(pid=5, poll=lambda: None if len(done) < 2 else 0, wait=lambda timeout: None)
    monkeypatch.setattr(runner.os, "killpg", gone)
    runner._end(process)
    assert len(done) == 2
