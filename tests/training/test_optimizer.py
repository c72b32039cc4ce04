from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from mm_ldlm.training.learning_rate import learning_rate_factor
from torch import nn

from mm_ldlm.core.config import parse
from mm_ldlm.training.config import EmaConfig, OptimizerConfig
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.optimizer import Optimization


def model() -> nn.Module:
    made: nn.Module = helpers.spec().model.build(helpers.SHAPE, generator=torch.Generator().manual_seed(0))
    return made


def config(**settings: Any) -> OptimizerConfig:
    return parse(OptimizerConfig, settings, at="optimizer")


def test_schedules_rise_then_fall_to_their_floor() -> None:
    for name, middle in (("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)):
        made = config(schedule=name, warmup_steps=10, min_lr_ratio=0.1)
        values = [learning_rate_factor(made, step=step, max_steps=110) for step in range(111)]
        assert values[0] == pytest.approx(0.1)
        assert values[9] == 1.0
        assert values[60] == pytest.approx(middle, abs=0.01)
        assert values[110] == pytest.approx(1.0 if name == "constant" else 0.1)
    assert learning_rate_factor(config(warmup_steps=0), step=0, max_steps=10) == 1.0
    for name in ("cosine", "linear"):
        made = config(schedule=name, warmup_steps=10, min_lr_ratio=0.1)
        assert learning_rate_factor(made, step=150, max_steps=110) == pytest.approx(0.1), "not up again, and not below"
        assert learning_rate_factor(made, step=10, max_steps=10) == 1.0, "a run of the warm-up alone"


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_is_in_one_group_and_decay_spares_norms_biases_and_embeddings(name: str) -> None:
    made = model()
    groups = Optimization(made, config(name=name), max_steps=10).groups
    names = [n for group in groups for n, _ in group["params"]]
    assert sorted(names) == sorted(n for n, _ in made.named_parameters())
    decayed = {n for group in groups if group["weight_decay"] > 0 for n, _ in group["params"]}
    assert "blocks.0.streams.0.qkv.weight" in decayed
    for spared in ("text_embedding.table.weight", "blocks.0.streams.0.qkv.bias", "blocks.0.streams.0.qk_norm.scale",
                   "latent_encoder.position_KD", "null_latent.value"):  # fmt: skip
        assert spared not in decayed
    muon = {n for group in groups if group["kind"] == "muon" for n, _ in group["params"]}
    assert (name == "muon") == bool(muon)
    assert all(n.startswith("blocks.") and n.endswith("weight") for n in muon)


def test_frozen_parameters_are_in_no_group() -> None:
    made = model()
    made.text_embedding.table.weight.requires_grad_(False)  # type: ignore[union-attr]
    assert "text_embedding.table.weight" not in [
        n for g in Optimization(made, config(), max_steps=1).groups for n, _ in g["params"]
    ]


def test_adamw_is_torchs() -> None:
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    made = Optimization(ours, config(lr=0.01, weight_decay=0.1, warmup_steps=0, schedule="constant"), max_steps=5)
    other = torch.optim.AdamW(
        [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    for step in range(5):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
        for module in (ours, theirs):
            module(x).square().sum().backward()
        made.set_lr(step, scale=1.0)
        made.step()
        other.step()
        made.drop_gradients()
        other.zero_grad()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_muon_lowers_a_loss_and_its_step_has_adamws_size() -> None:
    torch.nn.Module()
    made = model()
    optimization = Optimization(made, config(name="muon", muon_lr=0.01, weight_decay=0, warmup_steps=0), max_steps=5)
    weight = made.blocks[0].streams[0].qkv.weight  # type: ignore[index,union-attr]
    before = weight.detach().clone()
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    optimization.step()
    moved = (weight.detach() - before).square().mean().sqrt()
    assert 0.1 * 0.01 < float(moved) < 0.4 * 0.01


def test_the_norm_is_global_and_clipping_keeps_directions() -> None:
    made = nn.Linear(3, 2)
    optimization = Optimization(made, config(clip=1.0), max_steps=1)
    made.weight.grad, made.bias.grad = torch.full((2, 3), 3.0), torch.full((2,), 4.0)
    norm = float(optimization.norm())
    assert norm == pytest.approx((6 * 9 + 2 * 16) ** 0.5)
    assert optimization.clip(norm)
    assert float(optimization.norm()) == pytest.approx(1.0, rel=1e-4)
    assert not optimization.clip(0.5)


def test_optimizer_state_comes_back_bit_for_bit() -> None:
    def trained(name: str) -> tuple[nn.Module, Optimization]:
        made = model()
        optimization = Optimization(made, config(name=name), max_steps=10)
        for step in range(3):
            for i, p in enumerate(made.parameters()):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + i))
            optimization.step()
        return made, optimization

    for name in ("adamw", "muon"):
        _, optimization = trained(name)
        other = Optimization(model(), config(name=name), max_steps=10)
        other.load(optimization.tensors(), lambda like, value: value.clone())
        assert set(other.tensors()) == set(optimization.tensors())
        assert all(torch.equal(value, other.tensors()[key]) for key, value in optimization.tensors().items())


def test_pitfall_20_the_moving_average_is_float32_and_moves() -> None:
    """An average in bf16 would not change: 0.001 of the difference is below half a unit in the last place."""
    made = nn.Linear(4, 4).bfloat16()
    with torch.no_grad():
        made.weight.fill_(1.0)
    ema = Ema(made, EmaConfig(decay=0.999))
    with torch.no_grad():
        made.weight.fill_(1.5)
    for update in range(10_000, 10_100):
        ema.update(update)
    value = ema.values["weight"]
    assert value.dtype == torch.float32
    assert float(value.mean()) == pytest.approx(1.5 - 0.5 * 0.999**100, rel=1e-4)


def test_swapping_in_the_averages_leaves_the_weights_as_they_were() -> None:
    made = nn.Linear(2, 2)
    ema = Ema(made, EmaConfig(decay=0.5))
    with torch.no_grad():
        made.weight.add_(1.0)
    before = made.weight.detach().clone()
    with ema.swapped():
        assert torch.equal(made.weight, ema.values["weight"])
        assert not torch.equal(made.weight, before)
    assert torch.equal(made.weight, before)


def test_without_averages_there_is_nothing_to_keep() -> None:
    ema = Ema(nn.Linear(2, 2), EmaConfig(enabled=False))
    ema.update(0)
    assert ema.values == {}


@pytest.mark.parametrize("entry", ["step", "exp_avg", "exp_avg_sq"])
def test_a_state_that_lacks_an_entry_is_refused(entry: str) -> None:
    """A later step would end in an error of torch without the name of the parameter."""
    made = model()
    optimization = Optimization(made, config(), max_steps=10)
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimization.step()
    held = optimization.tensors()
    optimization.load(held, lambda like, value: value.clone())  # complete
    lost = next(name for name in held if name.endswith(f"/{entry}"))
    del held[lost]
    with pytest.raises(ValueError, match=f"{re.escape(lost.split('/')[1])} in adamw lacks {entry}$"):
        optimization.load(held, lambda like, value: value.clone())


def test_a_restored_state_replaces_the_one_of_later_steps() -> None:
    """After a roll-back to a checkpoint before a part was trained, nothing of its later moments is left."""
    made = nn.Linear(3, 2)
    optimization = Optimization(made, config(), max_steps=10)
    made.weight.grad = torch.ones_like(made.weight)
    optimization.step()
    early = {key: value.clone() for key, value in optimization.tensors().items()}
    made.bias.grad = torch.ones_like(made.bias)
    optimization.step()
    assert set(optimization.tensors()) > set(early)
    optimization.load(early, lambda like, value: value.clone())
    assert set(optimization.tensors()) == set(early)
    assert all(torch.equal(value, optimization.tensors()[key]) for key, value in early.items())


def test_muon_has_its_own_options() -> None:
    given = config(name="muon", lr=1e-3, muon_lr=3e-3, muon_momentum=0.7, weight_decay=0.2, betas=(0.6, 0.8), eps=1e-5)
    found = Optimization(model(), given, max_steps=10).optimizers
    (muon,) = found["muon"].param_groups
    assert (muon["momentum"], muon["weight_decay"], muon["lr"]) == (0.7, 0.2, 3e-3)
    assert {(group["betas"], group["eps"], group["lr"]) for group in found["adamw"].param_groups} == {
        ((0.6, 0.8), 1e-5, 1e-3)
    }


def test_both_optimizers_follow_the_schedule_from_their_own_rates_and_step_through_the_scaler() -> None:
    given = config(name="muon", lr=1e-3, muon_lr=3e-3, warmup_steps=4, schedule="constant")
    made = model()
    optimization = Optimization(made, given, max_steps=10)
    assert optimization.set_lr(1, scale=0.5) == pytest.approx(0.25e-3), "that of AdamW"
    for kind, rate in (("adamw", 0.25e-3), ("muon", 0.75e-3)):
        for group in optimization.optimizers[kind].param_groups:
            assert group["lr"] == pytest.approx(rate)
    before = {name: parameter.detach().clone() for name, parameter in made.named_parameters()}
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter)
    stepped: list[Any] = []
    optimization.step(SimpleNamespace(step=stepped.append))
    assert stepped == list(optimization.optimizers.values()), "the scaler decides whether an optimizer steps"
    assert all(torch.equal(before[name], parameter) for name, parameter in made.named_parameters())
    optimization.step()
    assert not any(torch.equal(before[name], parameter) for name, parameter in made.named_parameters())
