"""The noise, the sums over ranks and the likelihoods of a validation, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from parts import ALONE
from torch import Tensor

from mm_ldlm.objectives.base import Batch
from mm_ldlm.training import validation as module
from mm_ldlm.training.config import BatchConfig, EmaConfig
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.validation import Validation


class Root(torch.nn.Module):
    """A model and an objective whose losses are given."""

    def __init__(self, losses: Any, **objective: Any) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)

        class Objective(SimpleNamespace):
            def __call__(self, *given: Any, **named: Any) -> Any:
                return losses(*given, **named)

        self.objective = Objective(**{"kinds": ("a",), "fields": (), "weights": {"x": 1.0}, **objective})


def made(root: Any, *, examples: int = 4, size: int = 16) -> Validation:
    return Validation(
        helpers.Rows(20), root, Ema(root, EmaConfig()), ALONE, batch=BatchConfig(examples=examples, length_multiple=12),  # type: ignore[arg-type]
        examples=size, seed=5, max_length=helpers.LONGEST, fill=False,
    )  # fmt: skip


def test_every_batch_has_noise_of_its_own() -> None:
    """With that of the first batch for all, the average over a split would be that of a few draws."""
    seen: list[float] = []

    def losses(model: Any, batch: Batch, generator: Any, *, kind: str, step: int) -> Any:
        assert step == 8
        seen.extend(generator.uniform().tolist())
        return {"x": (torch.tensor(1.0), torch.tensor(1.0))}

    made(Root(losses))(8)
    assert len(seen) == len(set(seen)) == 16


def test_the_averages_are_those_of_all_ranks_and_sharded_weights_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This rank has sums of 12 for 4 examples, and the other one of 30 for 2."""
    freed: list[Any] = []

    def losses(model: Any, batch: Batch, generator: Any, *, kind: str, step: int) -> Any:
        return {"x": (torch.tensor(3.0), torch.tensor(1.0)), "none": (torch.tensor(0.0), torch.tensor(0.0))}

    def sum_(numbers: Tensor) -> Tensor:
        assert numbers.dtype == torch.float64
        assert numbers.tolist() == [[12.0, 4.0], [0.0, 0.0]]
        return numbers + torch.tensor([[30.0, 2.0], [0.0, 0.0]])

    monkeypatch.setattr(module.collectives, "sum_", sum_)
    monkeypatch.setattr(module, "reshard", freed.append)
    root = Root(losses)
    assert made(root)(1) == {"loss": 7.0, "a/x": 7.0}
    assert freed == [root]


def test_the_weights_of_a_loss_and_the_kinds_count_each_in_the_mean() -> None:
    """A loss that a kind lacks counts 0 there, and one that is only reported counts nowhere."""
    values = {"a": {"x": (6.0, 2.0), "y": (8.0, 1.0)}, "b": {"x": (10.0, 1.0), "reported": (100.0, 1.0)}}

    def losses(model: Any, batch: Batch, generator: Any, *, kind: str, step: int) -> Any:
        return {name: tuple(torch.tensor(value) for value in pair) for name, pair in values[kind].items()}

    found = made(Root(losses, kinds=("a", "b"), weights={"x": 2.0, "y": 0.25}), examples=16)(1)
    assert found == {
        "loss": ((2 * 3 + 0.25 * 8) + 2 * 10) / 2, "a/x": 3.0, "a/y": 8.0, "b/x": 10.0, "b/reported": 100.0,
    }  # fmt: skip


# -- likelihoods -------------------------------------------------------------------------------------------------------

LENGTHS = torch.tensor([2, 3])
LATENTS = torch.tensor([[0.5, 1.5], [2.5, 3.5]])


def likelihood(scores: str, *, draw: int = 0, has_length: bool = True) -> tuple[list[float], dict[str, Any]]:
    """The sums of two texts with 1 and 2 nats, and what the model was asked for."""
    asked: dict[str, Any] = {}
    batch = Batch(
        tokens_BL=torch.tensor([[4, 5, 0], [6, 7, 8]]), valid_BL=torch.arange(3) < LENGTHS[:, None],
        fields={"latents": LATENTS}, examples_B=torch.tensor([7, 4]), position_B=torch.tensor([30, 31]), global_size=2,
        global_tokens=5,
    )  # fmt: skip

    def score(tokens_BL: Tensor, *, latents_Bd: Any, draws: int, generator: Any) -> Any:
        asked.update(tokens=tokens_BL, latents=latents_Bd, draws=draws, noise=generator.uniform().tolist())
        return SimpleNamespace(nll_KB=torch.tensor([[1.0, 2.0], [50.0, 60.0]], dtype=torch.float64))

    def lengths(latents_Bd: Any, *, rows: int) -> Tensor:
        asked.update(lengths_given=latents_Bd, rows=rows)
        return torch.tensor([[0.5, 0.25, 0.125], [0.1, 0.2, 0.0625]]).log()

    model: Any = SimpleNamespace(has_length=has_length, likelihood=score, length_log_probs=lengths)
    of: Any = SimpleNamespace(_scores=scores, seed=3)
    return Validation._negative_log_likelihood(of, model, batch, draw=draw).tolist(), asked


@pytest.mark.parametrize("scores", ["score", "score_given_latent"])
def test_texts_are_scored_once_and_given_their_latents_only_where_the_run_cannot_do_without(scores: str) -> None:
    (total, tokens), asked = likelihood(scores)
    assert tokens == 5
    assert total == pytest.approx(1 - math.log(0.25) + 2 - math.log(0.0625)), "of the first draw alone"
    assert (asked["draws"], asked["rows"], asked["tokens"].tolist()) == (1, 2, [[4, 5, 0], [6, 7, 8]])
    for latents in (asked["latents"], asked["lengths_given"]):
        assert (latents is LATENTS) is (scores == "score_given_latent")
        assert (latents is None) is (scores == "score")
    plain, asked = likelihood(scores, has_length=False)
    assert plain == [3.0, 5.0], "a model that ends its texts itself has no distribution of lengths"
    assert "rows" not in asked


def test_the_noise_of_a_likelihood_is_that_of_its_batch() -> None:
    first, again, other = (likelihood("score", draw=draw)[1]["noise"] for draw in (0, 0, 1))
    assert first == again
    assert not set(first) & set(other)


def test_the_likelihood_of_every_batch_is_part_of_the_perplexity(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses(model: Any, batch: Batch, generator: Any, *, kind: str, step: int) -> Any:
        return {"x": (torch.tensor(1.0), torch.tensor(1.0))}

    root: Any = Root(losses, generative_model=lambda model: ("writes with", model))
    found = made(root)
    found._scores = "score"
    draws: list[tuple[Any, int]] = []

    def score(model: Any, batch: Batch, *, draw: int) -> Tensor:
        draws.append((model, draw))
        return torch.tensor([float(draw), 2.0], dtype=torch.float64)

    monkeypatch.setattr(found, "_negative_log_likelihood", score)
    line = found(1)
    assert draws == [(("writes with", root.model), number) for number in range(4)]
    assert (line["nll"], line["perplexity"]) == pytest.approx((6 / 8, math.exp(6 / 8)))
