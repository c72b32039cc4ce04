"""Ranks, the task that is trained, and a measurement on a GPU: what each of them is given and what it returns."""

from __future__ import annotations

import contextlib
import dataclasses
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.distributed import failure, logs, process
from mm_ldlm.extras.gpu_check import compiling, extraction, flops, precision, rank, ranks, sessions, task, throughput
from mm_ldlm.extras.gpu_check.outcome import Setting
from mm_ldlm.training.config import PrecisionConfig

# -- ranks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, {"kind": "nan", "step": 2, "rank": 1}])
def test_a_case_is_trained_with_deterministic_kernels_and_its_fault(
    fault: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def train(spec: Any, *, root: Path, data: Any, wrap_objective: Any) -> str:
        seen.append((spec, root, torch.are_deterministic_algorithms_enabled(), len(data.train.lengths)))
        if fault is None:
            assert wrap_objective is None
        else:
            made = wrap_objective("the objective")
            seen.append((made.inner, {"kind": made.fault, "step": made.step, "rank": made.rank}))
        return "trained"

    monkeypatch.setattr(rank, "train", train)
    spec = task.spec(task.tiny_mmdit(), task.MULTIMODAL, device="cpu")
    assert rank.train_case(spec, root=tmp_path, fault=fault) == "trained"
    assert seen == [(spec, tmp_path, True, 64)] + ([] if fault is None else [("the objective", fault)])
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("me", [0, 1, 2])
@pytest.mark.parametrize("broken", [None, "sum_", "max_", "broadcast", "gather_texts"])
def test_every_operation_of_three_ranks_is_compared_with_its_own_result(
    me: int, broken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank holds the number that the check gives it: its own plus one, its own, its own plus five."""
    gathered: list[str] = []

    def sum_(x: torch.Tensor) -> torch.Tensor:
        return x.fill_(1 + 2 + 3) if float(x[0]) == me + 1 and len(x) == 1000 else x

    def gather(text: str, *, device: torch.device) -> list[str]:
        gathered.append(text)
        if not text.startswith("rank"):
            return [text, "", text]
        return [f"rank {number} " * (number + 1) for number in range(3)]

    faked: dict[str, Any] = {
        "rank": lambda: me, "world": lambda: 3, "active": lambda: True, "barrier": lambda: None, "sum_": sum_,
        "max_": lambda x: x.fill_(2) if float(x[0]) == me else x, "gather_texts": gather,
        "broadcast": lambda x: x.fill_(5) if float(x[0]) == me + 5 else x,
    }  # fmt: skip
    if broken == "gather_texts":
        faked[broken] = lambda text, *, device: gather(text, device=device)[::-1]
    elif broken is not None:
        faked[broken] = lambda x: x.fill_(-1)
    monkeypatch.setattr(rank, "collectives", SimpleNamespace(**faked))
    found = rank.check_collectives(SimpleNamespace(device=torch.device("cpu"), backend="b"), megabytes=0.001)  # type: ignore[arg-type]
    named = {"sum_": "sum", "max_": "maximum", "broadcast": "broadcast", "gather_texts": "gather"}
    assert found.pop("gigabytes_per_second") > 0
    assert found == {"wrong": [named[broken]] if broken else [], "world": 3, "backend": "b", "active": True}
    assert gathered == [f"rank {me} " * (me + 1), named[broken] if broken else ""]


def test_a_rank_that_fails_is_tied_to_its_launcher_and_leaves_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(failure, "record", done.append)
    monkeypatch.setattr(process, "die_with_parent", lambda: done.append("tied"))
    monkeypatch.setattr(logs, "append_output", lambda: done.append("logged"))
    monkeypatch.setattr(sys, "argv", ["rank", str(tmp_path / "none.json")])
    with pytest.raises(FileNotFoundError) as error:
        runpy.run_path(str(rank.__file__), run_name="__main__")
    assert done == ["tied", "logged", error.value]


def test_each_file_of_two_checkpoints_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {("a", "3", "model"): 1.0, ("b", "7", "model"): 1.5, ("a", "3", "ema"): 2.0, ("b", "7", "ema"): 1.0,
              ("a", "3", "optimizer"): 4.0, ("b", "7", "optimizer"): 4.0}  # fmt: skip
    monkeypatch.setattr(
        ranks.folder, "find", lambda path, *, which: path.relative_to(tmp_path).parent / which
    )  # fmt: skip
    monkeypatch.setattr(
        ranks.folder, "tensors", lambda path, name: {"x": torch.tensor([values[(*path.parts, name.partition(".")[0])]])}
    )
    found = ranks._difference(tmp_path / "a", 3, tmp_path / "b", 7)
    assert found == {"model": 0.5, "ema": 1.0, "optimizer": 0.0}


# -- the task ----------------------------------------------------------------------------------------------------------


def test_every_field_of_the_task_belongs_to_its_row() -> None:
    made = task.Examples(task.TINY, 130)
    rows = np.array([5, 69, 12, 128])
    lengths = made.lengths[rows]
    assert lengths[0] == lengths[1], "row 69 repeats row 5"
    ids = made.tokens(rows, length=12)
    kept = np.arange(12) < lengths[:, None]
    assert (ids[~kept] == 0).all()
    everything = made.tokens(np.arange(64), length=12)
    real = everything[everything > 0]
    assert (real.min(), real.max()) == (3, task.TINY.vocab_size - 1), "neither padding nor a mask"
    states = made.field("token_states", rows)
    assert (states.shape, states.dtype) == ((4, lengths.max(), task.STATE_DIM), np.float32)
    assert ((states != 0).all(2) == kept[:, : lengths.max()]).all()
    latents, images, labels = (made.field(name, rows) for name in ("latents", "images", "labels"))
    assert (latents.shape, images.shape, labels.shape) == ((4, 8), (4, 16), (4, 1))
    assert 0 <= images.min() < images.max() < 1
    for values in (ids, states, latents, images, labels):
        assert (values[0] == values[1]).all()
    assert (latents[0] != latents[2]).all()
    assert set(made.field("labels", np.arange(64))[:, 0].tolist()) == set(range(task.CLASSES))


def test_the_texts_of_the_extraction_are_different_and_the_same_again() -> None:
    texts = extraction.sentences(400)
    assert texts == extraction.sentences(400)
    assert [text.split()[0] for text in texts] == [str(number) for number in range(400)]
    assert {len(text.split()) - 1 for text in texts} == set(range(1, 13))


def test_a_session_logs_every_step_and_replaces_what_it_is_given() -> None:
    spec = task.spec(
        task.tiny_mmdit(), task.MULTIMODAL, device="cpu", precision={"tf32": True}, max_steps=5, log_every=2
    )
    plain = task.spec(task.tiny_mmdit(), task.MULTIMODAL, device="cpu").training
    assert (plain.log_every, plain.diagnose_every, plain.preflight, plain.device) == (1, 0, False, "cpu")
    assert (plain.checkpoint.every_steps, plain.checkpoint.background) == (None, False)
    assert (spec.training.log_every, spec.training.max_steps, spec.training.precision.tf32) == (2, 5, True)
    assert dataclasses.replace(spec, training=plain) == task.spec(task.tiny_mmdit(), task.MULTIMODAL, device="cpu")
    recorder = task.Recorder()
    recorder.metrics(3, {"loss": 2.0, "other": 1})
    recorder.metrics(4, {"loss": 1.0})
    recorder.event(4, "skip", reason="why")
    assert recorder.losses() == [2.0, 1.0]
    assert recorder.lines == [{"step": 3, "loss": 2.0, "other": 1}, {"step": 4, "loss": 1.0}]
    assert recorder.events == [{"step": 4, "event": "skip", "reason": "why"}]


# -- a measurement on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("peak", "faults"), [(1e15, 0), (1.0, 1), (None, 0)])
def test_a_measurement_on_a_gpu_has_its_units(
    peak: float | None, faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six texts of 12 tokens in half a second; the vocabulary head is computed at all 72 positions."""
    done: list[Any] = []
    gpu = torch.device("cuda", 1)

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, *, data: Any) -> Iterator[Any]:
        training = spec.training
        done.append((training.precision.autocast, training.max_steps, training.batch.examples,
                     training.batch.accumulation, training.optimizer.clip, spec.shape))  # fmt: skip
        assert set(data.train.lengths.tolist()) == {12}, "no padding"
        lines = [{"masking_rate": 0.5}]
        log = SimpleNamespace(losses=lambda: [2.0, 1.0], lines=lines)
        yield SimpleNamespace(train=lambda steps: done.append(steps) or 0.5 * steps, log=log)

    monkeypatch.setattr(throughput, "session", session)
    monkeypatch.setattr(throughput, "choose_device", lambda name: gpu)
    monkeypatch.setattr(throughput, "peak_flops", lambda device: peak if device == gpu else 0.0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: done.append(("reset", device)))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=5 * 2**30))
    found = throughput.measure(
        Setting("cuda", tmp_path), throughput.SMALL, task.TINY, examples=6, accumulation=2, steps=4
    )
    assert done == [("bf16", 6, 6, 2, 0.5, task.TINY), ("reset", gpu), 2, 4]
    operations = 3 * flops.forward_flops(
        throughput.SMALL, task.TINY, examples=6, length=12, logits=72, heads=("text", "length")
    )
    assert found.numbers == pytest.approx({
        "parameters": throughput.sum_of_parameters(throughput.SMALL, task.TINY), "tokens per second": 144.0,
        "ms per step": 500.0, "TFLOP per second": operations / 0.5 / 1e12,
        "peak TFLOP per second": None if peak is None else peak / 1e12,
        "utilisation": None if peak is None else operations / 0.5 / peak, "memory GiB": 3.0, "device GiB": 5.0,
    })  # fmt: skip
    assert len(found.faults) == faults


@pytest.mark.parametrize(("utilisation", "fits"), [(0.0, False), (1e-9, True), (1 - 1e-9, True), (1.0, False)])
def test_a_utilisation_lies_between_nothing_and_everything(utilisation: float, fits: bool) -> None:
    assert (throughput.implausible([1.0], utilisation) == []) is fits


# -- what is trained ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "size"), [("cpu", (32, 1, 2)), ("cuda", (512, 6, 8))])
def test_a_model_is_compiled_in_float32(
    device: str, size: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[Any] = []

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, *, data: Any) -> Iterator[Any]:
        specs.append(spec)
        assert folder == tmp_path
        yield SimpleNamespace(train=lambda steps: 1.0, log=SimpleNamespace(losses=lambda: [1.0]))

    monkeypatch.setattr(compiling, "session", session)
    compiling.compiled(Setting(device, tmp_path))
    assert [spec.training.precision for spec in specs] == [PrecisionConfig(compile=chosen) for chosen in (False, True)]
    for spec in specs:
        assert (spec.model.dim, spec.model.depth, spec.model.heads) == size
        assert spec.shape == (task.TINY if device == "cpu" else compiling.SHAPE)
        assert (spec.training.device, spec.training.max_steps, spec.training.batch.examples) == (device, 6, 16)


@pytest.mark.parametrize("check", ["bf16", "fp16"])
@pytest.mark.parametrize(("device", "size"), [("cpu", (32, 2)), ("cuda", (256, 4))])
def test_the_losses_of_a_half_precision_are_those_of_six_steps_beside_float32(
    check: str, device: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, **_: Any) -> Iterator[Any]:
        losses = [2.0] * 5 + [1.0 if spec.training.precision.autocast == "fp32" else 1.25]
        trained.append((spec.training.precision, (spec.model.dim, spec.model.depth), spec.training.device, folder))
        yield SimpleNamespace(train=trained.append, log=SimpleNamespace(losses=lambda: losses))

    monkeypatch.setattr(precision, "session", session)
    found = [precision._losses(Setting(device, tmp_path), name) for name in ("fp32", check)]
    assert trained == [
        (PrecisionConfig(), size, device, tmp_path), 6,
        (PrecisionConfig(autocast=check), size, device, tmp_path), 6,  # type: ignore[arg-type]
    ]  # fmt: skip
    error, (fault,) = precision._deviation(dict(zip(("fp32", check), found, strict=True)), check)
    assert error == 0.25
    assert fault.startswith(
        f"expected the losses of 6 steps in {check} within 0.05 of float32, found 2, 2, 2, 2, 2, 1.25 instead of 2, 2, "
        "2, 2, 2, 1. Train in float32"
    )


def test_a_session_waits_for_the_device_before_and_after_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    clock = iter([10.0, 13.5])
    gpu = torch.device("cuda", 1)
    parts: Any = SimpleNamespace(process=SimpleNamespace(device=gpu), state=SimpleNamespace(step=4))
    monkeypatch.setattr(torch.cuda, "synchronize", done.append)
    monkeypatch.setattr(sessions.loop, "run", lambda given, *, pause_at: done.append((given is parts, pause_at)))
    monkeypatch.setattr(
        sessions, "time", SimpleNamespace(perf_counter=lambda: done.append("time") or next(clock))
    )  # fmt: skip
    assert sessions.Session(parts, task.Recorder()).train(3) == 3.5
    assert done == [gpu, "time", (True, 7), gpu, "time"]
