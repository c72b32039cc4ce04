"""Unconditional texts: diversity, memorisation, and optionally generative perplexity and MAUVE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.data.sentences import held_out, texts_of_split
from mm_ldlm.evaluation import generative as gen
from mm_ldlm.evaluation.likelihood import per_token, perplexity
from mm_ldlm.evaluation.overlap import attested_bigrams, memorised
from mm_ldlm.evaluation.suites.base import Evaluation, Form, Headline, Metrics, Suite, token_rows
from mm_ldlm.training.checkpoints.provenance import MADE_BY

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.evaluation.config import GenerationConfig
    from mm_ldlm.evaluation.report.inputs import ReportInputs

EXAMPLES = 40
"""Texts that the report shows"""


class Generation(Suite):
    """Measure the texts that `sampling` generated from noise, and as many real ones, with the same functions.

    Empty texts, which an autoregressive model may generate, are counted (`empty`, a fraction) and left out of all
    other numbers.
    """

    name, title, use = "generation", "Unconditional samples", "unconditional"
    samples = ("unconditional",)
    template = "mm_ldlm.evaluation.suites/generation.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        if (reason := super().skip_reason(given)) is not None:
            return reason
        texts = given.samples["unconditional"]["text"]
        if sum(bool(text.strip()) for text in texts) >= 2:
            return None
        return (
            f"expected at least two unconditional samples that are not empty, found {len(texts)} samples. "
            "Set sampling.unconditional.count and run the sampling pipeline"
        )

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        config, table, seed = given.config.generation, given.samples["unconditional"], given.seed
        kept = [(text, row) for text, row in zip(table["text"], token_rows(table), strict=True) if text.strip() and row]
        real = held_out(given.dataset, count=len(table), seed=seed)
        texts: dict[str, Sequence[str]] = {"generated": [text for text, _ in kept], "real": real.texts}
        tokens: dict[str, Sequence[Sequence[int]]] = {"generated": [row for _, row in kept], "real": real.tokens}
        training = partial(texts_of_split, given.dataset, "train")  # read as a stream by each call
        found: Metrics = {
            "texts": len(table),
            "empty": 1 - len(kept) / len(table),
            "memorised": float(memorised(texts["generated"], training()).mean()),
            "examples": table["text"].tolist()[:EXAMPLES],
        }
        attested = attested_bigrams(list(texts.values()), training())
        for name, attested_n in zip(texts, attested, strict=True):
            found[name] = {
                "attested_bigrams": given.bootstrap.proportion(attested_n),
                **gen.diversity(tokens[name], self_bleu_texts=config.self_bleu_texts, seed=seed),
            }
        if config.causal_model:
            model = gen.CausalModel(config.causal_model, revision=config.revision, device=str(given.model.device))
            for name, some in texts.items():
                found[name] |= _generative(model, some, config)
        if config.mauve:
            found["mauve"] = gen.mauve(texts["generated"], real.texts, featurizer=config.mauve_model, seed=seed)
        return found, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {f"unconditional.{name}": metrics.get(name) for name in ("empty", "memorised", "mauve")}
        names = ("entropy_sample", "entropy_corpus", "self_bleu", "unique", "attested_bigrams", "perplexity")
        for side, prefix in (("generated", "unconditional"), ("real", "real")):
            found |= {f"{prefix}.{name}": metrics[side].get(name) for name in names}
            found[f"{prefix}.distinct_2"] = metrics[side]["distinct"]["2"]
        return found

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        def headline(name: str, label: str, form: Form, note: str | None = None, **more: Any) -> Headline:
            beside = (("held-out text", f"real.{name}", form),)
            return Headline(f"unconditional.{name}", f"Unconditional: {label}", form, note, beside, **more)

        return (
            headline("attested_bigrams", "attested word pairs", "fraction", "found in the training text"),
            headline("distinct_2", "distinct-2", "fraction"),
            headline("entropy_sample", "token entropy", "plain", "nats"),
            headline("self_bleu", "self-BLEU", "points"),
            headline("perplexity", "generative perplexity", "plain", "under another model", leading=True),
            headline("memorised", "memorised", "plain"),
        )

    def section(self, page: ReportInputs) -> dict[str, Any]:
        from mm_ldlm.evaluation.report.content import described_sampler

        how = page.suites[self.name][MADE_BY]["samples"]["samples_unconditional"]["parameters"]
        return {"sampler": described_sampler(how["unconditional"]["text"])}


def _generative(model: gen.CausalModel, texts: Sequence[str], config: GenerationConfig) -> Metrics:
    nll_N, count_N = model.nll(texts, batch_size=config.batch_size)
    scored = count_N > 0  # a text of one token scores nothing where there is no start token
    if not scored.any():
        raise EvaluationError(
            f"Expected texts with tokens to score by '{model.name}', found none among {len(texts)}. Use another model."
        )
    rate = per_token(nll_N[scored], count_N[scored])
    value = perplexity(rate)
    return {"causal_model": model.name, "nll_per_token": rate, "perplexity": value and value["value"]}
