"""Sanity checks: a correct configuration passes, and every injected fault is found by its check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch

from mm_ldlm.training.preflight import Check
from mm_ldlm.training.sanity import SanityConfig, as_table, check_sanity

CONFIG = SanityConfig(max_seconds=15)


def checked(tmp_path: Path, wrap: Any = None, *, steps: int = 150, **settings: Any) -> dict[str, Check]:
    config = SanityConfig(max_seconds=15, max_steps=steps)
    found = check_sanity(helpers.spec(**settings), root=tmp_path, config=config, data=helpers.data(), wrap=wrap)
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
    assert "overfit one batch" in checked(tmp_path, steps=1, validate_every=2, checkpoint=best)


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
