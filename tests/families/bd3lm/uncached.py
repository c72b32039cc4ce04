"""Block diffusion without a cache, for the test and for `python -m tests.families.bd3lm.uncached`, which measures both.

The command prints tokens per CPU second of texts from noise on one thread, about four tokens for each call that writes,
with untrained models of the size of `conf/bd3lm` and `conf/mdlm`.
"""

import dataclasses
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.diffusion.masked import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.bd3lm.model import BlockDiT, BlockDiTConfig
from mm_ldlm.families.bd3lm.objective import BlockDiffusionConfig, BlockGeneration
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig, TextGeneration
from mm_ldlm.sampling.registry import text_sampler

SIZE: dict[str, Any] = {"dim": 192, "depth": 6, "heads": 6, "conditioning_dim": 64}
TEXTS, ROUNDS, PER_CALL = 4, 1, 4


@dataclasses.dataclass
class Written:
    """The finished blocks of a batch of texts, in place of their keys and values."""

    c_BC: Tensor
    tokens_BT: Tensor

    def select(self, rows_A: Tensor) -> "Written":
        return Written(self.c_BC[rows_A], self.tokens_BT[rows_A])


class Uncached(torch.nn.Module):
    """A `BlockDiT` that reads the text from its beginning in every call, in one block-causal pass."""

    def __init__(self, model: BlockDiT) -> None:
        super().__init__()
        self.inner, self.block_length = model, model.block_length

    def start(self, length_B: Tensor) -> Written:
        return Written(self.inner.start(length_B).c_BC, torch.zeros(len(length_B), 0, dtype=torch.long))

    def read(self, tokens_Bl: Tensor, before: Written) -> tuple[Tensor, Written]:
        text_BT = torch.cat([before.tokens_BT, tokens_Bl], dim=1)
        block_T = torch.arange(text_BT.shape[1]) // self.block_length
        causal_TT = block_T[:, None] >= block_T
        mask_BTT = causal_TT & (text_BT != self.inner.shape.pad_id)[:, None] | torch.eye(len(block_T), dtype=torch.bool)
        hidden_BTD = self.inner.hidden(text_BT, mask=mask_BTT[:, None], c_BC=before.c_BC)
        return hidden_BTD[:, -tokens_Bl.shape[1] :], Written(before.c_BC, text_BT)

    def logits(self, hidden_BlD: Tensor, before: Written, *, at: Tensor) -> Tensor:
        return self.inner.head(hidden_BlD, c_BC=before.c_BC, logits_at=at)


def measured(length: int) -> dict[str, float]:
    """Tokens per CPU second of each way to write texts of this length, the mean of rounds in turns."""
    shape = DataShape(vocab_size=4000, pad_id=0, mask_id=1, max_length=length)
    draw, process = torch.Generator().manual_seed(0), AbsorbingConfig().build(shape)
    canvas_BL = torch.full((TEXTS, length), shape.mask_id)
    dit = DiTConfig(**SIZE, time_conditioning=False).build(shape, generator=draw)
    ways: dict[str, tuple[Any, Any]] = {
        "mdlm, ddpm_cache": (
            TextGeneration(dit, shape, process, TextDiffusionConfig()),
            text_sampler("ddpm_cache", steps=length // PER_CALL),
        )
    }
    for block_length in (4, 16, 64):
        model = BlockDiTConfig(**SIZE, block_length=block_length).build(shape, generator=draw)
        sampler = text_sampler("ancestral", steps=block_length // PER_CALL, skip_idle=True)
        for name, used in (("cache", model), ("no cache", Uncached(model))):
            ways[f"blocks of {block_length}, {name}"] = (
                BlockGeneration(used, shape, process, BlockDiffusionConfig()), sampler
            )  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(ROUNDS):
        for name, (generation, sampler) in ways.items():
            start = time.process_time()
            with generation.evaluating():
                generation.write(
                    canvas_BL, canvas_BL == shape.mask_id, latents_Bd=None, sampler=sampler,
                    generator=RowGenerator(seed, torch.arange(TEXTS)),
                )  # fmt: skip
            seconds[name].append(time.process_time() - start)
    return {name: canvas_BL.numel() / statistics.mean(each) for name, each in seconds.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for length in (64, 256):
        for name, speed in measured(length).items():
            print(f"{length} tokens, {name}: {speed:,.0f} tokens per CPU second", flush=True)
