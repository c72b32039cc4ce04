"""The conservative settings (conf/qwen_l2t) on data in which one row in a hundred is ten thousand times too large."""

from __future__ import annotations

import statistics
from pathlib import Path

import helpers
import pytest

from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.worker import train


@pytest.mark.slow
def test_two_thousand_steps_on_hostile_data_end_without_a_skip_storm_and_with_a_falling_loss(tmp_path: Path) -> None:
    spec = helpers.spec(
        max_steps=2000,
        model={"dim": 64, "depth": 2, "heads": 2},
        objective={"mode": "l2t", "latent_weight": 0.1},
        batch={"examples": 16, "accumulation": 2, "length_multiple": 4},
        optimizer={"lr": 5e-5, "betas": [0.9, 0.95], "weight_decay": 0.01, "warmup_steps": 2000, "clip": 0.5},
        precision={"autocast": "bf16"},
        checkpoint={"every_steps": 500, "background": True},
        log_every=20,
    )
    result = train(spec, root=tmp_path, data=helpers.data(512, outliers=0.01))
    assert result.ending == "finished"
    log = tmp_path / "run" / "training_log.jsonl"
    lines = read_metrics(log)
    nll = [line["text_nll"] for line in lines]
    early, late = statistics.median(nll[:10]), statistics.median(nll[-10:])
    skips, rolled = read_events(log, "skip"), read_events(log, "rollback")
    print(f"text NLL {early:.3f} → {late:.3f}; {len(skips)} skips, {len(rolled)} roll-backs, "
          f"{len(read_events(log, 'spike'))} spikes")  # fmt: skip
    assert len(skips) <= 20
    assert not rolled
    assert late < 0.99 * early
