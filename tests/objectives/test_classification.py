"""Classification: targets, losses, gradients of every learnable weight, freezing, and the comparison of pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from classifiers import CASES, NAMES, SHAPE, TEXT_MODELS, batch, labels_of, losses, names, root_of
from torch.nn import functional as F

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, FreezingError, SamplingError
from mm_ldlm.objectives.registry import OBJECTIVES


@pytest.mark.parametrize("case", CASES)
def test_every_learnable_weight_receives_a_gradient_and_one_batch_is_learned(case: str) -> None:
    model, objective = CASES[case]
    root, data = root_of(model, *labels_of(case), **objective), batch()
    first = losses(root, data)["class_loss"]
    assert float((first[0] / first[1]).detach()) == pytest.approx(
        root.objective.expected_first_loss()["class_loss"], rel=1e-5
    )
    learned = {name: p for name, p in root.named_parameters() if p.requires_grad}
    optimizer = torch.optim.Adam(learned.values(), lr=1e-2)
    seen: set[str] = set()
    for _ in range(80):
        value, count = losses(root, data)["class_loss"]
        optimizer.zero_grad()
        (value / count).backward()
        seen |= {name for name, p in learned.items() if p.grad is not None and bool((p.grad != 0).any())}
        optimizer.step()
    assert seen == set(learned)
    assert any(name.startswith("objective.head.") for name in learned)
    assert float(losses(root, data)["class_loss"][0].detach()) < 0.75 * float(first[0].detach())
    assert root.objective.idle_parts == frozenset()


def test_the_loss_is_cross_entropy_with_smoothing_over_real_examples() -> None:
    root = root_of(*CASES["latents"][:1], *NAMES, features="latents", label_smoothing=0.2)
    torch.nn.init.normal_(root.objective.head.linear.weight, generator=torch.Generator().manual_seed(3))
    data = batch(filling=4)
    logits = root.objective.logits(root.model, latents_Bd=data.fields["latents"])[:8]
    log_p = logits.log_softmax(1)
    target = data.fields["labels"][:8, 0]
    one_hot = F.one_hot(target, 3) * 0.8 + 0.2 / 3
    found = losses(root, data)
    assert float(found["class_loss"][0].detach()) == pytest.approx(float(-(one_hot * log_p).sum().detach()), rel=1e-5)
    assert float(found["class_nll"][0]) == pytest.approx(
        float(F.nll_loss(log_p, target, reduction="sum").detach()), rel=1e-5
    )
    assert float(found["accuracy"][0]) == float((logits.argmax(1) == target).sum())
    assert [int(count) for _, count in found.values()] == [8, 8, 8]


@pytest.mark.parametrize("kind", TEXT_MODELS)
def test_a_frozen_trunk_trains_the_head_alone(kind: str) -> None:
    options = {"features": "frozen_trunk", "with_latents": kind == "mmdit"}
    with pytest.raises(FreezingError, match="Load trained weights first"):
        root_of(TEXT_MODELS[kind], *NAMES, **options)
    root = root_of(TEXT_MODELS[kind], *NAMES, trained=True, **options)
    learned = {name for name, p in root.named_parameters() if p.requires_grad}
    assert learned == {"objective.head.linear.weight", "objective.head.linear.bias"}
    losses(root, batch())["class_loss"][0].backward()
    assert {name for name, p in root.named_parameters() if p.grad is not None} == learned


@pytest.mark.parametrize("features", ["trunk", "frozen_trunk"])
@pytest.mark.parametrize("training", [True, False])
def test_features_have_a_gradient_in_training_of_the_trunk_alone(features: str, training: bool) -> None:
    root, data = root_of(TEXT_MODELS["dit"], *NAMES, trained=True, features=features), batch()
    with torch.set_grad_enabled(training):
        found = root.objective.text_features(root.model, data.tokens_BL, data.valid_BL)
    assert found.requires_grad is (training and features == "trunk")


@pytest.mark.parametrize("kind", TEXT_MODELS)
def test_features_depend_on_the_real_tokens_alone(kind: str) -> None:
    root = root_of(TEXT_MODELS[kind], *NAMES, features="trunk", with_latents=kind == "mmdit")
    for number, p in enumerate(root.model.parameters()):
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(number))
    root.eval()
    text = torch.tensor([[3, 5, 2]])
    padded = torch.tensor([[3, 5, 2, 0, 0, 0]])
    with torch.no_grad():
        alone = root.model.features(text)
        filled = root.model.features(padded, valid_BL=padded != 0)
        other = root.model.features(torch.tensor([[3, 5, 4]]))
    assert alone.shape == (1, root.model.feature_dim)
    torch.testing.assert_close(alone, filled, atol=2e-5, rtol=1e-4)
    assert float((alone - other).abs().max()) > 1e-3


def test_exchanging_the_items_exchanges_first_and_second_exactly() -> None:
    root = root_of(*CASES["pairs"][:1], *labels_of("pairs"), **CASES["pairs"][1])
    for number, p in enumerate(root.parameters()):
        torch.nn.init.normal_(p, std=0.4, generator=torch.Generator().manual_seed(number))
    root.eval()
    data = batch()
    first, second = data.tokens_BL, data.fields["pair_tokens"].long()
    with torch.no_grad():
        one = root.objective.logits(root.model, first, second_BL=second)
        other = root.objective.logits(root.model, second, second_BL=first)
        same = root.objective.logits(root.model, first, second_BL=first)
    torch.testing.assert_close(other, one[:, [1, 0, 2]], atol=1e-5, rtol=1e-5)
    assert float(one.std()) > 0.1
    torch.testing.assert_close(same[:, 0], same[:, 1], atol=1e-6, rtol=0)


def test_answers_keep_their_places_when_one_does_not_occur() -> None:
    root = root_of(*CASES["pairs"][:1], "second", "similar", **CASES["pairs"][1])
    data = batch(classes=2)
    assert root.objective.targets(data).tolist() == [label + 1 for label in data.fields["labels"][:, 0].tolist()]
    with pytest.raises(ConfigurationError, match=r"expected the labels first, second, similar, found \['better'\]"):
        root_of(*CASES["pairs"][:1], "better", "second", **CASES["pairs"][1])


def test_names_of_classes_survive_the_store() -> None:
    root = root_of(*CASES["latents"][:1], *NAMES, features="latents")
    assert root.objective.classes == NAMES
    assert root.objective.expected_first_loss() == {"class_loss": math.log(3)}
    classifier = root.objective.generative_model(root.model)
    assert classifier.class_logits(latents_Bd=torch.zeros(2, 5)).shape == (2, 3)
    with pytest.raises(SamplingError, match="does not provide texts"):
        classifier.default_sampler(conditional=True)


@pytest.mark.parametrize(
    ("model", "objective", "message"),
    [
        (TEXT_MODELS["dit"], {"features": "latents"}, "trains a model of interface 'latent_features'"),
        (TEXT_MODELS["mmdit"], {"features": "trunk"}, "objective.with_latents' is false"),
        ({"kind": "causal", "dim": 8, "depth": 1, "heads": 2}, {"features": "trunk"}, "'text_denoiser' or"),
        ({"kind": "latent_mlp"}, {"features": "latents", "with_latents": True}, "'with_latents' is for features"),
    ],
)
def test_what_does_not_fit_is_refused(model: dict[str, Any], objective: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        root_of(model, *NAMES, **objective)


def test_a_compiled_text_model_is_refused() -> None:
    config = parse_kind(OBJECTIVES, {"kind": "classification", "features": "trunk"}, at="objective")
    with pytest.raises(ConfigurationError, match=r"training\.precision\.compile"):
        config.build(SHAPE, fixed_shapes=True, label_names=names(*NAMES))
