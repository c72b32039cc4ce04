"""Classification objectives: every learnable weight learns, the loss is the cross-entropy, and pairs are antisymmetric."""

import math
from collections.abc import Callable
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
from mm_ldlm.objectives.registry import OBJECTIVES

Refuses = Callable[..., Any]


@pytest.mark.parametrize("case", CASES)
def test_every_learnable_weight_receives_a_gradient_and_one_batch_is_learned(case: str) -> None:
    root, data = root_of_case(case), batch()
    first, count = losses(root, data)["class_loss"]
    assert float(first.detach() / count) == pytest.approx(math.log(3), rel=1e-5)
    assert root.objective.expected_first_loss()["class_loss"] == pytest.approx(math.log(3))
    learnable = {name: p for name, p in root.named_parameters() if p.requires_grad}
    optimizer = torch.optim.Adam(learnable.values(), lr=1e-2)
    seen: set[str] = set()
    for _ in range(80):
        optimizer.zero_grad()
        value = losses(root, data)["class_loss"][0] / count
        value.backward()
        seen |= {name for name, p in learnable.items() if p.grad is not None and bool((p.grad != 0).any())}
        optimizer.step()
    assert seen == set(learnable)
    assert any(name.startswith("objective.head.") for name in learnable)
    assert float(value.detach()) < 0.75 * math.log(3)


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


@pytest.mark.parametrize("case", ["dit", "mmdit", "pairs"])
@torch.no_grad()
def test_padding_changes_no_class(case: str) -> None:
    root, data = root_of_case(case, spread=0.3).eval(), batch()
    given = [data.tokens_BL, data.fields["pair_tokens"].long()][: 2 if case == "pairs" else 1]
    wide = [F.pad(each, (0, 3)) if place else each for place, each in enumerate(given)]
    alone = torch.cat(
        [root.objective.logits(root.model, *(_cut(each[i : i + 1]) for each in given)) for i in range(12)]
    )
    together = root.objective.logits(root.model, *wide)
    torch.testing.assert_close(alone, together, atol=2e-5, rtol=1e-4)
    assert float(together.std(dim=0).min()) > 1e-3, "the classes depend on the texts"


@torch.no_grad()
def test_exchanging_two_texts_exchanges_first_and_second_exactly() -> None:
    root, data = root_of_case("pairs", spread=0.4).eval(), batch()
    first_BL, second_BL = data.tokens_BL, data.fields["pair_tokens"].long()
    one, other = (root.objective.logits(root.model, *pair) for pair in ((first_BL, second_BL), (second_BL, first_BL)))
    torch.testing.assert_close(other, one[:, [1, 0, 2]], atol=1e-5, rtol=1e-5)
    assert float(one.std()) > 0.1
    empty = root.objective.logits(root.model, first_BL, torch.zeros_like(second_BL))
    assert bool(empty.isfinite().all()), "the second text of a pair may be empty"


@pytest.mark.parametrize("labels", [("a", "b"), ("b ", " a", "Ärger mit \t"), ("x", "", "the longest of them")])
def test_names_of_classes_survive_the_store(labels: tuple[str, ...]) -> None:
    root = root_of(*CASES["linear"], labels=labels)
    classifier = root.objective.generative_model(root.model)
    assert classifier.classes == labels
    assert classifier.class_logits(torch.zeros(2, 5)).shape == (2, len(labels))
    assert classifier.device.type == "cpu", "although the model has no parameters"


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
    with refuses(ConfigurationError, "training.precision.compile"):
        config.build(SHAPE, fixed_shapes=True, label_names=names(*NAMES))


def _cut(tokens_BL: torch.Tensor) -> torch.Tensor:
    """Remove the padding of one text."""
    return tokens_BL[:, : int((tokens_BL != SHAPE.pad_id).sum())]
