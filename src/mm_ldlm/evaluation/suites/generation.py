"""Evaluation of unconditional texts: diversity, memorisation, and optionally generative perplexity and MAUVE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mm_ldlm.evaluation import generative as gen
from mm_ldlm.evaluation.bootstrap import proportion_interval
from mm_ldlm.evaluation.config import BootstrapConfig, GenerationConfig
from mm_ldlm.evaluation.overlap import attested_bigrams, memorised


def skip_reason(model: Any, texts: Sequence[str]) -> str | None:
    """Explain why there are no unconditional texts to evaluate; None if there are some."""
    if (reason := model.capabilities.refusal("unconditional")) is not None:
        return str(reason)
    if sum(bool(text.strip()) for text in texts) < 2:
        return (
            f"expected at least two unconditional samples that are not empty, found {len(texts)} samples. "
            "Set sampling.unconditional.count and run the sampling pipeline"
        )
    return None


def evaluate(
    texts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    *,
    real_texts: Sequence[str],
    real_tokens: Sequence[Sequence[int]],
    training_texts: Callable[[], Iterable[str]],
    config: GenerationConfig,
    bootstrap: BootstrapConfig,
    device: str = "cpu",
    seed: int = 0,
) -> dict[str, Any]:
    """Measure generated and real text with the same functions.

    Empty texts, which an autoregressive model may generate, are counted (`empty`, a fraction) and left out of all
    other numbers. `training_texts` opens the training split again in each call.
    """
    kept = [i for i, (text, row) in enumerate(zip(texts, tokens, strict=True)) if text.strip() and len(row)]
    found: dict[str, Any] = {"texts": len(texts), "empty": 1 - len(kept) / len(texts)}
    texts, tokens = [texts[i] for i in kept], [tokens[i] for i in kept]
    model = (
        gen.CausalModel(config.causal_model, revision=config.revision, device=device) if config.causal_model else None
    )
    found["memorised"] = float(memorised(texts, training_texts()).mean())
    attested = attested_bigrams([*texts, *real_texts], training_texts())
    sides = (
        ("generated", texts, tokens, attested[: len(texts)]),
        ("real", real_texts, real_tokens, attested[len(texts) :]),
    )
    options: dict[str, Any] = {"self_bleu_texts": config.self_bleu_texts, "seed": seed}
    for name, some, rows, attested_n in sides:
        interval = proportion_interval(attested_n, replicates=bootstrap.replicates, level=bootstrap.level, seed=seed)
        found[name] = {"attested_bigrams": interval.as_dict()}
        if model is None:
            found[name] |= _as_dict(gen.diversity(rows, **options))
            continue
        score = gen.generative_score(some, model, token_rows=rows, batch_size=config.batch_size, **options)
        found[name] |= _as_dict(score.diversity) | {
            "causal_model": config.causal_model,
            "nll_per_token": score.nll_per_token.as_dict(),
            "perplexity": score.perplexity,
        }
    if config.mauve:
        found["mauve"] = gen.mauve(texts, real_texts, featurizer=config.mauve_model, seed=seed)
    return found


def _as_dict(value: gen.Diversity) -> dict[str, Any]:
    return {
        "entropy_sample": value.entropy_sample,
        "entropy_corpus": value.entropy_corpus,
        "distinct": {str(n): fraction for n, fraction in value.distinct.items()},
        "self_bleu": value.self_bleu,
        "unique": value.unique,
    }
