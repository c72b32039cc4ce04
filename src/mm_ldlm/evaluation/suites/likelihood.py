"""Likelihood of held-out texts, without and with their latents, and of other texts (zero-shot).

The cost of a sentence is `length_nll + token_nll` nats (`inference.results.Scores`), and its rate is the cost divided
by its number of tokens. The cost includes the length, which diffusion models predict by a length head and
autoregressive models by an end token that is part of `token_nll`. The rates of all models are therefore comparable.
`Capabilities.likelihood` states whether a rate is the exact negative log-likelihood or an upper bound (the NELBO).

N sentences, K Monte Carlo draws of the NELBO for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mm_ldlm.core import EvaluationError, slug
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.corpus.detokenising import detokenise_published
from mm_ldlm.data.corpus.wrapping import wrap_of, wrapped
from mm_ldlm.data.held_out import held_out
from mm_ldlm.evaluation.bootstrap import Statistic, mean_of_counts, ratio_of_counts
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Metrics, Suite

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import WrapConfig
    from mm_ldlm.evaluation.config import TextFile
    from mm_ldlm.inference.results import Scores

LABELS = {
    "exact": "exact negative log-likelihood",
    "bound": "NELBO (upper bound)",
    "given_length": "NELBO given the length (upper bound)",
}
"""`Capabilities.likelihood` → the label of a cost"""
PARTS: dict[str, tuple[Any, str]] = {
    "unconditional": ("score", "nll"),
    "given_latent": ("score_given_latent", "nll_given_latent"),
}
"""Part of the metrics → the use that a run needs for it, and its column in the table of sentences"""


class Likelihood(Suite):
    """Score held-out and other texts in every way that the run can.

    The table of held-out sentences has id, tokens, and in nats `nll` and `nll_given_latent` where they apply.
    """

    name, title = "likelihood", "Likelihood"
    row_columns = ("tokens",)
    template = "mm_ldlm.evaluation.suites/likelihood.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        capabilities = given.model.capabilities
        return None if any(use in capabilities for use, _ in PARTS.values()) else capabilities.refusal("score")

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame]:
        model, config, capabilities = given.model, given.config.likelihood, given.model.capabilities
        held = held_out(given.dataset, count=config.sentences, seed=given.seed, split="test")
        cost = partial(model.score, draws=config.draws, seed=given.seed)
        expected = [name for name in PARTS if name == "unconditional" or "latents" in capabilities.fields]
        parts = [name for name in PARTS if PARTS[name][0] in capabilities]
        wrap, lacks = wrap_of(given.dataset.tokens), "given_latent" in parts and model.no_encoder is not None
        costs: dict[str, Scores] = {
            name: cost(held.texts, ids=held.tokens, latents=held.latents if name == "given_latent" else None)
            for name in parts
        }
        found: Metrics = {
            "likelihood": capabilities.likelihood,
            "sentences": len(held),
            "wrapped": wrap is not None,
            "draws": None if capabilities.likelihood == "exact" else config.draws,
            "left_out": [
                *(capabilities.refusal(PARTS[name][0]) for name in expected if name not in parts),
                *(
                    f"costs of the text {each.name} given latents: {model.no_encoder}"
                    for each in config.other_texts
                    if lacks
                ),
            ],
            **{name: _summary(scores, held.texts) for name, scores in costs.items()},
            "zero_shot": {text.name: _zero_shot(model, text, cost, parts, wrap) for text in config.other_texts},
        }
        if len(costs) == 2:
            found["latent_bits"] = latent_bits(**costs)
        columns = {PARTS[name][1]: scores.nll for name, scores in costs.items()}
        return found, pd.DataFrame({"id": held.ids, "tokens": [len(row) for row in held.tokens], **columns})

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {f"nll.{kind}": metrics["likelihood"] == kind for kind in ("exact", "given_length")}
        for name, suffix in (("unconditional", ""), ("given_latent", ".given_latent")):
            part = metrics.get(name, {})
            found |= {f"nll{suffix}.per_token": part.get("per_token"), f"perplexity{suffix}": part.get("perplexity")}
            found[f"bits_per_character{suffix}"] = part.get("bits_per_character")
        bits = {f"latent.bits_{name}": value for name, value in metrics.get("latent_bits", {}).items()}
        others = {name: entry.get("unconditional", {}) for name, entry in metrics["zero_shot"].items()}
        return found | bits | {f"nll.{slug(name)}.per_token": part.get("per_token") for name, part in others.items()}

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        kind = next((kind for kind in ("exact", "given_length") if numbers.get(f"nll.{kind}")), "bound")
        label, given = LABELS[kind], "nll.given_latent.per_token"
        only_given = f"{label}, given the latent" if "nll.per_token" not in numbers else None
        return (
            Headline(
                "nll.per_token", "Nats per token", "cost", label,
                beside=(("perplexity", "perplexity", "perplexity"), ("given the latent", given, "cost")),
            ),
            Headline(given, "Nats per token, given the latent", "cost", only_given),
            Headline("perplexity", "Perplexity", "perplexity", leading=True),
            Headline("perplexity.given_latent", "Perplexity, given the latent", "perplexity", leading=True),
            Headline("latent.bits_per_token", "Bits of the latent per token", "plain"),
            Headline(
                "latent.bits_per_sentence", "Bits in a latent", "plain",
                "about its sentence: the drop in code length", compared=False,
            ),
        )  # fmt: skip

    def figures(self, metrics: Metrics) -> dict[str, Any]:
        from mm_ldlm.evaluation.report.figures import noise_level

        return {"plot_mask_ratio": noise_level(metrics)}

    def section(self, page: ReportInputs) -> dict[str, Any]:
        return {"label": LABELS[page.suites[self.name]["likelihood"]]}

    def statistics(self, tables: Sequence[pd.DataFrame]) -> dict[str, Callable[[pd.DataFrame], Statistic]]:
        """Choose the costs per token, or per sentence where the runs tokenise these sentences differently.

        The tokens of such runs are different units.
        """
        same = all((rows["tokens"].to_numpy() == tables[0]["tokens"].to_numpy()).all() for rows in tables)
        unit = "token" if same else "sentence"
        names = {"nll": "nats", "nll_given_latent": "nats_given_latent"}
        return {
            f"{name}_per_{unit}": partial(_cost_per, unit, column)
            for column, name in names.items()
            if all(column in rows for rows in tables)
        }


def _cost_per(unit: str, column: str, rows: pd.DataFrame) -> Statistic:
    return ratio_of_counts(rows[column], rows["tokens"]) if unit == "token" else mean_of_counts(rows[column])


def _summary(scores: Scores, texts: Sequence[str]) -> Metrics:
    total = per_token(scores.nll, scores.tokens)
    return {
        "per_token": total,
        "tokens_only_per_token": per_token(scores.token_nll, scores.tokens),
        "length_per_sentence": mean(scores.length_nll),
        "perplexity": perplexity(total),
        "bits_per_character": per_token(scores.nll / math.log(2), [max(len(text), 1) for text in texts]),
        "by_mask_ratio": by_noise_level(scores),
    }


def _zero_shot(
    model: Any, source: TextFile, cost: Callable[..., Scores], parts: Sequence[str], wrap: WrapConfig | None
) -> Metrics:
    lines = [detokenise_published(line, source.detokeniser) for line in read_lines(source)]
    if wrap is None:
        ids = [list(row) for row in model.tokenizer.encode(lines)]
    else:
        lines, ids = wrapped(lines, model.tokenizer, wrap, length=model.max_length)
    fits = [i for i, row in enumerate(ids) if 1 <= len(row) <= model.max_length]
    chosen = fits[: source.limit]
    if not chosen:
        raise EvaluationError(
            f"Expected lines of 1 to {model.max_length} tokens in the text '{source.name}' ({source.path}), found none "
            f"among {len(lines)} lines. Give a file with one sentence per line."
        )
    texts, tokens = [lines[i] for i in chosen], [ids[i] for i in chosen]
    found: Metrics = {
        "sentences": len(chosen),
        "outside_length": len(ids) - len(fits),
        "unknown_fraction": sum(row.count(model.tokenizer.unk_id) for row in tokens) / sum(map(len, tokens)),
    }
    for name in parts:
        if name == "given_latent" and model.no_encoder is not None:
            continue
        latents_nd = model.encode(texts, too_long="truncate") if name == "given_latent" else None
        found[name] = _summary(cost(texts, ids=tokens, latents=latents_nd), texts)
    return found


def read_lines(source: TextFile) -> list[str]:
    """Read the non-empty lines of a UTF-8 file, plain or compressed by gzip."""
    name = f"the text '{source.name}' of evaluation.likelihood.other_texts, {source.path}"
    file = InputFile(source.path, remedy="Correct it, or remove the entry.", error=EvaluationError, name=name)
    return [line for line in file.lines() if line.strip()]


# -- costs ------------------------------------------------------------------------------------------------------------


def _estimate(value: float, error: float) -> dict[str, float]:
    """Make a mean with its standard error over sentences; the interval is ±1.96 standard errors."""
    reach = 1.959964 * error
    return {"value": float(value), "standard_error": float(error), "low": value - reach, "high": value + reach}


def per_token(nll_N: npt.ArrayLike, length_N: npt.ArrayLike) -> dict[str, float]:
    """Compute nats per token, Σ nll ÷ Σ tokens, with the ratio estimator's standard error over sentences.

    Raises:
        EvaluationError: a sentence's cost is not finite.
    """
    nll_N, length_N = np.asarray(nll_N, dtype=np.float64), np.asarray(length_N, dtype=np.float64)
    if not np.isfinite(nll_N).all():
        raise EvaluationError(
            f"Expected a finite negative log-likelihood of every sentence, found {(~np.isfinite(nll_N)).sum()} of "
            f"{len(nll_N)} that are not. The model gives probability 0 to these sentences; check its checkpoint."
        )
    rate, count = nll_N.sum() / length_N.sum(), len(nll_N)
    residual_N = nll_N - rate * length_N
    return _estimate(rate, math.sqrt(count / max(1, count - 1) * (residual_N**2).sum()) / length_N.sum())


def mean(values_N: npt.ArrayLike) -> dict[str, Any]:
    """Compute the mean of per-sentence values with its standard error; a single sentence has none."""
    value_N = np.asarray(values_N, dtype=np.float64)
    if len(value_N) < 2:
        return {"value": float(value_N.mean()), **dict.fromkeys(("standard_error", "low", "high"))}
    return _estimate(value_N.mean(), value_N.std(ddof=1) / math.sqrt(len(value_N)))


def perplexity(rate: Mapping[str, float]) -> dict[str, float] | None:
    """Compute the perplexity of a rate with its interval; None if a number exceeds a float."""
    try:
        return {name: math.exp(rate[name]) for name in ("value", "low", "high")}
    except OverflowError:
        return None


def latent_bits(*, unconditional: Scores, given_latent: Scores) -> dict[str, dict[str, Any]]:
    """Compute the difference of unconditional and conditional cost in bits, per token and per sentence.

    Differences are taken sentence by sentence, so that the standard errors belong to the differences. If both costs
    are upper bounds, their difference estimates the latent's information but does not bound it.
    """
    bits_N = (unconditional.nll - given_latent.nll) / math.log(2)
    return {"per_token": per_token(bits_N, unconditional.tokens), "per_sentence": mean(bits_N)}


def by_noise_level(scores: Scores, *, buckets: int = 10) -> list[dict[str, Any]] | None:
    """Summarise the draws of the NELBO by bucket of noise level; None if the likelihood is not estimated by noise.

    The noise level is the mask ratio where the noise is [MASK], and the tokens scored there are the masked ones.
    Each line has the ends of the bucket, draws, scored tokens, cross-entropy and accuracy per scored token (None
    without any), and the nats per token that the bucket contributes, which sum to the NELBO of the tokens.
    """
    if scores.draw_mask_ratio is None:
        return None
    drawn: Any = scores  # the other values of the draws are present too
    index_KN = np.clip(np.ceil(drawn.draw_mask_ratio * buckets).astype(int) - 1, 0, buckets - 1)
    total = scores.tokens.sum() * len(index_KN)
    lines = []
    for bucket in range(buckets):
        here = index_KN == bucket
        scored = int(drawn.draw_masked[here].sum())
        lines.append(
            {
                "low": bucket / buckets,
                "high": (bucket + 1) / buckets,
                "draws": int(here.sum()),
                "masked_tokens": scored,
                "cross_entropy": drawn.draw_cross_entropy[here].sum() / scored if scored else None,
                "accuracy": drawn.draw_correct[here].sum() / scored if scored else None,
                "nats_per_token": scores.draw_nll[here].sum() / total,
            }
        )
    return lines
