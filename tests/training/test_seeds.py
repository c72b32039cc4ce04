"""Seeds of a step: its dropout is a function of the run, the step and the rank."""

import itertools
import random

import numpy as np
import torch

from mm_ldlm.training.seeds import seed_everything


def test_dropout_differs_between_runs_steps_and_ranks_and_depends_on_nothing_else() -> None:
    found = []
    for seed, draw, rank in [*itertools.product((0, 1), repeat=3)] * 2:
        seed_everything(seed, draw, rank=rank)
        found.append((random.random(), np.random.random(), float(torch.rand(()))))  # noqa: NPY002
    assert found[:8] == found[8:]
    assert [len({*column}) for column in zip(*found, strict=True)] == [8, 8, 8]
