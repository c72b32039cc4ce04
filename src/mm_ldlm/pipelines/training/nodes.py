"""Nodes of `training`: what to train becomes a spec, a spec becomes a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_ldlm.corpus.tokenizer import TextTokenizer
    from mm_ldlm.latents.normaliser import Normaliser
    from mm_ldlm.store import ShardStore

Parameters = dict[str, Any]


def plan_training(
    tokens: ShardStore,
    latents: ShardStore,
    index: ShardStore,
    tokenizer: TextTokenizer,
    normaliser: Normaliser,
    token_vectors: ShardStore,
    tokenizer_folder: Path,
    normaliser_folder: Path,
    runs: Path,
    model: Parameters,
    objective: Parameters,
    training: Parameters,
    encoder: Parameters,
    seed: int,
    tracking: dict[str, Any],
) -> dict[str, Any]:
    """Parameters and fingerprints as one JSON, which is all that a worker reads."""
    from mm_ldlm.training.plan import plan

    return plan(
        tokens=tokens, latents=latents, index=index, tokenizer=tokenizer, normaliser=normaliser,
        token_vectors=token_vectors,
        tokenizer_folder=tokenizer_folder, normaliser_folder=normaliser_folder, runs=runs,
        model=model, objective=objective, training=training, encoder=encoder, seed=seed, tracking=tracking,
    ).to_dict()  # fmt: skip


def run_training(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Train in worker processes (or find the run finished) and give the reference of the run."""
    from mm_ldlm.training.session import run_session

    return run_session(spec, runs)
