"""Optimizers: schedules by their closed forms, groups that share out every parameter, clipping, saved states."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mm_ldlm.training.config import OptimizerConfig
from mm_ldlm.training.optimizer import Optimization, learning_rate_factor, parameter_groups

OFF = torch.amp.GradScaler("cpu", enabled=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(2))
        self.head = nn.Linear(4, 7)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.tail = nn.Linear(4, 7)
        self.tail.weight = self.head.weight  # shared
        self.place = nn.Parameter(torch.zeros(7, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.place[ids]
        for block in self.blocks:
            x = x + block(x)
        return self.head(x) + self.tail.bias


@given(
    warmup=st.integers(0, 50), more=st.integers(1, 200), floor=st.floats(0, 1), data=st.data(),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
)  # fmt: skip
def test_schedules_have_their_closed_form(warmup: int, more: int, floor: float, data: Any, schedule: Any) -> None:
    config, last = OptimizerConfig(schedule=schedule, warmup_steps=warmup, min_lr_ratio=floor), warmup + more
    step = data.draw(st.integers(0, last + 5))
    found = learning_rate_factor(config, step=step, max_steps=last)
    part = min(max(step - warmup, 0) / more, 1)
    fall = {"cosine": math.cos(math.pi * part / 2) ** 2, "linear": 1 - part}
    after = 1.0 if schedule == "constant" else floor + (1 - floor) * fall[schedule]
    assert found == pytest.approx((step + 1) / warmup if step < warmup else after)


def test_every_trainable_parameter_is_in_one_group_and_only_matrices_decay() -> None:
    model = Model()
    groups = parameter_groups(model, OptimizerConfig(weight_decay=0.1))
    named = [name for group in groups for name, _ in group["params"]]
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert len(named) == len(trained) == len({id(p) for group in groups for _, p in group["params"]})
    decayed = {name for group in groups if group["weight_decay"] for name, _ in group["params"]}
    assert decayed == {"blocks.0.0.weight", "blocks.1.0.weight", "head.weight"}


def made(**options: Any) -> tuple[Model, Optimization]:
    torch.manual_seed(0)
    model = Model()
    return model, Optimization(model, OptimizerConfig(warmup_steps=0, **options), max_steps=10, scaler=OFF)


def step(model: Model, optimization: Optimization, number: int) -> None:
    loss = model(torch.randint(7, (5,), generator=torch.Generator().manual_seed(number))).square().sum()
    loss.backward()
    optimization.set_lr(number, scale=1.0)
    optimization.unscale()
    optimization.clip(float(optimization.norm()))
    optimization.step()
    optimization.finish()


@pytest.mark.parametrize("option", [
    {"lr": 1e-2}, {"betas": (0.5, 0.95)}, {"betas": (0.9, 0.5)}, {"eps": 1.0}, {"clip": 1e-3},
    {"weight_decay": 0.5}, {"schedule": "linear"}, {"min_lr_ratio": 0.9},
])  # fmt: skip
def test_pitfall_01_every_option_changes_the_weights(option: dict[str, Any]) -> None:
    found = []
    for options in ({}, option):
        model, optimization = made(**options)
        for number in range(3):
            step(model, optimization, number)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.equal(*found)
    whole, quarter = optimization.set_lr(2, scale=1.0), optimization.set_lr(2, scale=0.25)
    assert {group["lr"] for group in optimization.optimizer.param_groups} == {quarter} == {0.25 * whole} != {0.0}


def test_a_saved_state_continues_to_the_bit() -> None:
    model, optimization = made()
    for number in range(3):
        step(model, optimization, number)
    again, other = made()
    again.load_state_dict(model.state_dict())
    other.load({name: value.clone() for name, value in optimization.tensors().items()})
    for number in range(3, 6):
        step(model, optimization, number)
        step(again, other, number)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    state = optimization.tensors()
    with pytest.raises(KeyError):
        other.load({name.replace("head", "tail"): value for name, value in state.items()})
    held = Optimization(Model().to("meta"), OptimizerConfig(), max_steps=10, scaler=OFF)
    held.load(state)  # on the device of its parameters, which the kernel of a GPU reads
    assert {value.device.type for value in held.tensors().values()} == {"meta"}
    with pytest.raises(ValueError, match="different entries"):
        other.load({name: value for name, value in state.items() if "head.bias/exp_avg_sq" not in name})


@given(limit=st.floats(0.01, 100))
def test_clipping_bounds_the_global_norm_and_keeps_its_direction(limit: float) -> None:
    model, optimization = made(clip=limit)
    model(torch.arange(5)).square().sum().backward()
    before = [p.grad.clone() for p in optimization.parameters if p.grad is not None]
    norm = float(optimization.norm())
    assert norm == pytest.approx(math.sqrt(sum(float(grad.square().sum()) for grad in before)), rel=1e-5)
    assert optimization.clip(norm) == (norm > limit)
    factor = min(1.0, limit / (norm + 1e-6))
    after = [p.grad for p in optimization.parameters if p.grad is not None]
    assert all(torch.allclose(a, factor * b, rtol=1e-5) for a, b in zip(after, before, strict=True))
