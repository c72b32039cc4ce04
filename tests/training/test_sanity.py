"""Sanity checks: a correct configuration passes, and every injected fault is found by its check."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from mm_ldlm.training.tracker import Silent

from mm_ldlm.distributed.process import joined
from mm_ldlm.training import sanity
from mm_ldlm.training.build import build
from mm_ldlm.training.preflight import Check
from mm_ldlm.training.sanity import SanityConfig, as_table, check_sanity

CONFIG = SanityConfig(max_seconds=15)


def checked(
    tmp_path: Path, wrap: Any = None, *, steps: int = 150, data: Any = None, **settings: Any
) -> dict[str, Check]:
    config = SanityConfig(max_seconds=15, max_steps=steps)
    data = data or helpers.data()
    found = check_sanity(helpers.spec(**settings), root=tmp_path, config=config, data=data, wrap=wrap)
    return {check.name: check for check in found}


@pytest.mark.parametrize("mode", ["l2t", "mixed"])
def test_a_sound_configuration_passes(mode: str, tmp_path: Path) -> None:
    found = checked(tmp_path, objective={"mode": mode}, precision={"autocast": "bf16" if mode == "l2t" else "fp32"})
    assert all(check.ok for check in found.values()), as_table(list(found.values()))
    assert len(found) == 13
    assert not list(tmp_path.iterdir())  # nothing of it is kept


def test_a_configuration_that_keeps_its_best_checkpoint_is_checked(tmp_path: Path) -> None:
    """As those of the large corpora do; the checks neither validate nor save."""
    best = {"best_metric": "validation/perplexity", "every_steps": 4}
    data = dataclasses.replace(helpers.data(), validation=None)
    assert "overfit one batch" in checked(tmp_path, steps=1, data=data, validate_every=2, checkpoint=best)


def test_a_parameter_outside_the_graph(tmp_path: Path) -> None:
    def wrap(parts: Any) -> None:
        mlp = parts.stepper.root.model.blocks[0].streams[0].mlp
        plain = mlp.forward
        mlp.forward = lambda x: plain(x).detach()

    found = checked(tmp_path, wrap, steps=9)
    assert "blocks.0.streams.0.mlp" in found["gradients"].found
    assert not found["gradients"].ok


def test_a_parameter_that_no_optimizer_has(tmp_path: Path) -> None:
    def wrap(parts: Any) -> None:
        group = parts.optimization.optimizers["adamw"].param_groups[0]
        lost = group["params"].pop(3)
        parts.optimization.parameters = [p for p in parts.optimization.parameters if p is not lost]

    found = checked(tmp_path, wrap, steps=9)
    assert not found["movement"].ok
    assert not found["optimizer groups"].ok


def test_dropout_that_is_switched_off(tmp_path: Path) -> None:
    def wrap(parts: Any) -> None:
        parts.stepper.root.model.train = lambda mode=True: parts.stepper.root.model  # ignores .train()
        parts.stepper.root.model.blocks[1].eval()

    assert not checked(tmp_path, wrap, steps=9)["train mode"].ok


def test_weights_in_bf16(tmp_path: Path) -> None:
    def wrap(parts: Any) -> None:
        parts.stepper.root.model.blocks[0].streams[0].qk_norm.bfloat16()

    assert "bfloat16" in checked(tmp_path, wrap, steps=9)["precision"].found


def test_a_head_that_does_not_start_at_zero(tmp_path: Path) -> None:
    def wrap(parts: Any) -> None:
        with torch.no_grad():
            parts.stepper.root.model.text_head.linear.bias[5] = 9.0

    assert not checked(tmp_path, wrap, steps=9)["first loss"].ok


def test_an_in_place_hazard(tmp_path: Path) -> None:
    def wrap(parts: Any) -> None:
        mlp = parts.stepper.root.model.blocks[0].streams[0].mlp
        plain = mlp.down.forward

        def harm(x: torch.Tensor) -> torch.Tensor:
            out = plain(x)
            x.add_(1.0)  # the product's backward pass needs it as it was
            return out

        mlp.down.forward = harm

    found = checked(tmp_path, wrap, steps=1)
    assert "inplace operation" in found["in place"].found
    assert not found["in place"].ok


def test_an_objective_that_cannot_be_learned(tmp_path: Path) -> None:
    def wrap(parts: Any) -> None:
        parts.optimization.step = lambda scaler=None: None

    found = checked(tmp_path, wrap, steps=10)
    assert not found["overfit one batch"].ok


@pytest.mark.parametrize(("have", "ok"), [(3.805, True), (3.795, False), (4.195, True), (4.205, False)])
def test_the_first_loss_is_compared_relatively(have: float, ok: bool) -> None:
    """5 % of 4 on both sides."""
    pair = (torch.tensor(have * 7), torch.tensor(7))
    objective = SimpleNamespace(kinds=("a", "b"), expected_first_loss=lambda: {"text": 4.0, "absent": 9.0})
    stepper = SimpleNamespace(objective=objective, losses=lambda batch, *, kind, draw, step: {"text": pair})
    parts: Any = SimpleNamespace(stepper=stepper)
    found = sanity.first_losses(parts, None, SanityConfig(tolerance=0.05), fresh=True)  # type: ignore[arg-type]
    assert found.ok == ok
    assert f"a/text {have:.4f}, expected 4.0000; b/text {have:.4f}" in found.found
    trained = sanity.first_losses(parts, None, SanityConfig(), fresh=False)  # type: ignore[arg-type]
    assert (trained.ok, trained.found) == (True, "not checked: the weights are trained")


@pytest.mark.parametrize(
    ("later", "steps", "ok"), [(0.51, 12, False), (0.49, 12, True), (0.26, 12, True), (0.24, 8, True)]
)
def test_the_overfit_loss_falls_below_its_fraction_and_ends_early_at_half_of_it(
    later: float, steps: int, ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes at least 8 steps, because parts behind gates have no gradient in the first ones."""
    calls: list[int] = []

    def loss(parts: Any, batch: Any, kind: str) -> torch.Tensor:
        calls.append(1)
        value = 1.0 if len(calls) == 1 else later
        return sum(p.sum() * 0.0 for p in parts.stepper.root.parameters()) + torch.tensor(value)

    monkeypatch.setattr(sanity, "_loss", loss)
    spec = helpers.spec(model={"depth": 1}, objective={"mode": "l2t"})
    with joined(device="cpu") as process:
        parts = build(spec, root=tmp_path, data=helpers.data(), process=process, tracker=Silent())
        batch: Any = SimpleNamespace(examples_B=range(5))
        found = sanity.learning(parts, batch, SanityConfig(max_steps=12, fall=0.5))[-1]
    assert found.ok == ok
    assert found.found == f"loss 1.000 → {later:.3f} in {steps} steps on one batch of 5 examples"


def test_tensors_elsewhere_and_losses_without_a_graph_are_named() -> None:
    root = torch.nn.Linear(2, 1)
    batch: Any = SimpleNamespace(tensors={"tokens": torch.zeros(1, device="meta")})
    losses = {"a": root.weight.sum(), "b": torch.tensor(1.0), "c": root.weight.sum() * torch.nan}
    stepper = SimpleNamespace(
        root=root, objective=SimpleNamespace(kinds=tuple(losses)),
        total=lambda batch, *, kind, draw, step: losses[kind],
    )  # fmt: skip
    ema = SimpleNamespace(values={"weight": torch.zeros(1)})
    parts: Any = SimpleNamespace(stepper=stepper, process=SimpleNamespace(device=torch.device("cpu")), ema=ema)
    found = sanity.placement(parts, batch)
    assert (found.found, found.remedy) == ("1 of them elsewhere: batch tokens on meta", "move them to cpu")
    batch.tensors = {"tokens": torch.zeros(1)}
    assert (sanity.placement(parts, batch).found, sanity.placement(parts, batch).ok) == ("4 tensors on cpu", True)
    found = sanity.attached(parts, batch)
    assert found.found == "b: the loss has no gradient graph; c: loss is nan"
    assert not found.ok
    losses.pop("c")
    losses["b"] = root.bias.sum()
    stepper.objective.kinds = ("a", "b")
    assert sanity.attached(parts, batch).found == "attached and finite in a, b"
    assert sanity.attached(parts, batch).ok


@pytest.mark.parametrize(("lr", "expected"), [(7e-4, 7e-4), (None, 3e-3)])
def test_the_checks_have_a_constant_learning_rate_of_their_own_or_that_of_the_run(
    lr: float | None, expected: float, tmp_path: Path
) -> None:
    rates: list[float] = []

    def wrap(parts: Any) -> None:
        rates.extend(parts.optimization.set_lr(step, scale=1.0) for step in (0, 5, 10_000))
        (adamw,) = parts.optimization.optimizers.values()
        rates.extend(group["lr"] for group in adamw.param_groups)

    spec = helpers.spec(model={"depth": 1}, objective={"mode": "l2t"}, optimizer={"lr": 3e-3, "warmup_steps": 9})
    config = SanityConfig(lr=lr, max_steps=1, examples=4)
    found = check_sanity(spec, root=tmp_path, config=config, data=helpers.data(), wrap=wrap)
    assert set(rates) == {expected}
    overfit = next(check for check in found if check.name == "overfit one batch")
    assert overfit.found.endswith("in 1 steps on one batch of 4 examples")


def faulty(tmp_path: Path, harm: Any, **settings: Any) -> dict[str, Any]:
    """The checks of one step of a run in which `harm` is done after the optimizer was made."""
    return checked(tmp_path, harm, steps=1, model={"depth": 1}, objective={"mode": "l2t"}, **settings)


def test_one_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    def harm(parts: Any) -> None:
        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            spoilt = gradient.clone()
            spoilt.view(-1)[3] = torch.inf
            return spoilt

        parts.stepper.root.model.blocks[0].streams[0].qkv.weight.register_hook(spoil)

    found = faulty(tmp_path, harm)["finite gradients"]
    assert not found.ok
    assert "blocks.0.streams.0.qkv.weight has had a non-finite gradient" in found.found


@pytest.mark.parametrize("with_gradient", [True, False])
def test_a_frozen_parameter_that_moves_or_has_a_gradient_is_named(with_gradient: bool, tmp_path: Path) -> None:
    def harm(parts: Any) -> None:
        frozen = dict(parts.stepper.root.named_parameters())["model.text_embedding.table.weight"]
        frozen.requires_grad_(False)
        step = parts.optimization.step

        def moves(scaler: Any = None) -> None:
            frozen.data.add_(0.0 if with_gradient else 1e-3)
            step(scaler)

        if with_gradient:
            frozen.grad = torch.ones_like(frozen)
            parts.optimization.drop_gradients = lambda: None
        parts.optimization.step = moves

    found = faulty(tmp_path, harm)["frozen"]
    assert not found.ok
    assert "model.text_embedding.table.weight is frozen and moved or had a gradient" in found.found


def test_optimizer_states_elsewhere_and_a_scaler_without_fp16_are_named(tmp_path: Path) -> None:
    def harm(parts: Any) -> None:
        parts.optimization.tensors = lambda: {"a": torch.zeros(2, device="meta"), "step": torch.zeros(())}
        parts.stepper.scaler = SimpleNamespace(scale=lambda loss: loss)

    found = faulty(tmp_path, harm)
    assert (found["optimizer state"].found, found["optimizer state"].remedy) == (
        "on meta", "move it to the parameters",
    )  # fmt: skip
    assert not found["precision"].ok
    assert found["precision"].remedy == "use a GradScaler for fp16 only"


@pytest.mark.parametrize("autocast", ["fp16", "bf16"])
def test_fp16_without_a_scaler_is_named(autocast: str, tmp_path: Path) -> None:
    def harm(parts: Any) -> None:
        parts.stepper.scaler = None

    found = faulty(tmp_path, harm, precision={"autocast": autocast})["precision"]
    assert found.ok == (autocast == "bf16")
    assert found.remedy == ("" if found.ok else "use a GradScaler for fp16 only")
