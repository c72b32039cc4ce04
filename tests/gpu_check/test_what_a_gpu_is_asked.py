"""Sizes, options and comparisons of the checks of kernels, models and precisions where they run on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.extras.gpu_check import compiling, kernels, models, task
from mm_ldlm.extras.gpu_check import precision as precisions
from mm_ldlm.extras.gpu_check.kernels import Compared
from mm_ldlm.extras.gpu_check.outcome import Finding, Setting
from mm_ldlm.training.preflight import Check

GPU = Setting("cuda", Path())

# -- kernels -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is drawn and compared, by shapes alone; nothing is computed."""
    found: list[Any] = []

    def draw(self: Any, number: int, shape: Any, *, dtype: Any = torch.float32, scale: float = 1.0) -> Any:
        found.append((number, shape, dtype, scale))
        return [torch.empty(0, dtype=dtype)] * number

    monkeypatch.setattr(Compared, "draw", draw)
    monkeypatch.setattr(
        Compared, "add", lambda self, name, ours, reference, inputs: found.append((name, ours, reference))
    )
    return found


SMALL_ATTENTION, LARGE_ATTENTION = (
    [(2, 2, 18, 16), (1, 2, 80, 16)],
    [(8, 6, 18, 32), (4, 16, 300, 64), (1, 16, 1032, 64)],
)


@pytest.mark.parametrize(("device", "shapes"), [("cpu", SMALL_ATTENTION), ("cuda", LARGE_ATTENTION)])
def test_attention_is_compared_short_and_long_in_every_type(device: str, shapes: Any, cases: list[Any]) -> None:
    kernels.attention(Setting(device, Path()))
    drawn = [case for case in cases if isinstance(case[0], int)]
    assert drawn == [(3, shape, dtype, 1.0) for shape in shapes for _ in range(3) for dtype in kernels.TOLERANCE]
    names = [case[0] for case in cases if isinstance(case[0], str)]
    kinds = ("plain", "masked", "capped")
    assert names == [f"{kind} of {shape[2]} positions" for shape in shapes for kind in kinds for _ in range(3)]
    if device == "cpu":
        assert max(shape[2] for shape in shapes) > 64 > min(shape[2] for shape in shapes), "a short and a long one"


def test_each_kind_of_attention_is_that_of_the_layer_and_of_its_formula(
    cases: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two texts has 10 of 18 positions; a cap of 20 changes logits of 30."""
    asked: list[Any] = []

    class Layer:
        def __init__(self, *, fused: bool, softcap: float | None) -> None:
            self.made = fused, softcap

        def __call__(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            asked.append((*self.made, None if mask is None else mask[:, 0, 0].sum(-1).tolist()))
            return q

    monkeypatch.setattr(kernels, "Attention", Layer)
    kernels.attention(Setting("cpu", Path()))
    compared = {case[0]: case[1:] for case in cases if isinstance(case[0], str)}
    q = torch.randn(2, 2, 18, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 6
    k, v = q.flip(2), q.flip(3)
    logits = (q @ k.transpose(2, 3)) / 4
    valid = torch.ones(2, 18, dtype=torch.bool)
    valid[0, 10:] = False
    for name, cap, masked in (("plain", None, False), ("masked", None, True), ("capped", 20.0, True)):
        ours, reference = compared[f"{name} of 18 positions"]
        ours(q, k, v)
        weights = logits if cap is None else cap * torch.tanh(logits / cap)
        if masked:
            weights = torch.where(valid[:, None, None], weights, -torch.inf)
        torch.testing.assert_close(reference(q, k, v), weights.softmax(-1) @ v)
    assert asked == [(True, None, None), (True, None, [10, 18]), (True, 20.0, [10, 18])]


@pytest.mark.parametrize(("device", "rows", "vocabulary"), [("cpu", 64, 500), ("cuda", 2048, 30_522)])
def test_the_loss_is_compared_over_the_whole_vocabulary(
    device: str, rows: int, vocabulary: int, cases: list[Any]
) -> None:
    kernels.cross_entropy(Setting(device, Path()))
    assert cases[0] == (1, (rows, vocabulary), torch.float32, 3.0)
    assert [case[0] for case in cases[1:]] == ["token loss"]


@pytest.mark.parametrize(("device", "sizes"), [("cpu", (2, 10, 2, 2, 8)), ("cuda", (8, 512, 8, 16, 64))])
def test_norms_are_compared_at_the_sizes_of_a_model(device: str, sizes: Any, cases: list[Any]) -> None:
    B, L, K, H, E = sizes
    kernels.normalisation(Setting(device, Path()))
    assert [case[:2] for case in cases if isinstance(case[0], int)] == [
        (1, (B, L, H * E)), (2, (B, H * E)), (1, (B, L, 3, H, E)), (1, (B, K, 3, H, E)), (2, (2, H, E))
    ]  # fmt: skip
    assert [case[0] for case in cases if isinstance(case[0], str)] == ["LayerNorm with modulation", "QK-norm and RoPE"]


class Scaled(torch.autograd.Function):
    """x + y with a value and a gradient of y that may be wrong."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, value: float, gradient: Any) -> Any:
        ctx.gradient = gradient
        return value * (x + y)

    @staticmethod
    def backward(ctx: Any, given: Any) -> Any:
        return given, ctx.gradient(given), None, None


def compared(*wrong: tuple[float, Any], dtype: torch.dtype = torch.float32) -> Finding:
    made = Compared(Setting("cpu", Path()))
    for number, (value, gradient) in enumerate(wrong):
        made.add(f"case {number}", lambda x, y, v=value, g=gradient: Scaled.apply(x, y, v, g), torch.add,
                 made.draw(2, (3, 2), dtype=dtype))  # fmt: skip
    return made.finding()


def test_the_worst_of_several_errors_is_reported_and_named() -> None:
    """The value is 10 % too large in the first case, the gradient 50 % in the second, and both in the third."""
    finding = compared((1.1, lambda g: g), (1.0, lambda g: 1.5 * g), (1.1, lambda g: 1.5 * g), (1.0, lambda g: g))
    assert [fault.partition(" within")[0] for fault in finding.faults] == [
        "case 0, fp32: expected the value", "case 1, fp32: expected the gradient of input 2",
        "case 2, fp32: expected the gradient of input 2",
    ]  # fmt: skip
    assert finding.numbers == {"cases": 4, "error fp32": pytest.approx(0.5), "tolerance fp32": 2e-5}
    assert finding.faults[0].endswith(
        "within 2e-05 of the float64 reference, found an error of 0.1. Check the versions of the driver and of torch, "
        "and that TF32 is off."
    )


def test_gradients_that_changed_places_are_found() -> None:
    """Every entry has a weight of its own in the sum."""
    assert compared((1.0, lambda g: g)).faults == ()
    assert "the gradient of input 2" in compared((1.0, lambda g: g.flip(0))).faults[0]


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")]
)
def test_errors_have_the_names_and_tolerances_of_their_types(dtype: torch.dtype, name: str) -> None:
    numbers = compared((1.0, lambda g: g), dtype=dtype).numbers
    assert list(numbers) == ["cases", f"error {name}", f"tolerance {name}"]
    assert numbers[f"tolerance {name}"] == kernels.TOLERANCE[dtype]


def test_inputs_are_the_same_in_every_run_and_are_computed_on_the_device() -> None:
    first, second = (Compared(Setting("cpu", Path())).draw(1, (5,))[0] for _ in range(2))
    assert torch.equal(first, second)
    devices: list[str] = []

    def ours(x: Any) -> Any:
        devices.append(x.device.type)
        raise KeyboardInterrupt

    made = Compared(Setting("meta", Path()))
    with pytest.raises(KeyboardInterrupt):
        made.add("x", ours, torch.neg, made.draw(1, (2,)))
    assert devices == ["meta"]


# -- models and precision ----------------------------------------------------------------------------------------------


def test_every_kind_of_step_and_every_loss_of_an_objective_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses are those of one text or position, and those without a weight are left out."""
    kept: list[Any] = []
    monkeypatch.setattr(models, "perturb", kept.append)
    spec = task.spec(task.tiny_mmdit(), {"kind": "multimodal", "mode": "mixed"}, device="cpu")
    losses, gradients = models.results(Setting("cpu", tmp_path), spec)
    (parts,) = kept
    stepper = parts.stepper
    assert len(stepper.objective.kinds) > 1
    assert (
        {name.split()[0] for name in losses} == {name.split()[0] for name in gradients} == set(stepper.objective.kinds)
    )
    assert stepper.parallel.module.training
    batch = parts.loader.make(next(parts.loader.plan.first(1)))[0]
    for kind in stepper.objective.kinds:
        found = stepper.losses(batch, kind=kind, draw=0, step=0)
        named = {name.split()[1] for name in losses if name.split()[0] == kind}
        assert named == {name for name in found if name in stepper.objective.weights}
        for name in named:
            value, count = found[name]
            torch.testing.assert_close(losses[f"{kind} {name}"], (value / count).detach())
    assert all(value.dtype == torch.float32 for value in (*losses.values(), *gradients.values()))


def test_an_error_of_a_model_is_shown_with_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("odd")

    monkeypatch.setattr(models, "MODELS", SimpleNamespace(known=["dit"]))
    monkeypatch.setattr(models, "partner", fail)
    found = models.models(GPU)
    assert found == Finding(
        {"models": 0, "loss error": 0.0, "gradient error": 0.0, "loss tolerance": 1e-4, "gradient tolerance": 1e-3},
        ("dit: ValueError: odd",),
    )


def test_half_precision_is_trained_on_padded_texts_without_checkpoints_and_overflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, **more: Any) -> Iterator[Any]:
        opened.append(more)
        if "wrap_objective" in more:
            raise KeyboardInterrupt
        yield SimpleNamespace(train=lambda steps: 1.0, log=SimpleNamespace(losses=lambda: [1.0]))

    checked: list[Any] = []
    monkeypatch.setattr(precisions, "session", session)
    monkeypatch.setattr(
        precisions, "check_sanity", lambda spec, *, root, config, data: checked.append(data) or [Check("a", "good")]
    )
    setting = Setting("cpu", tmp_path)
    precisions.bf16(setting)
    assert opened == [{}, {}]
    assert len(set(checked[0].train.lengths.tolist())) > 1
    with pytest.raises(KeyboardInterrupt):
        precisions.fp16(setting)
    given = opened[-1]
    assert given["checkpoints"] is True
    made = given["wrap_objective"]("inner")
    assert (made.inner, made.fault, made.step, made.rank) == ("inner", "overflow", 3, 0)


@pytest.mark.parametrize(("found", "fits"), [(0.09991, True), (0.10009, True), (0.10012, False)])
def test_small_losses_are_compared_relative_to_their_size(
    found: float, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference of 0.00012 is 1.2e-3 of a loss of 0.1."""
    losses = {False: [0.1], True: [found]}
    specs: list[Any] = []

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, *, data: Any) -> Iterator[Any]:
        specs.append(spec)
        chosen = losses[spec.training.precision.compile]
        yield SimpleNamespace(train=lambda steps: 1.0, log=SimpleNamespace(losses=lambda: chosen))

    monkeypatch.setattr(compiling, "session", session)
    assert (compiling.compiled(Setting("cpu", tmp_path)).faults == ()) == fits
    for spec in specs:
        assert (spec.objective.kind, spec.objective.mode, spec.training.batch.length_multiple) == (
            "multimodal",
            "l2t",
            4,
        )
