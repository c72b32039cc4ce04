"""Rows of another vocabulary by hand: sizes that differ by one, types, missing rows, what is refused or recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from parts import Heard
from test_initial import KINDS, OTHER, SPECIALS, WORDS, built, shape_of, started, tokenizer
from torch import nn

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.models.base import DataShape
from mm_ldlm.training import initial
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.initial import initialise, refuse_other_vocabulary, remap

SHAPE = DataShape(vocab_size=5, pad_id=0, mask_id=1, max_length=8)


class Square(nn.Module):
    """A matrix from tokens to tokens, one over tokens, and one over nothing."""

    def __init__(self, shape: DataShape) -> None:
        super().__init__()
        size = shape.vocab_size
        self.pairs = nn.Parameter(torch.zeros(size, size))
        self.table = nn.Parameter(torch.zeros(size, 3))
        self.bias = nn.Parameter(torch.zeros(size))
        self.plain = nn.Parameter(torch.zeros(5, 3))


def both(theirs: list[int], ours: list[int], *, size: int = 5) -> initial.Vocabularies:
    their_shape = dataclasses.replace(SHAPE, vocab_size=size)
    return initial.Vocabularies(torch.tensor(theirs), torch.tensor(ours), their_shape, SHAPE)


def moved(values: dict[str, torch.Tensor], names: tuple[str, ...], *, size: int = 5) -> dict[str, torch.Tensor]:
    root: Any = Square(SHAPE)
    targets = {name: value for name, value in root.named_parameters() if name in names}
    build: Any = Square
    return remap(values, targets, both([0, 1, 2], [2, 1, 0], size=size), build=build, source=Path("c"))


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_rows_are_moved_whatever_the_sizes_of_the_two_vocabularies(size: int) -> None:
    """Also where this run has one token more, as the model has that shows which rows are tokens."""
    table = torch.arange(3.0 * size).reshape(size, 3) + 1
    found = moved({"table": table.half(), "plain": torch.ones(5, 3)}, ("table", "plain"), size=size)
    assert found["table"].dtype == torch.float32, "that of this run"
    assert found["table"].tolist() == [*table[[2, 1, 0]].tolist(), [0.0] * 3, [0.0] * 3]
    assert found["plain"].tolist() == torch.ones(5, 3).tolist(), "its five rows are no tokens"


def test_what_has_other_dimensions_or_is_missing_is_left_to_the_loading() -> None:
    flat, number = torch.ones(15), torch.ones(())
    found = moved({"table": flat, "bias": number, "unknown": torch.ones(1)}, ("table", "plain", "bias"))
    assert found["table"] is flat
    assert found["bias"] is number
    assert set(found) == {"table", "bias", "unknown"}


def test_a_parameter_over_pairs_of_tokens_is_refused_with_the_number_of_its_dimensions() -> None:
    with pytest.raises(CheckpointError) as refused:
        moved({"pairs": torch.ones(5, 5)}, ("pairs",))
    assert str(refused.value) == (
        "c: pairs is indexed by tokens in 2 dimensions, which by_token cannot remap. Set training.init_vocabulary to "
        "same."
    )


def test_ids_without_a_row_on_either_side_are_left_out() -> None:
    """As a mask behind the words has no row in an output layer."""
    found = initial._moved(torch.arange(4.0) + 100, torch.arange(5.0), both([0, 3, 4, 2], [4, 6, 0, 1], size=4), dim=0)
    assert found.tolist() == [0.0, 102.0, 2.0, 3.0, 100.0]


def test_the_sizes_of_both_vocabularies_are_named(tmp_path: Path) -> None:
    theirs, ours = tokenizer([*SPECIALS, *WORDS]), tokenizer(OTHER)
    with pytest.raises(CheckpointError) as refused:
        started(tmp_path, "dit", theirs, ours, "same")
    words = (
        "expected the vocabulary of this run (9 tokens) for the weights of training.init_from, found another one of "
        "15 tokens: 7 of them are in this run, 0 under the same id. Set"
    )
    assert words in str(refused.value)


@pytest.mark.parametrize("identity", [{}, None, {"tokenizer": "another"}])
def test_a_checkpoint_without_a_tokenizer_is_compared_by_its_identity(identity: Any, tmp_path: Path) -> None:
    contents = folder.Contents({}, {"training_state.json": {"identity": identity}})
    path = folder.write(tmp_path, 3, contents)
    ours = tokenizer(OTHER)
    with pytest.raises(CheckpointError) as refused:
        refuse_other_vocabulary(tmp_path, ours)
    assert str(refused.value).startswith(f"{path}: expected the vocabulary of this run (9 tokens)")
    assert "found another one. Set training.init_vocabulary to by_token" in str(refused.value)


def test_the_format_of_another_trainer_is_recorded(tmp_path: Path) -> None:
    words = tokenizer([*SPECIALS, *WORDS])
    root, build = built("dit", words, seed=2)
    weights = {name: value.detach() for name, value in built("dit", words, seed=1)[0].model.named_parameters()}
    torch.save(weights, tmp_path / "model.pt")
    heard = Heard()
    initialise(
        root, tmp_path, vocabulary="same", tokenizer=None, shape=shape_of(words), build=build, tracker=heard,
        options=KINDS["dit"][0],
    )  # fmt: skip
    assert heard.events == [(0, "init_format", {"format": None, "left_out": ""})]
