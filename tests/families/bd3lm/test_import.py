"""Checkpoints of BD3-LM's trainer have the outputs and the loss of the paper here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extras.foreign_checkpoints import ddit
from tests.extras.foreign_checkpoints.ddit import LENGTH

from mm_ldlm import MMLDLM


@pytest.mark.parametrize("length", [1, 4])
def test_logits_and_loss_of_blocks_given_the_clean_blocks_before_them(length: int, tmp_path: Path) -> None:
    clean, _ = ddit.clean_and_times()
    draw = torch.Generator().manual_seed(1)
    t = (0.1 + 0.9 * torch.rand(4, LENGTH // length, generator=draw)).repeat_interleave(length, dim=1)
    noisy, block = ddit.masked(clean, t), torch.arange(LENGTH) // length
    same, before = block[:, None] == block, block[:, None] > block
    read = torch.cat([torch.cat([same, before], 1), torch.cat([torch.zeros_like(same), same | before], 1)])
    both, places = torch.cat([noisy, clean], dim=1), torch.arange(LENGTH).repeat(2)
    logits = ddit.reference(ddit.weights(), both, torch.zeros(4), read=read, position_S=places)[:, :LENGTH]
    lightning = {
        "algo": {"name": "bd3lm", "cross_attn": True, "time_conditioning": False, "ignore_bos": True},
        "model": {"n_heads": 2, "length": LENGTH}, "block_size": length,
    }  # fmt: skip
    hub = {
        "model_type": "bd3lm", "cross_attn": True, "causal": False, "time_conditioning": False, "block_size": length,
        "n_heads": 2, "model_length": LENGTH,
    }  # fmt: skip
    settings: dict[str, Any] = lightning if length == 1 else hub
    loss = ddit.masked_cross_entropy(logits, clean, noisy, t)
    ddit.proves(tmp_path, settings, tokens=noisy, clean=clean, t=t, logits=logits, loss=loss)
    made = MMLDLM.from_run(tmp_path / "run", device="cpu")
    assert [len(text.split()) for text in made.generate(2, length=6, seed=0).texts] == [6, 6]
    assert made.score(["w1 w2"]).likelihood == "given_length"
