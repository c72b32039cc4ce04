"""The trained classifier: its device, its names, and pairs of texts of any length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from classifiers import CASES, SHAPE, batch, names, root_of
from mm_ldlm.families.classification.classifier import Classifier

from mm_ldlm.families.classification.objective import decode_names
from mm_ldlm.families.classification.pairs import ANSWERS


def pairs() -> Any:
    root = root_of(*CASES["pairs"][:1], *ANSWERS, **CASES["pairs"][1])
    for number, p in enumerate(root.parameters()):
        torch.nn.init.normal_(p, std=0.4, generator=torch.Generator().manual_seed(number))
    return root.eval()


def test_the_device_is_that_of_the_head_because_a_model_without_blocks_has_no_parameters() -> None:
    root = root_of(*CASES["linear"][:1], "a", "b", features="latents")
    made = root.objective.generative_model(root.model)
    assert isinstance(made, Classifier)
    assert not list(root.model.parameters())
    assert made.device == torch.device("cpu")
    root.objective.head.to("meta")
    assert made.device.type == "meta"


@pytest.mark.parametrize("labels", [("a",), ("b ", " a", "Ärger mit \t"), ("x", "", "longest of them")])
def test_names_of_classes_are_read_letter_for_letter(labels: tuple[str, ...]) -> None:
    assert decode_names(names(*labels)) == labels
    root = root_of(*CASES["linear"][:1], *labels, features="latents")
    assert root.objective.generative_model(root.model).classes == labels


@torch.no_grad()
def test_a_second_text_may_be_padded_beyond_the_longest_text_of_the_model() -> None:
    root, data = pairs(), batch()
    first, second = data.tokens_BL, data.fields["pair_tokens"].long()
    assert second.shape[1] == SHAPE.max_length
    wide = torch.nn.functional.pad(second, (0, 3))
    found, expected = (root.objective.logits(root.model, first, second_BL=each) for each in (wide, second))
    assert torch.equal(found, expected)


@torch.no_grad()
def test_a_pair_whose_second_text_is_empty_has_finite_logits() -> None:
    root, data = pairs(), batch(2)
    empty = torch.zeros_like(data.tokens_BL)
    found = root.objective.logits(root.model, data.tokens_BL, second_BL=empty)
    features = root.model.features(data.tokens_BL, valid_BL=data.valid_BL)
    torch.testing.assert_close(found, root.objective.head(features, torch.zeros_like(features)))
