"""The lines of the sanity checks, word for word, and what a check leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from parts import ALONE, Heard

from mm_ldlm.training import sanity
from mm_ldlm.training.build import build
from mm_ldlm.training.preflight import Check
from mm_ldlm.training.sanity import SanityConfig


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    spec = helpers.spec(
        model={"depth": 1, "dropout": 0.1}, objective={"mode": "mixed"},
        optimizer={"name": "muon", "lr": 3e-3, "muon_lr": 2e-3, "weight_decay": 0.25, "warmup_steps": 0},
    )  # fmt: skip
    return build(spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard())


def batch(parts: Any) -> Any:
    return sanity._batch(parts, helpers.data(), 4)


def test_modules_and_dropout_are_counted(parts: Any) -> None:
    parts.stepper.root.model.drops = torch.nn.ModuleList([torch.nn.Dropout(0.1), torch.nn.Dropout(0.2)])
    modules = list(parts.stepper.root.modules())
    drops = list(parts.stepper.root.model.drops)
    words = f"{len(modules)} modules in training mode, 2 dropout"
    assert sanity.train_mode(parts) == Check("train mode", words)
    drops[0].eval()
    parts.stepper.root.model.blocks[0].training = False
    found = sanity.train_mode(parts)
    assert found.found.startswith("2 modules are in evaluation mode: ")
    assert "Dropout" in found.found
    assert found.remedy == "call .train()"
    parts.stepper.root.model = torch.nn.Linear(1, 1)
    assert sanity.train_mode(parts).found == "2 modules in training mode"


def test_the_types_of_layers_and_weights_are_named_and_no_hook_stays(parts: Any) -> None:
    given = batch(parts)
    assert sanity.precision(parts, given) == Check(
        "precision", "fp32: blocks compute in float32, parameters in float32"
    )
    assert not any(module._forward_hooks for module in parts.stepper.root.modules())
    assert sanity._names({torch.float64, torch.float32, torch.bfloat16}) == "bfloat16, float32, float64"
    assert sanity._names(set()) == "nothing"


def test_a_check_of_the_backward_pass_leaves_no_gradient(parts: Any) -> None:
    found = sanity.in_place(parts, batch(parts))
    assert found == Check("in place", "nothing that the backward pass needs is overwritten")
    assert all(parameter.grad is None for parameter in parts.stepper.root.parameters())
    assert not torch.is_anomaly_enabled()


def test_a_check_without_an_expected_value_says_why(parts: Any) -> None:
    parts.stepper.objective.expected_first_loss = lambda: {}
    words = Check("first loss", "not checked: no value is expected")
    assert sanity.first_losses(parts, None, SanityConfig(), fresh=True) == words  # type: ignore[arg-type]


def test_groups_are_listed_with_their_rates_decays_and_sizes(parts: Any) -> None:
    """Muon has the matrices of the blocks; vectors and embeddings have no decay."""
    parameters = dict(parts.stepper.root.named_parameters())
    blocks = [p for name, p in parameters.items() if ".blocks." in name and p.ndim == 2]
    found = sanity.groups(parts)
    assert found.ok
    described = parts.optimization.describe()
    assert [(group["optimizer"], group["lr"], group["weight_decay"]) for group in described] == [
        ("muon", 2e-3, 0.25), ("adamw", 3e-3, 0.25), ("adamw", 3e-3, 0.0)
    ]  # fmt: skip
    numbers = sum(p.numel() for p in blocks)
    assert (described[0]["tensors"], described[0]["elements"]) == (len(blocks), numbers)
    assert found.found.startswith(f"muon lr 0.002 decay 0.25: {len(blocks)} tensors, {numbers:,} numbers | adamw lr ")
    assert sum(group["tensors"] for group in described) == len(parameters)
    assert sum(group["elements"] for group in described) == sum(p.numel() for p in parameters.values())
    lost = parts.optimization.parameters.pop()
    assert lost.requires_grad
    words = f"{len(parameters) - 1} of {len(parameters)} trainable tensors are in a group"
    assert sanity.groups(parts).remedy == words
    lost.requires_grad_(False)
    assert sanity.groups(parts).ok, "a frozen parameter is in no group"


def test_the_last_loss_is_the_smallest_of_the_last_five(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the loss of a step is the mean over its kinds, of which there are three."""
    kinds = parts.stepper.objective.kinds
    assert len(kinds) == 3
    values = iter([9.0, 8.0, 1.0, 7.0, 6.0, 5.0, 6.0, 7.0])
    step: list[float] = []

    def loss(parts: Any, batch: Any, kind: str) -> torch.Tensor:
        if kind == kinds[0]:
            step.append(next(values))
        offset = {kinds[0]: -0.5, kinds[1]: 0.0, kinds[2]: 0.5}[kind]
        return sum(p.sum() * 0.0 for p in parts.stepper.root.parameters()) + torch.tensor(step[-1] + offset)

    given = batch(parts)
    monkeypatch.setattr(sanity, "_loss", loss)
    found = sanity.learning(parts, given, SanityConfig(max_steps=8, max_seconds=100))[-1]
    assert found.found == "loss 9.000 → 5.000 in 8 steps on one batch of 4 examples"
    assert found.remedy == "it should fall below 0.5 of its start: check the learning rate, then the objective"


def test_parts_that_no_step_must_train_are_not_missed(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen one, an occasional one, and one whose loss has no weight; all others have a gradient and move."""
    root = parts.stepper.root
    tagged = list(sanity.tagged_parameters(root))
    idle = next(part.name for _, part, _ in tagged if not part.occasional)
    monkeypatch.setattr(type(parts.stepper.objective), "idle_parts", frozenset({idle}))
    without = {name for name, part, _ in tagged if part.occasional or part.name == idle}
    frozen = next(name for name, part, _ in tagged if name not in without)
    dict(root.named_parameters())[frozen].requires_grad_(False)
    trained = [p for name, _, p in tagged if name not in without and name != frozen]
    assert any(part.occasional for _, part, _ in tagged)
    given = batch(parts)
    monkeypatch.setattr(sanity, "_loss", lambda *_: sum(p.square().sum() + p.sum() for p in trained))
    found = {check.name: check for check in sanity.learning(parts, given, SanityConfig(max_steps=2))}
    for name in ("gradients", "finite gradients", "movement"):
        assert found[name] == Check(name, f"{len(trained)} parameters as expected"), name
    assert found["frozen"] == Check("frozen", "1 parameters as expected")
    assert found["optimizer state"] == Check("optimizer state", "on cpu")


def test_the_first_names_of_a_list_are_the_same_in_every_process(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the alphabet: the order of a set differs between processes."""
    root = parts.stepper.root
    root.eval()
    kinds = sorted({type(module).__name__ for module in root.modules()})
    assert len(kinds) > 5
    assert sanity.train_mode(parts).found.endswith(f" modules are in evaluation mode: {', '.join(kinds)}")
    names = sorted(name for name, _ in root.named_parameters())
    assert len(names) > 20
    given = batch(parts)
    monkeypatch.setattr(sanity, "_loss", lambda *_: sum(p.sum() for p in root.parameters()) * torch.inf)
    found = {check.name: check for check in sanity.learning(parts, given, SanityConfig(max_steps=1))}
    assert found["finite gradients"] == Check(
        "finite gradients", f"{', '.join(names[:4])} and {len(names) - 4} more has had a non-finite gradient",
        "see anomaly mode",
    )  # fmt: skip


def test_a_backward_pass_that_fails_is_reported_and_the_groups_are_listed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("\n a tensor was changed\nand a long trace")

    monkeypatch.setattr(sanity, "learning", fails)
    found = sanity.check_sanity(
        helpers.spec(model={"depth": 1}, objective={"mode": "l2t"}), root=tmp_path, config=SanityConfig(examples=4),
        data=helpers.data(),
    )  # fmt: skip
    names = ["placement", "train mode", "loss", "first loss", "precision", "in place", "overfit one batch",
             "optimizer groups"]  # fmt: skip
    assert [check.name for check in found] == names
    assert found[6] == Check(
        "overfit one batch", "a tensor was changed", "the backward pass fails; see the lines above"
    )
    assert [check.ok for check in found] == [name != "overfit one batch" for name in names]
    assert sanity.as_table(found[6:]).splitlines() == [*str(found[6]).splitlines(), str(found[7])]
