"""Classification objectives: the loss is the cross-entropy of real examples, and pairs are antisymmetric."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families.classification.builds import (
    CASES,
    DIT,
    MMDIT,
    NAMES,
    SHAPE,
    batch,
    losses,
    names,
    root_of,
    root_of_case,
)
from torch.nn import functional as F

from mm_ldlm.core import ConfigurationError, FreezingError, parse_kind
from mm_ldlm.models.base import MODELS
from mm_ldlm.objectives.base import OBJECTIVES

Refuses = Callable[..., Any]


def test_the_loss_is_the_smoothed_cross_entropy_of_real_examples() -> None:
    model, objective = CASES["latents"]
    root, data = root_of(model, objective | {"label_smoothing": 0.2}, spread=0.5), batch(filling=4)
    log_p = root.objective.logits(root.model, data.fields["latents"])[:8].log_softmax(1).detach()
    target = data.fields["labels"][:8, 0]
    found = losses(root, data)
    expected = -((F.one_hot(target, 3) * 0.8 + 0.2 / 3) * log_p).sum()
    torch.testing.assert_close(found["class_loss"][0].detach(), expected)
    torch.testing.assert_close(found["class_nll"][0], F.nll_loss(log_p, target, reduction="sum"))
    assert float(found["accuracy"][0]) == float((log_p.argmax(1) == target).sum())
    assert [int(count) for _, count in found.values()] == [8, 8, 8]
    linear = parse_kind(MODELS, {"kind": "latent_mlp", "depth": 0, "dropout": 0.5}, at="model")
    assert bool((linear.build(SHAPE, generator=torch.Generator())(torch.ones(9, 5)) == 0).any()), "also of the latent"


@pytest.mark.parametrize("model", [DIT, MMDIT], ids=["dit", "mmdit"])
def test_a_frozen_trunk_trains_only_the_head(model: dict[str, Any], refuses: Refuses) -> None:
    objective = {"features": "frozen_trunk", "with_latents": model is MMDIT}
    with refuses(FreezingError):
        root_of(model, objective)
    root = root_of(model, objective, trained=True)
    learnable = {name for name, p in root.named_parameters() if p.requires_grad}
    assert learnable == {"objective.head.linear.weight", "objective.head.linear.bias"}
    losses(root, batch())["class_loss"][0].backward()
    assert {name for name, p in root.named_parameters() if p.grad is not None} == learnable
    fine_tuned = parse_kind(OBJECTIVES, {"kind": "classification", "features": "trunk"}, at="objective")
    assert fine_tuned.identity == root.objective.config.identity == {"features": "trunk", "label": "label"}


@torch.no_grad()
def test_exchanging_two_texts_exchanges_first_and_second_exactly() -> None:
    root, data = root_of_case("pairs", spread=0.4).eval(), batch()
    first_BL, second_BL = data.tokens_BL, data.fields["pair_tokens"].long()
    one, other = (root.objective.logits(root.model, *pair) for pair in ((first_BL, second_BL), (second_BL, first_BL)))
    torch.testing.assert_close(other, one[:, [1, 0, 2]], atol=1e-5, rtol=1e-5)
    assert float(one.std()) > 0.1
    empty = root.objective.logits(root.model, first_BL, torch.zeros_like(second_BL))
    assert bool(empty.isfinite().all()), "the second text of a pair may be empty"


@pytest.mark.parametrize(
    ("model", "objective", "named"),
    [
        (DIT, {"features": "latents"}, "dit"),
        (MMDIT, {"features": "trunk"}, "objective.with_latents"),
        ({"kind": "latent_mlp"}, {"features": "trunk"}, "latent_mlp"),
        ({"kind": "latent_mlp"}, {"features": "latents", "with_latents": True}, "with_latents"),
        (DIT, {"kind": "pairwise_classification"}, "animal"),
    ],
)
def test_what_does_not_fit_is_refused(
    model: dict[str, Any], objective: dict[str, Any], named: str, refuses: Refuses
) -> None:
    with refuses(ConfigurationError, named):
        root_of(model, objective)


@pytest.mark.parametrize("kind", ["classification", "pairwise_classification"])
def test_a_compiled_text_model_is_refused(kind: str, refuses: Refuses) -> None:
    config = parse_kind(OBJECTIVES, {"kind": kind, "features": "trunk"}, at="objective")
    made = config.build(SHAPE, label_names=names(*(config.answers or NAMES)))
    made.fixed_shapes = True
    with refuses(ConfigurationError, "training.precision.compile"):
        made.attach(torch.nn.Module())
    root = root_of_case("latents")
    root.objective.fixed_shapes = True
    root.objective.attach(root.model)


@pytest.mark.slow
def test_the_classifier_is_above_logistic_regression_on_the_same_latents(
    run_kedro: Callable[..., Any], workshop: Path
) -> None:
    params = "training.max_steps=800,tracking.enabled=false"
    run_kedro("run", "--env=classification", f"--params={params}")
    metrics = json.loads((workshop / "data" / "classification" / "08_reporting" / "metrics.json").read_text())
    model, baseline = metrics["classification.accuracy"], metrics["baseline.logistic_regression.accuracy"]
    print(f"classifier {model:.3f}, logistic regression {baseline:.3f}")
    assert model > baseline + 0.05
