"""Evaluation of the likelihood of held-out texts, without and with their latents, and of other texts (zero-shot)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.sentences import Sentences
from mm_ldlm.evaluation import likelihood as lik
from mm_ldlm.evaluation.config import LikelihoodConfig, TextFile
from mm_ldlm.inference.results import Scores
from mm_ldlm.objectives.capabilities import Use

PARTS: dict[str, Use] = {"unconditional": "score", "given_latent": "score_given_latent"}
"""Part of the metrics → the use that a run needs for it."""
COLUMNS = {"unconditional": "nll", "given_latent": "nll_given_latent"}
"""Part of the metrics → its column in the table of sentences."""


def evaluate(
    model: Any, sentences: Sentences, *, config: LikelihoodConfig, seed: int
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Score held-out and other texts in every way that the run can.

    Returns:
        The table of held-out sentences (id, tokens, and in nats `nll` and `nll_given_latent` where they apply), by
        which two runs are compared sentence by sentence; and the metrics: `likelihood` ("exact" or "bound"), costs per
        token with standard errors, perplexities, the latent's bits, tables by noise level and zero-shot texts. Parts
        that the run cannot score are absent, and `left_out` has the reasons; {"skipped": reason} where all are absent.
    """
    capabilities = model.capabilities
    parts = [name for name, use in PARTS.items() if use in capabilities]
    if not parts:
        return no_rows(), {"skipped": capabilities.refusal("score")}
    expected = PARTS if capabilities.reads_latents else {"unconditional": PARTS["unconditional"]}
    cost = partial(model.score_tokens, draws=config.draws, seed=seed)
    costs: dict[str, Scores] = {}
    for name in parts:
        latents_nd = sentences.latents if name == "given_latent" else None
        costs[name] = cost(sentences.tokens, sentences.texts, latents=latents_nd)
    found: dict[str, Any] = {
        "likelihood": capabilities.likelihood,
        "sentences": len(sentences),
        "draws": config.draws if capabilities.likelihood == "bound" else None,
        "left_out": [capabilities.refusal(use) for name, use in expected.items() if name not in parts],
    }
    found |= {name: _summary(scores, config=config) for name, scores in costs.items()}
    if len(costs) == 2:
        found["latent_bits"] = {name: value.as_dict() for name, value in lik.latent_bits(**costs).items()}
    found["zero_shot"] = {
        source.name: _zero_shot(model, source, cost, parts=parts, config=config) for source in config.other_texts
    }
    columns = {COLUMNS[name]: scores.nll for name, scores in costs.items()}
    lengths = [len(row) for row in sentences.tokens]
    return pd.DataFrame({"id": list(sentences.ids), "tokens": lengths, **columns}), found


def no_rows() -> pd.DataFrame:
    """Make the empty table of sentences of a run that cannot score texts."""
    return pd.DataFrame(
        {"id": pd.Series(dtype="string"), "tokens": pd.Series(dtype="int64"), "nll": pd.Series(dtype="float64")}
    )


def _summary(scores: Scores, *, config: LikelihoodConfig) -> dict[str, Any]:
    total = lik.per_token(scores.nll, scores.tokens)
    found: dict[str, Any] = {
        "per_token": total.as_dict(),
        "tokens_only_per_token": lik.per_token(scores.token_nll, scores.tokens).as_dict(),
        "length_per_sentence": lik.mean(scores.length_nll).as_dict(),
        "perplexity": _perplexity(total),
    }
    if (table := lik.by_mask_ratio(scores, buckets=config.buckets)) is not None:
        found["by_mask_ratio"] = table.replace({np.nan: None}).to_dict(orient="records")
    return found


def _perplexity(total: lik.Estimate) -> dict[str, float] | None:
    """Compute the perplexity with its interval; None if a number exceeds a float."""
    found = {name: lik.perplexity(getattr(total, name)) for name in ("value", "low", "high")}
    whole = {name: value for name, value in found.items() if value is not None}
    return whole if len(whole) == len(found) else None


def _zero_shot(
    model: Any, source: TextFile, cost: Callable[..., Scores], *, parts: list[str], config: LikelihoodConfig
) -> dict[str, Any]:
    lines = read_lines(source)
    ids = [list(row) for row in model.tokenizer.encode(lines)]
    fits = [i for i, row in enumerate(ids) if 1 <= len(row) <= model.max_length][: source.limit]
    if not fits:
        raise EvaluationError(
            f"Expected lines of 1 to {model.max_length} tokens in the text '{source.name}' ({source.path}), found none "
            f"among {len(lines)} lines. Give a file with one sentence per line."
        )
    texts, tokens = [lines[i] for i in fits], [ids[i] for i in fits]
    found: dict[str, Any] = {
        "sentences": len(fits),
        "outside_length": sum(not 1 <= len(row) <= model.max_length for row in ids),
        "unknown_fraction": sum(row.count(model.tokenizer.unk_id) for row in tokens) / sum(map(len, tokens)),
    }
    for name in parts:
        latents_nd = model.encode(texts) if name == "given_latent" else None
        found[name] = _summary(cost(tokens, texts, latents=latents_nd), config=config)
    return found


def read_lines(source: TextFile) -> list[str]:
    """Read the non-empty lines of a UTF-8 file, plain or compressed by gzip."""
    file = InputFile(
        source.path, remedy="Correct it, or remove the entry.", error=EvaluationError,
        name=f"the text '{source.name}' of evaluation.likelihood.other_texts, {source.path}",
    )  # fmt: skip
    return [line for line in file.lines() if line.strip()]
