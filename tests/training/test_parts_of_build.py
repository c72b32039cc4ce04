"""Model and objective of a run by hand: their stores, what is frozen, and what the objective receives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mm_ldlm.models.base import DataShape
from mm_ldlm.models.parts import tag
from mm_ldlm.training import build

SHAPE = DataShape(vocab_size=5, pad_id=0, mask_id=1, max_length=7)


class Objective(nn.Module):
    """Notes what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, Any] = {}
        self.scale = nn.Linear(2, 2, bias=False)

    def attach(self, model: nn.Module) -> None:
        self.heard["model"] = model

    def set_token_counts(self, counts: Any) -> None:
        self.heard["counts"] = counts()

    def set_training_length(self, steps: int) -> None:
        self.heard["steps"] = steps

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        self.heard["trained"] = trained
        return frozenset({"table"} if trained else ())


def made(
    vocabulary: int, monkeypatch: pytest.MonkeyPatch, *, init_from: str | None = None
) -> tuple[Any, dict[str, Any], Any]:
    """The root for a shape of so many words, what model and objective were built from, and the spec."""
    given: dict[str, Any] = {}

    def model(shape: DataShape, *, generator: torch.Generator, token_vectors: Any) -> nn.Module:
        given.update(model_shape=shape, vectors=token_vectors, seed=generator.initial_seed())
        return nn.ModuleDict(
            {"table": tag(nn.Embedding(5, 2), "table", input=True), "head": tag(nn.Linear(2, 2), "head")}
        )

    def objective(shape: DataShape, *, fixed_shapes: bool, **stores: Any) -> Objective:
        given.update(objective_shape=shape, fixed_shapes=fixed_shapes, stores=stores)
        return Objective()

    monkeypatch.setattr(build, "token_counts", lambda source, shape: ("counts of", source, shape))
    spec: Any = SimpleNamespace(
        seed=9, model=SimpleNamespace(build=model), objective=SimpleNamespace(build=objective),
        training=SimpleNamespace(precision=SimpleNamespace(compile=True), steps=77, init_from=init_from),
    )  # fmt: skip
    data: Any = SimpleNamespace(
        shape=SHAPE, train="the training split", validation="the others",
        token_vectors=np.arange(10.0).reshape(5, 2).astype(np.float32),
        stores={"of_words": np.arange(5), "of_clusters": np.arange(6.0).reshape(3, 2)},
    )  # fmt: skip
    shape = DataShape(vocab_size=vocabulary, pad_id=0, mask_id=1, max_length=7)
    return build._initial_root(spec, data, shape, None), given, (spec, data)


@pytest.mark.parametrize("more", [0, 2])
def test_stores_of_words_grow_with_the_vocabulary_and_others_stay(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, given, _ = made(5 + more, monkeypatch)
    assert given["vectors"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], *[[8, 9]] * more]
    assert given["stores"]["of_words"].tolist() == [0, 1, 2, 3, 4, *[4] * more]
    assert given["stores"]["of_clusters"].tolist() == [[0, 1], [2, 3], [4, 5]], "they have no row for each word"
    assert (given["model_shape"].vocab_size, given["objective_shape"].vocab_size) == (5 + more, 5 + more)
    assert (given["fixed_shapes"], given["seed"]) == (True, build.step_seed(9, 0, "model"))


def test_the_objective_receives_the_model_the_counts_of_the_training_and_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The counts are those of the data also where the model is built for a larger vocabulary."""
    root, _, _ = made(7, monkeypatch)
    assert root.objective.heard == {
        "model": root.model, "counts": ("counts of", "the training split", SHAPE), "steps": 77
    }  # fmt: skip


def test_an_objective_is_wrapped_after_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, (spec, data) = made(5, monkeypatch)
    root = build._initial_root(spec, data, SHAPE, lambda inner: ("wrapped", inner))  # type: ignore[arg-type,return-value]
    word, inner = root.objective
    assert (word, inner.heard["steps"]) == ("wrapped", 77)


@pytest.mark.parametrize("init_from", [None, "another run"])
def test_what_is_frozen_depends_on_whether_the_weights_are_trained(
    init_from: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input layer cannot be frozen at random values."""
    asked: list[bool] = []
    plain = build.freeze
    monkeypatch.setattr(
        build, "freeze", lambda root, parts, *, trained: (asked.append(trained), plain(root, parts, trained=trained))
    )
    root, _, (spec, _) = made(5, monkeypatch, init_from=init_from)
    assert build._frozen(root, spec) is root
    trained = init_from is not None
    assert (root.objective.heard["trained"], asked) == (trained, [trained])
    assert {name for name, p in root.named_parameters() if not p.requires_grad} == (
        {"model.table.weight"} if trained else set()
    )
