"""Sentences per second of each text sampler on the base run, at its quality, against 64 ancestral steps.

All samplers get the same held-out latents, batches and length head; rounds alternate and the fastest of each counts.
`exact_match` is the fraction of sentences that are reconstructed token for token. A sampler is compared at equal
quality where it reaches at least 99 % of the ancestral sampler's exact match. The benchmark needs the run and the
stores that `kedro run` leaves in `data/`, and also measures the stores of `--env=tatoeba` in `data/tatoeba`.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.sampling.registry import TEXT_SAMPLERS

DATA = Path(__file__).resolve().parents[1] / "data"
SENTENCES, ROUNDS = 160, 2
PEER = "ancestral, 64 steps"
POINTS: dict[str, dict[str, Any]] = {
    PEER: {"kind": "ancestral", "steps": 64},
    "ancestral, 64 steps, skip_idle": {"kind": "ancestral", "steps": 64, "skip_idle": True},
    "ddpm_cache, 64 steps": {"kind": "ddpm_cache", "steps": 64, "timestep": "mask_ratio"},
    "random, 8 steps": {"kind": "random", "steps": 8, "temperature": 0.0},
    "confidence, 1 step": {"kind": "confidence", "steps": 1, "temperature": 0.0},
    "confidence, 2 steps": {"kind": "confidence", "steps": 2, "temperature": 0.0},
    "confidence, 4 steps": {"kind": "confidence", "steps": 4, "temperature": 0.0},
    "confidence, 8 steps": {"kind": "confidence", "steps": 8, "temperature": 0.0},
    "confidence, 4 steps, cosine": {"kind": "confidence", "steps": 4, "temperature": 0.0, "counts": "cosine"},
    "margin, 4 steps": {"kind": "margin", "steps": 4, "temperature": 0.0},
    "entropy, 4 steps": {"kind": "entropy", "steps": 4, "temperature": 0.0},
    "threshold 0.9": {"kind": "threshold", "steps": 32, "temperature": 0.0},
    "threshold 0.7": {"kind": "threshold", "steps": 32, "temperature": 0.0, "threshold": 0.7},
    "entropy bound 0.1": {"kind": "entropy_bounded", "steps": 32, "temperature": 0.0},
    "entropy bound 1.0": {"kind": "entropy_bounded", "steps": 32, "temperature": 0.0, "entropy_bound": 1.0},
    "blocks of 8, 4 steps": {
        "kind": "blocks",
        "block_length": 8,
        "inner": {"kind": "confidence", "steps": 4, "temperature": 0.0},
    },
    **{f"{kind}, 64 steps": {"kind": kind, "steps": 64} for kind in TEXT_SAMPLERS.known if "remdm" in kind},
}


def run() -> list[dict[str, Any]]:
    """Measure every sampler on every run; `ratio` is its sentences per second over the peer's."""
    return [row for name, data in (("base", DATA), ("tatoeba", DATA / "tatoeba")) for row in measure(name, data)]


def measure(name: str, data: Path) -> list[dict[str, Any]]:
    """Measure every sampler on the run in `data`."""
    if not (data / "06_models" / "run.json").is_file():
        print(f"  nothing to measure for {name}: found no run in {data.name}/. Start `kedro run` first.")
        return []
    from mm_ldlm import MMLDLM
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.data.held_out import held_out
    from mm_ldlm.sampling.registry import text_sampler

    reference = json.loads((data / "06_models" / "run.json").read_text(encoding="utf-8"))
    model = MMLDLM.from_run(data / "06_models" / "runs" / reference["name"])
    sentences = held_out(Dataset.open(data / "05_model_input" / "dataset"), count=SENTENCES, seed=0, split="test")
    samplers = {label: text_sampler(**settings) for label, settings in POINTS.items()}
    seconds: dict[str, list[float]] = {label: [] for label in samplers}
    exact, calls = {}, {}
    model.invert(sentences.latents[:32])  # warm up
    for _ in range(ROUNDS):
        for label, sampler in samplers.items():
            start = time.perf_counter()
            made = model.invert(sentences.latents, sampler=sampler)
            seconds[label].append(time.perf_counter() - start)
            same = [a == tuple(b) for a, b in zip(made.tokens, sentences.tokens, strict=True)]
            exact[label], calls[label] = float(np.mean(same)), float(made.model_calls.mean())
    speed = {label: len(sentences) / min(times) for label, times in seconds.items()}
    return [
        {
            "name": f"sampling.{name}: {label}",
            "value": speed[label],
            "unit": "sentences/s",
            "peer": None if label == PEER else PEER,
            "peer_value": None if label == PEER else speed[PEER],
            "ratio": None if label == PEER else speed[label] / speed[PEER],
            "exact_match": exact[label],
            "model_calls": calls[label],
            "equal_quality": exact[label] >= 0.99 * exact[PEER],
            "note": f"exact match {exact[label]:.3f} (peer {exact[PEER]:.3f}), {calls[label]:.1f} calls a sentence",
        }
        for label in samplers
    ]
