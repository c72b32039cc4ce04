"""Seeds of every step, so that a resumed run draws the same numbers; the only module that sets global seeds."""

import hashlib
import random

import numpy as np
import torch


def step_seed(seed: int, draw: int, name: str = "") -> int:
    """Compute the seed (63 bits) of all randomness of a step from the seed of the run and the number of the batch."""
    digest = hashlib.blake2b(f"{seed}/{draw}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_everything(seed: int, draw: int, *, rank: int) -> None:
    """Seed the global generators as a function of step and rank, so that a resumed step draws the same numbers.

    Only dropout and third-party code use them; other noise uses `RowGenerator`.
    """
    seed = step_seed(seed, draw, f"dropout/{rank}")
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # torch.manual_seed would format the stack in every step on the CPU
        torch.cuda.manual_seed_all(seed)
