"""Classification: targets, losses, gradients of every learnable weight, freezing, and the comparison of pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mm_ldlm.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.errors import ConfigurationError, FreezingError, SamplingError
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.models.freezing import freeze
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.root import TrainableRoot

SHAPE = DataShape(vocab_size=12, pad_id=0, mask_id=1, max_length=6, latent_dim=5)
NAMES = ("animal", "tool", "ärger")
TEXT_MODELS = {
    "dit": {"kind": "dit", "dim": 8, "depth": 2, "heads": 2},
    "mmdit": {"kind": "mmdit", "dim": 8, "depth": 2, "heads": 2, "latent_tokens": 2},
}


def names(*labels: str) -> torch.Tensor:
    width = max(len(label.encode()) for label in labels)
    return torch.tensor([list(label.encode().ljust(width, b"\0")) for label in labels], dtype=torch.uint8)


def root_of(model: dict[str, Any], *labels: str, trained: bool = False, **objective: Any) -> TrainableRoot:
    generator = torch.Generator().manual_seed(0)
    model_config = parse_kind(MODELS, model, at="model")
    config = parse_kind(OBJECTIVES, {"kind": "classification", **objective}, at="objective")
    config.capabilities(model_config)
    built = model_config.build(SHAPE, generator=generator)
    made = config.build(SHAPE, label_names=names(*labels))
    made.attach(built)
    init_weights(made, generator)
    root = TrainableRoot(built, made)
    freeze(root, made.frozen_parts(trained=trained), trained=trained)
    return root


def batch(count: int = 12, *, classes: int = 3, filling: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 7, (count,), generator=draw)
    valid = torch.arange(6) < lengths[:, None]
    examples = torch.arange(count)
    examples[count - filling :] = -1

    def tokens() -> torch.Tensor:
        return torch.where(valid, torch.randint(2, 12, (count, 6), generator=draw), 0)

    return Batch(
        tokens_BL=tokens(),
        valid_BL=valid,
        fields={
            "labels": torch.randint(0, classes, (count, 1), generator=draw),
            "latents": torch.randn(count, 5, generator=draw),
            "pair_tokens": tokens().int(),
        },
        examples_B=examples, position_B=torch.arange(count), global_size=count, global_tokens=int(valid.sum()),
    )  # fmt: skip


def losses(root: TrainableRoot, data: Batch) -> dict[str, Any]:
    found: dict[str, Any] = root(data, RowGenerator(0, data.position_B), "classes", 0)
    return found


CASES = {
    "latents": ({"kind": "latent_mlp", "dim": 8, "depth": 1}, {"features": "latents"}),
    "linear": ({"kind": "latent_mlp", "depth": 0}, {"features": "latents"}),
    "dit": (TEXT_MODELS["dit"], {"features": "trunk"}),
    "mmdit": (TEXT_MODELS["mmdit"], {"features": "trunk", "with_latents": True}),
    "pairs": (TEXT_MODELS["dit"], {"kind": "pairwise_classification", "hidden_dim": 8}),
}


def labels_of(case: str) -> tuple[str, ...]:
    return ("first", "second", "similar") if case == "pairs" else NAMES


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
