"""Nodes of `sanity`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.config import parse

if TYPE_CHECKING:
    from mm_ldlm.corpus.tokenizer import TextTokenizer
    from mm_ldlm.latents.normaliser import Normaliser
    from mm_ldlm.store import ShardStore

log = logging.getLogger(__name__)
Parameters = dict[str, Any]


def check_configuration(
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
    sanity: Parameters,
) -> list[dict[str, Any]]:
    """The table of checks: name, what was found, the remedy (empty when all is well)."""
    import dataclasses

    from mm_ldlm.training.plan import plan
    from mm_ldlm.training.sanity import SanityConfig, as_table, check_sanity

    spec = plan(
        tokens=tokens, latents=latents, index=index, tokenizer=tokenizer, normaliser=normaliser,
        token_vectors=token_vectors,
        tokenizer_folder=tokenizer_folder, normaliser_folder=normaliser_folder, runs=runs,
        model=model, objective=objective, training=training, encoder=encoder, seed=seed, tracking={},
    )  # fmt: skip
    checks = check_sanity(spec, root=runs, config=parse(SanityConfig, sanity, at="sanity"))
    log.info("sanity of this configuration:\n%s", as_table(checks))
    return [dataclasses.asdict(check) for check in checks]


def judge_configuration(report: list[dict[str, Any]]) -> None:
    """Raises PreflightError with the failing lines, after the whole table has been saved."""
    from mm_ldlm.errors import PreflightError
    from mm_ldlm.training.preflight import Check

    if failing := [Check(**line) for line in report if line["remedy"]]:
        raise PreflightError("the configuration is not sane:\n" + "\n".join(str(check) for check in failing))
