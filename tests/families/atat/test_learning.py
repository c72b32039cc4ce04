"""The importance estimator learns which tokens are hard, on the starter corpus (slow)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from mm_ldlm.data.dataset import Dataset
from mm_ldlm.data.held_out import held_out
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.loading import load_run

DRAWS = 16
ATAT = (
    "training.max_steps=240,training.launch.processes=1,training.batch.examples=32,training.optimizer.warmup_steps=20,"
    "training.log_every=10,objective.warmup_steps=60,model.dim=96,model.depth=3,model.heads=4,"
    "objective.estimator.dim=128,tracking.enabled=false"
)


@pytest.mark.slow
def test_importance_spreads_and_ranks_tokens_as_their_loss_does(run_kedro: Callable[..., Any], workshop: Path) -> None:
    run_kedro("run", "--env=atat", "--pipelines=ingestion,validation,training", f"--params={ATAT}")
    (run,) = (path.parent for path in (workshop / "data" / "atat" / "06_models").rglob("training_log.jsonl"))
    events = [json.loads(line) for line in (run / "training_log.jsonl").read_text().splitlines()]
    spread = [event["importance_std"] for event in events if event.get("step", 0) > 60 and "importance_std" in event]
    assert len(spread) > 10
    assert min(spread) > 0.1

    model = load_run(run).model
    sentences = held_out(Dataset.open(workshop / "data" / "atat" / "05_model_input" / "dataset"), count=200, seed=0)
    longest = max(map(len, sentences.tokens))
    tokens_BL = torch.full((len(sentences), longest), model.shape.pad_id)
    for row, tokens in enumerate(sentences.tokens):
        tokens_BL[row, : len(tokens)] = torch.tensor(tokens)
    valid_BL = tokens_BL != model.shape.pad_id
    loss_BL, times_BL = torch.zeros(tokens_BL.shape), torch.zeros(tokens_BL.shape)
    generator = RowGenerator(0, torch.arange(len(sentences)))
    denoiser = model.text_denoiser(None, generator)
    with torch.no_grad():
        for draw in range(DRAWS):
            drawn = torch.Generator().manual_seed(draw)
            t_B = torch.rand(len(sentences), generator=drawn).clamp(0.02, 0.98)
            masked_BL = (torch.rand(tokens_BL.shape, generator=drawn) < t_B[:, None]) & valid_BL
            noisy_BL = tokens_BL.masked_fill(masked_BL, model.shape.mask_id)
            logits_NV = denoiser.logits(noisy_BL, t_B, torch.arange(len(sentences)), masked_BL)
            loss_BL[masked_BL] += torch.nn.functional.cross_entropy(
                logits_NV[:, : model.shape.vocab_size].float(), tokens_BL[masked_BL], reduction="none"
            )
            times_BL += masked_BL
        importance_BL = model.objective.importance(tokens_BL, valid_BL)
    counted_BL = valid_BL & (times_BL > 0)
    correlation = spearmanr(importance_BL[counted_BL], (loss_BL / times_BL)[counted_BL]).statistic
    print(f"standard deviation {np.min(spread):.3f} or more, rank correlation {correlation:.3f}")
    assert correlation > 0.5
