"""Parts of the checks that must notice a fault: comparisons of tensors, planted faults, processes, sizes of a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.extras.gpu_check import child, kernels, models, rank, report, sessions, task, throughput
from mm_ldlm.extras.gpu_check.outcome import Finding, Outcome, Setting
from mm_ldlm.extras.gpu_check.registry import Entry
from mm_ldlm.extras.gpu_check.runner import run_alone

NAN, INF = math.nan, math.inf
ONE = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}

# -- comparisons -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.0),
        ({"a": [1.0, 2.5]}, 0.5),
        ({"a": [0.0, 2.5]}, 1.0),
        ({"a": [1.0, 2.5], "b": [7]}, 4.0),
        ({"a": [1.0, NAN]}, INF),
        ({"a": [NAN, 9.0]}, INF),
        ({"a": [1.0, INF]}, INF),
        ({"a": [1.0, NAN], "b": [4]}, INF),
        ({"a": [1.0, 2.5], "b": None}, INF),
        ({"a": [1.0, 2.0, 3.0]}, INF),
        ({"a": [[1.0, 2.0]]}, INF),
        ({"c": [1.0]}, INF),
    ],
)
def test_the_largest_difference_of_tensors_is_infinite_where_it_is_no_number(changes: Any, expected: float) -> None:
    other = {**ONE, **{name: None if value is None else torch.tensor(value) for name, value in changes.items()}}
    other = {name: value for name, value in other.items() if value is not None}
    assert task.largest_difference(ONE, other) == task.largest_difference(other, ONE) == expected


def test_tensors_with_equal_nans_differ() -> None:
    """A weight that is NaN on both sides is no proof that a run was resumed to the bit."""
    broken = {"a": torch.tensor([NAN, 1.0])}
    assert task.largest_difference(broken, dict(broken)) == INF


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 5.0], [1.0, 4.0], 0.25), ([3.0, -4.0], [1.0, -4.0], 0.5),
     ([NAN], [1.0], INF), ([INF], [1.0], INF), ([1e-30], [0.0], 1.0)],
)  # fmt: skip
def test_a_relative_error_is_that_of_the_largest_wanted_value(found: Any, wanted: Any, expected: float) -> None:
    assert kernels.relative_error(torch.tensor(found), torch.tensor(wanted)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wrong", "what"), [((1.0, 1.0), None), ((2.0, 1.0), "the value"), ((1.0, 2.0), "the gradient of input 2")]
)
def test_a_kernel_is_named_with_the_gradient_that_is_wrong(wrong: tuple[float, float], what: str | None) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return wrong[0] * (x + y)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient, wrong[1] * gradient

    before = torch.backends.cuda.matmul.allow_tf32
    seen = []
    compared = kernels.Compared(Setting("cpu", Path()))

    def ours(x: Any, y: Any) -> Any:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return Scaled.apply(x, y)

    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        for number in range(6):
            compared.add(f"sum {number}", ours, torch.add, compared.draw(2, (3, 2)))
        assert torch.backends.cuda.matmul.allow_tf32, "restored"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    found = compared.finding()
    assert seen == [False] * 6
    assert found.numbers["cases"] == 6
    assert [fault.partition(" within")[0] for fault in found.faults] == (
        [] if what is None else [f"sum {number}, fp32: expected {what}" for number in range(4)]
    )
    assert (found.numbers["error fp32"] > found.numbers["tolerance fp32"]) is (what is not None)  # type: ignore[operator]


GOOD = ({"x": torch.tensor(2.0), "y": torch.tensor(4.0)}, {"p": torch.tensor([10.0, 1.0]), "q": torch.tensor([2.0])})


@pytest.mark.parametrize(
    ("losses", "gradients", "expected"),
    [
        ({}, {}, (0.0, 0.0)),
        ({"y": 5.0}, {}, (0.25, 0.0)),
        ({"x": NAN}, {}, (INF, 0.0)),
        ({}, {"q": [3.0]}, (0.0, 0.1)),
        ({"x": 1.0}, {"p": [9.0, 3.0]}, (0.5, 0.2)),
        ({}, {"q": [NAN]}, (0.0, INF)),
        ({}, {"p": [10.0, INF]}, (0.0, INF)),
    ],
)
def test_errors_of_a_model_are_those_of_its_worst_loss_and_its_worst_gradient(
    losses: Any, gradients: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of gradients are relative to the largest entry of all of them."""
    other = ({**GOOD[0], **{name: torch.tensor(value) for name, value in losses.items()}},
             {**GOOD[1], **{name: torch.tensor(value) for name, value in gradients.items()}})  # fmt: skip
    asked = []

    def results(setting: Setting, spec: Any) -> Any:
        asked.append(spec.training.device)
        return GOOD if len(asked) == 1 else other

    monkeypatch.setattr(models, "results", results)
    model = {"kind": "dit", "dim": 16, "depth": 1, "heads": 2}
    found = models.compare(Setting("cuda", Path()), model, "text_diffusion", task.TINY)
    assert (found, asked) == (pytest.approx(expected), ["cpu", "cuda"])


# -- planted faults and sessions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nan", "overflow"])
@pytest.mark.parametrize(("step", "rank_", "hit"), [(3, 0, True), (2, 0, False), (4, 0, False), (3, 1, False)])
def test_a_fault_is_planted_at_its_step_and_rank_alone(
    kind: str, step: int, rank_: int, hit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inner:
        weights, name = {"loss": 1.0}, "inner"

        def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
            return {"other": (model * 5, 1), "loss": (model * 2, 7)}

    monkeypatch.setattr(task.collectives, "rank", lambda: rank_)
    faulty = task.Faulty(Inner(), kind=kind, step=3, rank=0)
    assert faulty.name == "inner"
    x = torch.tensor(3.0, requires_grad=True)
    losses = faulty(x, None, None, kind="k", step=step)
    value, count = losses["loss"]
    value.backward()
    assert (float(losses["other"][0].detach()), count) == (15.0, 7), "one loss has the fault"
    value = value.detach()
    assert math.isnan(float(value)) == (hit and kind == "nan")
    assert x.grad is not None
    assert bool(torch.isfinite(x.grad)) is not hit
    if not hit or kind == "overflow":
        assert float(value) == 6.0, "an overflow is in the gradients alone"


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_session_writes_checkpoints_where_they_are_asked_for(checkpoints: bool, tmp_path: Path) -> None:
    spec = task.spec(task.tiny_mmdit(dim=8, depth=1), task.MULTIMODAL, device="cpu", max_steps=2,
                     checkpoint={"every_steps": 1, "background": False})  # fmt: skip
    with sessions.session(spec, tmp_path, checkpoints=checkpoints) as run:
        assert run.train(1) > 0
        before = run.tensors()
        run.train(1)
        assert {name.split()[0] for name in before} == {"model", "ema", "optimizer"}
        assert task.largest_difference(before, run.tensors()) > 0, "copies of the values"
        assert (run.parts.state.step, len(run.log.losses())) == (2, 2)
    assert bool(list(tmp_path.rglob("step-*"))) is checkpoints


def test_deterministic_kernels_are_used_inside_alone() -> None:
    for before in ((False, False), (True, True)):
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        with contextlib.suppress(ValueError), rank.deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            raise ValueError
        after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        assert after == before
    torch.use_deterministic_algorithms(False)


# -- processes and report ----------------------------------------------------------------------------------------------


def test_what_a_check_started_ends_with_it_and_its_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_child.py").write_text(
        "import os, pathlib, subprocess, sys, time\n"
        f"place = pathlib.Path({str(tmp_path)!r})\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "(place / 'pids').write_text(f'{os.getpid()} {grandchild.pid} {sys.argv[3]}')\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    found = run_alone("flops", device="cpu", log=tmp_path / "a" / "flops.log", seconds=1.0, child="slow_child")
    assert (found.status, found.seconds >= 1.0) == ("failed", True)
    *pids, folder = (tmp_path / "pids").read_text().split()
    assert not Path(folder).exists()
    for pid in map(int, pids):
        for _ in range(200):
            if not alive(pid):
                break
            time.sleep(0.02)
        assert not alive(pid), "the process group ends, also what the check started"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("fault", [False, True])
def test_a_child_writes_its_finding_as_plain_json(fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Setting] = []

    def check(setting: Setting) -> Finding:
        seen.append(setting)
        if fault:
            raise ValueError("first line\nsecond line")
        return Finding({"error": NAN, "tolerance": 0.5, "passed": True}, ("a fault",), "left out")

    monkeypatch.setattr(Entry, "load", lambda self: check)
    monkeypatch.setattr(child, "die_with_parent", lambda: None)
    child.main("flops", "cuda", str(tmp_path))
    assert seen == [Setting("cuda", tmp_path)]
    assert json.loads((tmp_path / "finding.json").read_text()) == (
        {"numbers": {}, "faults": ["expected numbers, found ValueError: first line"], "left_out": ""}
        if fault
        else {"numbers": {"error": "nan", "tolerance": 0.5, "passed": True}, "faults": ["a fault"],
              "left_out": "left out"}
    )  # fmt: skip


def test_the_report_of_a_machine_with_gpus() -> None:
    machine = {"devices": 3, "device": "H", "memory_gib": 85.0, "torch": "2.9", "cuda": "12.8", "nccl": "2.27",
               "mm_ldlm": "0.1"}  # fmt: skip
    outcomes = [
        Outcome("flops", "passed", {"error": 0.5}, "", 12.4), Outcome("bf16", "left out", {}, "No | such\ndevice.", 0.0)
    ]  # fmt: skip
    day = datetime.date(2026, 3, 4)
    assert report.markdown(outcomes, machine, command="run it", today=day) == (
        "## GPU check on 3 × H (March 2026)\n\n"
        "`run it`; 3 × H, 85.0 GiB each, torch 2.9, CUDA 12.8, NCCL 2.27, mm_ldlm 0.1.\n\n"
        "| check | result | measured | seconds |\n| --- | --- | --- | --- |\n"
        "| `flops` | passed | error 0.5 | 12 |\n| `bf16` | left out | No \\| such device. | 0 |\n"
    )
    bare = {**machine, "devices": 0, "device": "CPU", "memory_gib": None, "cuda": None, "nccl": None}
    text = report.markdown([], bare, command="c", today=day)
    assert "`c`; CPU, torch 2.9, CUDA none, NCCL none, mm_ldlm 0.1." in text


def test_the_line_of_an_outcome() -> None:
    made = Outcome("flops", "failed", {"error": 0.12345, "ranks": 2, "ok": True}, "Why.", 12.6)
    assert str(made) == "✗ flops (13 s): error 0.123, ranks 2, ok yes\n    → Why."
    assert str(dataclasses.replace(made, status="passed", reason="")) == "✓ flops (13 s): error 0.123, ranks 2, ok yes"
    assert str(dataclasses.replace(made, status="left out", numbers={})) == "– flops (13 s): Why."


# -- sizes of a GPU ----------------------------------------------------------------------------------------------------

STATE = throughput.STATE_BYTES * throughput.sum_of_parameters(throughput.MMDIT_892M, throughput.SHAPE_892M)


@pytest.mark.parametrize(("fraction", "measured"), [(1.19, False), (1.21, True)])
def test_the_large_model_is_measured_where_its_state_fits(
    fraction: float, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(throughput, "choose_device", torch.device)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=fraction * STATE)
    )
    monkeypatch.setattr(throughput, "measure", lambda *given, **named: asked.append((given[1:], named)) or Finding())
    gpu = Setting("cuda", Path())
    found = throughput.memory_892m(gpu)
    throughput.throughput(gpu)
    middle = ((throughput.MIDDLE, throughput.SHAPE_MIDDLE), {"examples": 64, "accumulation": 1, "steps": 20})
    large = ((throughput.MMDIT_892M, throughput.SHAPE_892M), {"examples": 8, "accumulation": 2, "steps": 6})
    assert asked == ([large, middle] if measured else [middle])
    if not measured:
        gib = STATE / 2**30
        assert found.numbers == pytest.approx({"device GiB": fraction * gib, "state GiB": gib})
        assert f"at least {1.2 * gib:.0f} GiB" in found.left_out
        assert f"a device of {fraction * gib:.0f} GiB" in found.left_out


def test_too_little_memory_is_a_fault_that_names_the_texts_of_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(throughput, "session", refuse)
    monkeypatch.setattr(throughput, "choose_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=40 * 2**30))
    found = throughput.measure(
        Setting("cpu", Path()), throughput.SMALL, task.TINY, examples=8, accumulation=2, steps=3
    )  # fmt: skip
    assert found.numbers == {"device GiB": 40.0}
    assert found.faults[0].startswith("expected 4 texts of 12 tokens to fit into 40 GiB")
