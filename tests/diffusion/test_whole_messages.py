"""The messages of schedules and processes, word for word, with the values that were found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule, MaskSchedule
from mm_ldlm.diffusion.timesteps import antithetic
from mm_ldlm.families.hdlm.process import HdlmConfig
from mm_ldlm.families.sedd.process import SeddConfig
from mm_ldlm.families.uniform.gidd import GiddConfig
from mm_ldlm.families.uniform.uniform import UniformConfig

ONE = torch.ones(1)
SCALES = {"signal_B": ONE, "noise_scale_B": ONE}
KINDS = "expected one of ('eps', 'x0', 'v', 'flow')"
VALUES: list[tuple[Callable[[], Any], str, str]] = [
    *((lambda kind=kind: kind(t_min=1.75), "t_min must be below 1, found 1.75", "t_min")
      for kind in (AbsorbingConfig, UniformConfig, SeddConfig, GiddConfig)),
    (lambda: HdlmConfig(t_min=0.75), "t_min must be below 0.5, found 0.75", "t_min"),
    (lambda: GiddConfig(p_uniform=1.0, gamma=1.5), "p_uniform must be below 1, found 1.0", "p_uniform"),
    (lambda: GiddConfig(gamma=2.5),
     "gamma must be between 1 and 2, found 2.5. Below 1 the smallest time in float64 still has random words, so that "
     "the NELBO is no bound; above 2 random words would turn back into tokens", "gamma"),
    (lambda: HdlmConfig(gamma=0.25),
     "gamma must be between 0.5 and 16, found 0.25: beyond them the fractions of tokens, clusters and masks near t = 0 "
     "and t = 1 are not exact in float64, and the NELBO is no bound", "gamma"),
    (lambda: MaskSchedule(epsilon=1.5), "epsilon must lie in [0, 1), found 1.5", "epsilon"),
    (lambda: MaskSchedule(sigma_min=3.0, sigma_max=2.0), "expected 0 < sigma_min < sigma_max, found 3.0 and 2.0",
     "sigma_min sigma_max"),
    (lambda: GaussianSchedule(beta_min=0.5, beta_max=0.25), "expected 0 < beta_min < beta_max, found 0.5 and 0.25",
     "beta_min beta_max"),
    (lambda: GaussianSchedule(sigmoid_start=2.0, sigmoid_end=1.0),
     "sigmoid_start must be below sigmoid_end, found 2.0 and 1.0", "sigmoid_start sigmoid_end"),
]  # type: ignore[misc]  # fmt: skip


@pytest.mark.parametrize(("refused", "words", "keys"), VALUES, ids=lambda each: None)
def test_options_beyond_their_bounds(refused: Callable[[], Any], words: str, keys: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        refused()
    named, _, found = str(raised.value).partition(": ")
    assert re.findall(r"'\w+\.([\w.]+)'", named) == keys.split()
    assert found == f"{words}."


ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: antithetic(0.5, torch.arange(3), 0, 0.25),
     "total must be positive and t_min in [0, 1), found 0 and 0.25."),
    (lambda: RowGenerator(0, torch.zeros(2, 3)),
     "rows must be a 1-D int64 tensor, found torch.float32 of shape (2, 3)."),
    (lambda: RowGenerator(0, torch.arange(2)).normal(1, 1, 1, 1, 1, 1),
     "expected at most 4 axes after the rows, found 6."),
    (lambda: gaussian.target("epsilon", ONE[None], ONE[None], **SCALES),  # type: ignore[arg-type]
     f"unknown parameterisation 'epsilon'; {KINDS}"),
    (lambda: gaussian.to_x0_and_eps(ONE[None], "noise", x_t_Bd=ONE[None], **SCALES),  # type: ignore[arg-type]
     f"unknown parameterisation 'noise'; {KINDS}"),
    (lambda: gaussian.loss_weight("min_snr", ONE, parameterisation="w"),  # type: ignore[arg-type]
     f"unknown parameterisation 'w'; {KINDS}"),
    (lambda: gaussian.loss_weight("max_snr", ONE, parameterisation="v"),  # type: ignore[arg-type]
     "unknown latent loss weight 'max_snr'; expected one of ('min_snr', 'uniform')"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "words"), ARGUMENTS, ids=lambda each: None)
def test_arguments_that_cannot_be_meant(refused: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError) as raised:  # the whole message is compared below
        refused()
    assert str(raised.value) == words


def test_clusters_of_another_vocabulary() -> None:
    with pytest.raises(ConfigurationError) as raised:
        HdlmConfig().build(vocab_size=6, pad_id=0, mask_id=5, token_clusters=torch.tensor([[-1], [0], [2], [1], [0]]))
    assert str(raised.value) == (
        "expected a cluster for each of the 4 words of a vocabulary of 6 ids and −1 for [PAD] and [MASK], found 5 ids, "
        "4 with a cluster. The clusters belong to another tokenizer: run `kedro run --pipelines=embedding,validation`."
    )


def test_a_cosine_schedule_reaches_every_mask_ratio_whatever_it_keeps_at_the_end() -> None:
    for epsilon in (0.0, 0.3, 0.6):
        for name in ("log_linear", "cosine"):
            schedule = MaskSchedule(name=name, epsilon=epsilon)  # type: ignore[arg-type]
            found = schedule.time_of_mask_ratio(torch.tensor([0.0, 0.5 * (1 - epsilon), 1 - epsilon, 1.0]))
            assert found[[0, 2, 3]].tolist() == pytest.approx([0.0, 1.0, 1.0], abs=1e-6)
            assert float(schedule.mask_probability(found[1])) == pytest.approx(0.5 * (1 - epsilon), abs=1e-6)
