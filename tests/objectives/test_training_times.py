"""Timesteps of a global batch: low discrepancy, the same on every rank, texts and latents independent."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_image_text import SHAPE, P, Spy, objective

from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.training_times import latent_times, shared_draw, text_times

PROCESS = AbsorbingConfig(t_min=0.05).build(vocab_size=5, pad_id=3, mask_id=4)


def batch(size: int = 32) -> Batch:
    return Batch(
        tokens_BL=torch.zeros(size, 1, dtype=torch.long), valid_BL=torch.ones(size, 1, dtype=torch.bool), fields={},
        examples_B=torch.arange(size), position_B=torch.arange(size), global_size=size, global_tokens=size,
    )  # fmt: skip


def part(data: Batch, index: torch.Tensor) -> Batch:
    """A rank's part of a global batch."""
    return dataclasses.replace(
        data, tokens_BL=data.tokens_BL[index], valid_BL=data.valid_BL[index], examples_B=data.examples_B[index],
        position_B=data.position_B[index],
    )  # fmt: skip


def times(name: str, data: Batch, *, seed: int = 1) -> torch.Tensor:
    generator = RowGenerator(seed, data.position_B).fork(name)
    return text_times(PROCESS, data, generator) if name == "text" else latent_times(data, generator, t_min=0.05)


@pytest.mark.parametrize("name", ["text", "latent"])
def test_each_equal_cell_of_the_times_has_one_example(name: str) -> None:
    t_B = times(name, batch())
    assert float(t_B.min()) >= 0.05
    assert float(t_B.max()) <= 1
    assert ((t_B - 0.05) / 0.95 * 32).clamp(max=31.999).long().sort().values.tolist() == list(range(32))


@pytest.mark.parametrize("name", ["text", "latent"])
def test_a_ranks_times_are_its_part_of_the_global_batchs(name: str) -> None:
    whole = times(name, batch())
    for index in (torch.arange(1, 32, 3), torch.arange(5, 9)):
        assert torch.equal(times(name, part(batch(), index)), whole[index])


@pytest.mark.parametrize("name", ["text", "latent"])
def test_another_seed_draws_other_times(name: str) -> None:
    assert not torch.allclose(times(name, batch()), times(name, batch(), seed=2))


def test_latent_times_are_not_a_function_of_text_times() -> None:
    found = [torch.stack([times("text", batch(400), seed=s), times("latent", batch(400), seed=s)]) for s in range(5)]
    assert all(abs(float(torch.corrcoef(both)[0, 1])) < 0.2 for both in found)


@pytest.mark.parametrize("kind", ["image_text", "image_text_continuous"])
def test_the_times_of_a_caption_and_of_its_image_are_independent(kind: str) -> None:
    """Not even their difference is the same for all examples of a batch."""
    spy, size = Spy(), 400
    data = dataclasses.replace(
        batch(size), tokens_BL=torch.full((size, 2), 3), valid_BL=torch.ones(size, 2, dtype=torch.bool),
        fields={"images": torch.zeros(size, P)},
    )  # fmt: skip
    assert SHAPE.image_dim == P
    for seed in range(3):
        objective(kind)(spy, data, RowGenerator(seed, data.position_B), kind="joint", step=0)
        apart_B = (spy.given["t_text_B"] - spy.given["t_image_B"]) % 1.0
        cells = (apart_B * 4).long().clamp(max=3).bincount(minlength=4)
        assert int(cells.min()) > 60


def test_a_position_that_only_fills_the_shape_has_a_time_too() -> None:
    """Filling examples are numbered past the end of the global batch."""
    data = dataclasses.replace(batch(), position_B=torch.arange(32) + 3)
    assert torch.isfinite(times("latent", data)).all()


def test_shared_draws_do_not_depend_on_the_rows_of_a_rank() -> None:
    draws = [shared_draw(RowGenerator(7, rows), "mode") for rows in (torch.arange(3), torch.arange(50, 52))]
    assert draws[0] == draws[1]
    assert shared_draw(RowGenerator(7, torch.arange(3)), "self_condition") != draws[0]
    many = torch.tensor([shared_draw(RowGenerator(seed, torch.arange(1)), "mode") for seed in range(400)])
    assert float(many.mean()) == pytest.approx(0.5, abs=0.06)
