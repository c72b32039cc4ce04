"""Statistics of gradients that do not depend on the loss scale or on which tokens occurred."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from mm_ldlm.app.tracking.names import of_training
from mm_ldlm.training.gradients import append, gradient_statistics

from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training import diagnostics
from mm_ldlm.training.diagnosis import LARGEST_NORM, Findings
from mm_ldlm.training.diagnostics import Diagnostics, part_of, underflow


def numbers(*, scale: float | None, weights: float | None = None, update: float | None = None) -> dict[str, float]:
    """One detailed step of a model whose true gradients are all 0.5, as the backward pass leaves them.

    Args:
        weights: value of all weights before the step; those of a new model by default.
        update: what the step adds to each weight; no step by default.
    """
    spec = helpers.spec()
    model = spec.model.build(spec.shape, generator=torch.Generator().manual_seed(0))
    root = TrainableRoot(model, spec.objective.build(spec.shape))
    for parameter in root.parameters():
        parameter.grad = torch.full_like(parameter, 0.5 * (scale or 1.0))
        if weights is not None:
            parameter.data.fill_(weights)
    scaler: Any = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    watch = Diagnostics(1, root, compiled=False, scaler=scaler, device=torch.device("cpu"))
    watch.before_update()
    for parameter in root.parameters():
        parameter.data += update or 0.0
    watch.after_update(1, applied=update is not None)
    return watch.take()


def test_parameters_of_blocks_are_reported_by_block_and_stream() -> None:
    assert part_of("model.blocks.3.streams.1.qkv.weight", "backbone") == "block3.stream1"
    assert part_of("model.blocks.0.mlp.up.weight", "backbone") == "block0"
    assert part_of("model.text_head.bias", "text_head") == "text_head"
    assert part_of("objective.scale", "objective") == "objective"


def test_gradient_norms_do_not_grow_with_the_loss_scale() -> None:
    plain, scaled = numbers(scale=None), numbers(scale=2.0**16)
    norms = [name for name in plain if name.startswith("grad_norm/")]
    assert norms
    assert {name: scaled[name] for name in norms} == pytest.approx({name: plain[name] for name in norms})
    assert (scaled["fp16_scale"], scaled["fp16_underflow"]) == (2.0**16, 0.0)


def test_update_ratios_are_those_to_the_weights_before_the_step_and_weights_of_zero_have_none() -> None:
    found = numbers(scale=None, weights=0.5, update=0.25)
    ratios = {name: value for name, value in found.items() if name.startswith("update_ratio/")}
    assert len(ratios) > 5
    assert ratios == pytest.approx(dict.fromkeys(ratios, 0.5))
    found = numbers(scale=None, weights=0.0, update=0.25)
    assert not any(name.startswith("update_ratio/") for name in found)
    assert len([name for name in found if name.startswith("param_norm/")]) >= len(ratios)


def test_the_peak_of_the_memory_is_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrusage", lambda who: SimpleNamespace(ru_maxrss=3 * 2**19))  # KiB
    assert numbers(scale=None)["memory_peak_gib"] == 1.5


def test_underflow_is_a_fraction_of_what_took_part() -> None:
    table = torch.zeros(10, 4)  # only words 2 and 5 occurred, and one of their eight entries is lost
    table[2], table[5] = 1.0, 1.0
    table[5, 3] = 0.0
    assert float(underflow([table])) == pytest.approx(1 / 8)
    assert float(underflow([table, torch.ones(8)])) == pytest.approx(1 / 16)
    assert float(underflow([torch.zeros(3, 3)])) == 0.0


def tiny() -> TrainableRoot:
    spec = helpers.spec()
    return TrainableRoot(
        spec.model.build(spec.shape, generator=torch.Generator().manual_seed(0)), spec.objective.build(spec.shape)
    )


def test_every_statistic_of_a_part_is_its_formula() -> None:
    """All weights are 2, all gradients 0.5 but one 0 in each tensor, and the update adds 0.25 to every weight."""
    root = tiny()
    tensors: dict[str, list[torch.nn.Parameter]] = {}
    for name, tag, parameter in diagnostics.tagged_parameters(root):
        tensors.setdefault(part_of(name, tag.name), []).append(parameter)
        parameter.data.fill_(2.0)
        parameter.grad = torch.full_like(parameter, 0.5)
        parameter.grad.view(-1)[0] = 0.0
    watch = Diagnostics(1, root, compiled=False, scaler=None, device=torch.device("cpu"))
    watch.before_update()
    for parameter in root.parameters():
        parameter.data += 0.25
    watch.after_update(1, applied=True)
    found = watch.take()
    assert len(tensors) > 5
    for part, parameters in tensors.items():
        count = sum(parameter.numel() for parameter in parameters)
        assert {name: found[f"{name}/{part}"] for name in PER_PART} == pytest.approx({
            "param_norm": 2 * count**0.5, "grad_norm": 0.5 * (count - len(parameters)) ** 0.5,
            "grad_zeros": len(parameters) / count, "grad_nonfinite": 0.0, "update_ratio": 0.25 / 2,
        }, rel=1e-5), part  # fmt: skip
    assert {of_training(name).partition("/")[0] for name in found} == {"5_diagnostics"}
    assert watch.take() == {}, "a line has the numbers of its own step"


PER_PART = ("param_norm", "grad_norm", "grad_zeros", "grad_nonfinite", "update_ratio")


def test_attention_logits_and_activations_are_the_largest_of_the_step() -> None:
    watch = Diagnostics(1, tiny(), compiled=False, scaler=None, device=torch.device("cpu"))
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4)
    q[..., 0, 0], k[0, 0, :, 0] = 3.0, torch.tensor([2.0, -5.0, 40.0])  # logits 3, -7.5 and 60, the last one of a pad
    mask = torch.tensor([True, True, False])[None, None, None]
    watch._attention("blocks.3.attention")(None, (q, k, k, mask), q)
    watch._attention("blocks.1.attention")(None, (q, k, k, None), q)
    for scale in (1.0, 0.1):  # of several micro-batches the largest
        watch._activation(2)(None, (), (scale * torch.full((2, 5), 3.0), scale * torch.full((7,), 1.0)))
        watch._activation(0)(None, (), scale * torch.full((2,), -4.0))
    found = {name: float(value) for name, value in watch._seen.items()}
    assert {of_training(name).partition("/")[0] for name in found} == {"5_diagnostics"}
    assert found == pytest.approx({
        "attention_logit_max/block3": 7.5, "attention_logit_max/block1": 60.0,
        "activation_rms/block2": ((9 + 1) / 2) ** 0.5, "activation_rms/block0": 4.0,
    })  # fmt: skip


def test_the_operations_of_a_token_are_three_forward_passes_of_the_mean_kind() -> None:
    """A product of (m, k) and (k, n) has 2·m·k·n operations; the two kinds have 60 and 180, the batch has 6 tokens."""

    def losses(batch: Any, *, kind: str, draw: int, step: int) -> None:
        assert not torch.is_grad_enabled()
        torch.ones(2, 3) @ torch.ones(3, {"a": 5, "b": 15}[kind])

    batch = SimpleNamespace(tokens_BL=torch.zeros(2, 3), to=lambda device: None)
    stepper: Any = SimpleNamespace(objective=SimpleNamespace(kinds=("a", "b")), losses=losses)
    for compiled, expected in ((False, 3 * (60 + 180) / (2 * 6)), (True, 0.0)):
        watch = Diagnostics(1, tiny(), compiled=compiled, scaler=None, device=torch.device("cpu"))
        watch.count_flops(stepper, batch)  # type: ignore[arg-type]
        assert watch.flops_per_token == expected


def test_the_statistics_of_a_gradient_are_its_moments(tmp_path: Path) -> None:
    made = torch.nn.ParameterDict({
        "four": torch.nn.Parameter(torch.ones(4)), "one": torch.nn.Parameter(torch.ones(1)),
        "none": torch.nn.Parameter(torch.ones(2)), "bad": torch.nn.Parameter(torch.ones(2, 2)),
    })  # fmt: skip
    made["four"].grad = torch.tensor([6.0, -8.0, 0.0, 0.0])  # of the loss × 2
    made["one"].grad = torch.tensor([-3.0])
    made["bad"].grad = torch.tensor([[torch.inf, 1.0], [torch.nan, 1.0]])
    names, values = gradient_statistics(made, scale=2.0)
    append(tmp_path, 7, names, values.tolist())
    line = json.loads((tmp_path / "gradients.jsonl").read_text())
    found = line["parameters"]
    assert (line["step"], set(found)) == (7, {"four", "one", "bad"})
    assert found["four"] == pytest.approx({
        "norm": 5.0, "mean": -0.25, "std": (25 / 4 - 1 / 16) ** 0.5, "largest": 4.0, "zeros": 0.5, "nonfinite": 0.0,
    })  # fmt: skip
    one = {"norm": 1.5, "mean": -1.5, "std": 0.0, "largest": 1.5, "zeros": 0.0, "nonfinite": 0.0}
    assert found["one"] == pytest.approx(one)
    assert (found["bad"]["nonfinite"], found["bad"]["zeros"]) == (0.5, 0.0)


FOUND: dict[str, tuple[Any, str]] = {
    "examples": ({"latents": [3, 5]}, "latents of examples [3, 5] contain NaN or Inf. Remove these examples"),
    "parameters": (["a.weight", "b.weight"], "2 parameters are not finite, the first of them a.weight"),
    "inputs": (["latents_Bd"], "the model received values that are not finite: latents_Bd"),
    "forward": ("blocks.1", "the first non-finite output, for finite inputs, is that of module blocks.1"),
    "losses": (["text_loss"], "the model's outputs are finite, but not the loss: text_loss"),
    "backward": ("head", "the loss is finite, but gradients became non-finite at the output of module head"),
    "gradient": ("c.weight", "gradients became non-finite in the backward pass. The first parameter with a"),
    "norm": (2 * LARGEST_NORM, "too large for float32: their norm is 2.0e+19, the largest are those of d.weight"),
}
"""Findings with a value of their own, in the order of the computation, and the words of each."""


@pytest.mark.parametrize("first", range(len(FOUND)))
def test_a_diagnosis_names_the_first_cause_of_all(first: int) -> None:
    """What comes later in the computation follows from it."""
    given = {name: value for name, (value, _) in list(FOUND.items())[first:]}
    found = Findings(**{"rank": 4, "kind": "t2l", "examples": {}, "parameters": [], "steepest": "d.weight", **given})
    assert found.any
    assert found.sentence().startswith("Rank 4, a step of kind t2l: ")
    assert list(FOUND.values())[first][1] in found.sentence()


def test_a_diagnosis_without_a_cause_says_so() -> None:
    found = Findings(rank=0, kind="a", examples={}, parameters=[], norm=LARGEST_NORM / 2)
    assert not found.any
    assert "all values were finite when the step was repeated" in found.sentence()
    found.trouble = "OSError: gone"
    assert "the step could not be repeated (OSError: gone)" in found.sentence()


def test_diagnosed_steps_are_the_first_and_every_so_many() -> None:
    made = [Diagnostics(every, tiny(), compiled=False, scaler=None, device=torch.device("cpu")) for every in (0, 3)]
    assert [step + 1 for step in range(9) if made[1].due(step)] == [1, 3, 6, 9]
    assert not any(made[0].due(step) for step in range(9))


def test_frozen_parts_have_no_numbers_and_those_without_a_gradient_have_their_norm() -> None:
    root = tiny()
    parts: dict[str, list[torch.nn.Parameter]] = {}
    for name, tag, parameter in diagnostics.tagged_parameters(root):
        parts.setdefault(part_of(name, tag.name), []).append(parameter)
        parameter.grad = torch.ones_like(parameter)
    frozen, idle, *trained = sorted(parts)
    for parameter in parts[frozen]:
        parameter.requires_grad_(False)
        parameter.grad = None
    for parameter in parts[idle]:
        parameter.grad = None
    watch = Diagnostics(1, root, compiled=False, scaler=None, device=torch.device("cpu"))
    watch.before_update()
    watch.after_update(1, applied=False)
    found = {name.rpartition("/")[::2] for name in watch.take() if "/" in name}
    expected = {(name, part) for name in PER_PART if name != "update_ratio" for part in trained}
    assert found == expected | {("param_norm", idle)}, "and no ratio of an update that was not applied"


def test_a_step_that_is_not_diagnosed_is_not_observed() -> None:
    """The hooks of a diagnosed step are removed with it: later steps would pay for them, and the maxima would grow."""
    spec = helpers.spec()
    root = TrainableRoot(spec.model.build(spec.shape, generator=torch.Generator()), spec.objective.build(spec.shape))
    watch = Diagnostics(1, root, compiled=False, scaler=None, device=torch.device("cpu"))
    hooked: list[int] = []
    for _ in range(2):
        watch.arm()
        hooked.append(sum(len(module._forward_hooks) for module in root.modules()))
        watch.before_update()
        assert not any(module._forward_hooks for module in root.modules())
        watch.after_update(1, applied=False)
    assert hooked[0] == hooked[1] > 0


def test_a_line_has_only_what_its_own_step_showed() -> None:
    """The second step has smaller maxima and no gradient, and nothing is observed in the third."""
    root = tiny()
    watch = Diagnostics(1, root, compiled=False, scaler=None, device=torch.device("cpu"))
    seen: list[dict[str, float]] = []
    kinds: list[set[str]] = []
    for step, largest in enumerate((4.0, 0.5, None), start=1):
        for parameter in root.parameters():
            parameter.grad = torch.ones_like(parameter) if step == 1 else None
        if largest is not None:
            watch._activation(2)(None, (), torch.full((3,), -largest))
            q = torch.full((1, 1, 1, 1), largest)
            watch._attention("blocks.1.attention")(None, (q, torch.ones(1, 1, 1, 1), q, None), q)
        watch.before_update()
        watch.after_update(step, applied=True)
        line = watch.take()
        seen.append({name: value for name, value in line.items() if name.startswith(("activation_", "attention_"))})
        kinds.append({name.partition("/")[0] for name in line} - {name.partition("/")[0] for name in seen[-1]})
    assert seen == [
        {"activation_rms/block2": 4.0, "attention_logit_max/block1": 4.0},
        {"activation_rms/block2": 0.5, "attention_logit_max/block1": 0.5},
        {},
    ]
    assert kinds == [{*PER_PART, "memory_peak_gib"}, *[{"param_norm", "memory_peak_gib"}] * 2]
