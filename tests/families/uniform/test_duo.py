"""Duo's curriculum: mixtures of embeddings, the limit of uniform diffusion, and the part of the NELBO that it covers."""

from typing import Any

import pytest
import torch
from tests.components import SHAPE, configs_of, model_of, random_batch, root_of
from torch import Tensor

from mm_ldlm.core import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.base import Batch, Losses
from mm_ldlm.objectives.root import TrainableRoot


def losses(root: TrainableRoot, batch: Batch, *, step: int = 0, seed: int = 0) -> Losses:
    return root(batch, RowGenerator(seed, batch.position_B), "text", step)


def duo(**options: Any) -> TrainableRoot:
    return root_of("duo", {"curriculum": 0.5, **options})


def test_a_model_reads_ids_and_their_weights_alike() -> None:
    model, batch = model_of("dit", {}), random_batch()
    given = {"valid_BL": batch.valid_BL, "t_B": torch.full((len(batch.tokens_BL),), 0.3)}
    weights_BLI = torch.nn.functional.one_hot(batch.tokens_BL, SHAPE.num_ids).float()
    torch.testing.assert_close(model(weights_BLI, **given).logits, model(batch.tokens_BL, **given).logits)


def test_after_the_curriculum_and_in_evaluation_it_is_uniform_diffusion() -> None:
    batch, plain = random_batch(), root_of("text_diffusion", {"process": {"kind": "uniform"}})
    expected = losses(plain, batch)
    assert losses(duo(), batch, step=50) == expected, "of 100 steps"
    assert losses(duo().eval(), batch) == expected
    assert losses(duo(), batch, step=49)["text_loss"][0] != expected["text_loss"][0]


def test_a_low_temperature_is_the_argmax() -> None:
    batch = random_batch(examples=50)
    cold, zero, warm = (losses(duo(temperature=tau), batch)["text_loss"][0].detach() for tau in (1e-7, 0.0, 1.0))
    torch.testing.assert_close(cold, zero, rtol=1e-5, atol=1e-5)
    assert abs(float(warm - zero)) > 1e-3 * float(zero)


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
def test_the_loss_of_the_curriculum_is_its_part_of_the_nelbo(schedule: str) -> None:
    """∫ over the t where α falls from 0.9 to 0.1, whatever the distribution of the drawn times; by quadrature over t."""
    options = {"process": {"kind": "uniform", "schedule": {"kind": schedule}}, "temperature": 0.0}
    root = root_of("duo", {**options, "kept_first": 0.9, "kept_last": 0.1}, stirred=False)
    process, count, words = root.objective.process, 20_000, SHAPE.word_ids
    tokens_BL = torch.full((count, 1), words[0])
    batch = Batch(
        tokens_BL, tokens_BL != SHAPE.pad_id, {}, torch.arange(count), torch.arange(count),
        global_size=count, global_tokens=count,
    )  # fmt: skip
    total, number = losses(root, batch)["text_loss"]
    first, last = process.schedule.inverse(torch.tensor([0.9, 0.1], dtype=torch.float64))
    t_K = first + (last - first) * (torch.arange(500, dtype=torch.float64) + 0.5) / 500

    def integrand(noisy: int) -> Tensor:
        ids_K = torch.full((500,), noisy)
        found = process.token_losses(torch.zeros(500, SHAPE.vocab_size), torch.full_like(ids_K, words[0]), ids_K, t_K)
        return found.weighted_M.double()

    alpha_K = process.schedule.alpha(t_K)
    mean_K = sum(
        integrand(word) * ((1 - alpha_K) / len(words) + alpha_K * (word == words[0])) for word in words
    )  # fmt: skip
    expected = float(mean_K.mean() * (last - first))
    assert float((total / number).detach()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("options", [{"kept_last": 1e-4}, {"kept_first": 0.05}, {"kept_first": 0.99995}])
def test_a_window_that_the_schedule_does_not_reach_is_refused(options: dict[str, Any]) -> None:
    """Its times would lie outside 0 to 1, where the loss has the weights of another α."""
    process = {"kind": "uniform", "schedule": {"kind": "geometric", "sigma_max": 7.0}}
    with pytest.raises(ConfigurationError, match="kept_last"):
        configs_of("duo", {"process": process, **options})
