"""Sizes of the data, and models that cannot be made."""

from typing import Any

import pytest
import torch
from torch import nn

from mm_ldlm.core import ConfigurationError
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.layers import Linear


def test_ids_of_noise_follow_those_of_the_tokenizer() -> None:
    shape = DataShape(vocab_size=4, pad_id=4, mask_id=0, max_length=3, noise_ids=2, fields={"images": (2, 3, 1)})
    assert (shape.first_noise_id, shape.num_ids, shape.word_ids) == (5, 7, [1, 2, 3])
    assert (shape.dim("images"), shape.dim("latents")) == (6, 0)


def test_data_without_what_a_model_reads_are_refused(refuses: Any) -> None:
    with refuses(ConfigurationError, "latents", "images", "mine"):
        DataShape(vocab_size=4, pad_id=0, mask_id=1, max_length=3, fields={"images": (2, 3, 1)}).require(
            "latents", kind="mine"
        )


class Forgetful(nn.Module):
    """A layer whose author wrote no `init_weights`."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.gain = Linear(2, 2), nn.Parameter(torch.empty(3))


def too_large() -> nn.Module:
    return Linear(2**40, 2**40)


@pytest.mark.parametrize(("make", "named"), [(Forgetful, "gain"), (too_large, "memory")])
def test_a_model_that_cannot_be_made_is_refused(make: Any, named: str, refuses: Any) -> None:
    with refuses(ConfigurationError, named):
        build_on_meta(make, torch.Generator())
