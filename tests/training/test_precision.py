"""Every parameter under `training.precision` has its effect (autocast: tests/training/test_worker.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
import torch._dynamo

from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.base import Objective
from mm_ldlm.training import precision
from mm_ldlm.training.config import PrecisionConfig
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.precision import multiplies_bf16, resolve
from mm_ldlm.training.stepper import Stepper
from mm_ldlm.training.worker import train


@pytest.fixture
def as_found() -> Iterator[None]:
    """Restore the global switches of torch."""
    tf32, limit = torch.backends.cuda.matmul.allow_tf32, torch._dynamo.config.recompile_limit
    yield
    torch.autograd.set_detect_anomaly(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.reset()


class Watched:
    """An objective that notes the switches under which it is called."""

    def __init__(self, inner: Objective, seen: set[tuple[bool, ...]]) -> None:
        self.inner: Any = inner
        self.seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        self.seen.add((torch.is_anomaly_enabled(), *switches))
        return self.inner(*arguments, **named)


@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize(("anomaly", "tf32"), [(True, False), (False, True)])
def test_anomaly_mode_and_tf32_follow_the_parameters(tmp_path: Path, anomaly: bool, tf32: bool) -> None:
    seen: set[tuple[bool, ...]] = set()
    spec = helpers.spec(max_steps=2, precision={"detect_anomaly": anomaly, "tf32": tf32})
    train(spec, root=tmp_path, data=helpers.data(), wrap_objective=lambda inner: Watched(inner, seen))
    assert seen == {(anomaly, tf32, tf32)}


@pytest.mark.usefixtures("as_found")
def test_compiling_gives_one_graph_a_shape_and_mode_and_the_same_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs are counted and run as they are: no compiler is needed, and the numbers are the plain ones."""
    settings: dict[str, Any] = {
        "max_steps": 40,
        "model": {"depth": 1},
        "objective": {"mode": "mixed"},
        "batch": {"examples": 16, "length_multiple": 4, "prefetch": 0},  # three shapes of up to 12 tokens
    }
    graphs: list[torch.fx.GraphModule] = []
    plain = torch.compile

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model, **how: plain(model, backend=backend, **how))
    torch._dynamo.utils.counters.clear()

    train(helpers.spec(precision={"compile": True}, **settings), root=tmp_path / "compiled", data=helpers.data(256))
    train(helpers.spec(**settings), root=tmp_path / "plain", data=helpers.data(256))

    assert len(graphs) == 9, "three shapes in three modes, one more than dynamo's own limit"
    assert not torch._dynamo.utils.counters["graph_break"]
    assert not torch._dynamo.utils.counters["unimplemented"]
    losses = [
        [line["loss"] for line in read_metrics(tmp_path / name / "run/training_log.jsonl")]
        for name in ("compiled", "plain")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


# -- auto --------------------------------------------------------------------------------------------------------------

CPU = Process(RankInfo(), torch.device("cpu"), None)


def cpu_with(monkeypatch: pytest.MonkeyPatch, *instructions: str, gain: float = 2.0) -> None:
    """Pretend a CPU with these instructions, on which a bf16 product is `gain` times as fast as a float32 one."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, **dict.fromkeys(instructions, True)})
    monkeypatch.setattr(precision, "bf16_gain", lambda: gain)


@pytest.mark.parametrize(
    ("instructions", "gain", "kind"),
    [
        ((), 2.0, "fp32"), (("avx512_bf16",), 2.0, "bf16"), (("amx_bf16",), 2.0, "bf16"), (("bf16",), 2.0, "fp32"),
        (("avx512_bf16",), 1.3, "bf16"), (("avx512_bf16",), 1.29, "fp32"), (("amx_bf16", "avx512_bf16"), 0.5, "fp32"),
    ],
)  # fmt: skip
def test_auto_is_bf16_where_the_cpu_is_faster_in_it(
    monkeypatch: pytest.MonkeyPatch, instructions: tuple[str, ...], gain: float, kind: str
) -> None:
    cpu_with(monkeypatch, *instructions, gain=gain)
    assert multiplies_bf16(CPU.device) is (kind == "bf16")
    found = resolve(PrecisionConfig(autocast="auto", tf32=True), CPU)
    assert found == PrecisionConfig(autocast=kind, tf32=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("slow", "gain"), [(torch.bfloat16, 0.25), (torch.float32, 4.0)])
def test_the_gain_is_the_time_of_the_fastest_float32_product_over_that_of_bf16(
    monkeypatch: pytest.MonkeyPatch, slow: torch.dtype, gain: float
) -> None:
    clock, calls = [0.0], []

    def linear(x: torch.Tensor, weight: torch.Tensor) -> None:
        assert x.dtype == weight.dtype
        calls.append(x.dtype)
        disturbed = 5.0 * (len(calls) > 2)  # other processes slow all but the first two calls
        clock[0] += (4.0 if x.dtype == slow else 1.0) + disturbed

    monkeypatch.setattr(precision, "F", SimpleNamespace(linear=linear))
    monkeypatch.setattr(precision, "time", SimpleNamespace(thread_time=lambda: clock[0]))
    assert precision.bf16_gain(tries=3) == gain
    assert calls == [torch.float32, torch.bfloat16] * 3


def test_measuring_the_gain_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert precision.bf16_gain(tries=1) > 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16"])
def test_a_named_precision_is_not_replaced(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    cpu_with(monkeypatch)
    named = PrecisionConfig(autocast=kind)  # type: ignore[arg-type]
    assert resolve(named, CPU) is named


def test_one_rank_without_bf16_is_enough_for_fp32_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_with(monkeypatch, "avx512_bf16")
    monkeypatch.setattr(collectives, "max_", lambda mine: torch.maximum(mine, torch.ones_like(mine)))
    assert resolve(PrecisionConfig(autocast="auto"), CPU).autocast == "fp32"


def test_a_run_with_auto_is_the_run_of_the_precision_that_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for instruction, kind in (("avx512_bf16", "bf16"), ("sse", "fp32")):
        cpu_with(monkeypatch, instruction)
        for name in ("auto", kind):
            folder = tmp_path / f"{name}-{kind}"
            train(helpers.spec(max_steps=3, precision={"autocast": name}), root=folder, data=helpers.data())
            started = read_events(folder / "run/training_log.jsonl", "start")
            assert [event["precision"] for event in started] == [kind]
        auto, named = (helpers.tensors(tmp_path / f"{name}-{kind}" / "run", 3) for name in ("auto", kind))
        assert helpers.same_bits(auto, named)


def test_a_torch_that_does_not_tell_what_a_cpu_can_do_means_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert resolve(PrecisionConfig(autocast="auto"), CPU).autocast == "fp32"


@pytest.mark.parametrize(("kind", "dtype"), [("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_forward_pass_has_the_type_of_its_name(kind: Any, dtype: torch.dtype | None) -> None:
    made = Stepper(
        None, Process(RankInfo(), torch.device("cpu"), None), precision=PrecisionConfig(autocast=kind), scaler=None,  # type: ignore[arg-type]
        seed=0,
    )  # fmt: skip
    with made.autocast():
        assert torch.is_autocast_enabled("cpu") == (dtype is not None)
        assert dtype is None or torch.get_autocast_dtype("cpu") == dtype
    assert not torch.is_autocast_enabled("cpu")
