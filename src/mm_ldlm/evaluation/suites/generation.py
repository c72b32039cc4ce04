"""Unconditional texts: diversity, memorisation, and optionally generative perplexity.

Generative perplexity is never the only measure, because it falls when diversity collapses (arXiv:2409.02908): the suite
adds it to the diversity of the same texts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mm_ldlm.core import EvaluationError, foreign_code
from mm_ldlm.data.corpus.record import comparison_form
from mm_ldlm.data.held_out import held_out, texts_of_split
from mm_ldlm.evaluation.report.inputs import ReportInputs, described_sampler
from mm_ldlm.evaluation.suites.base import Evaluation, Form, Headline, Metrics, Suite, token_rows
from mm_ldlm.evaluation.suites.likelihood import per_token, perplexity
from mm_ldlm.training.checkpoints.provenance import MADE_BY
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS

if TYPE_CHECKING:
    from mm_ldlm.evaluation.config import GenerationConfig

ORDERS = (1, 2, 3, 4)
"""Lengths of n-grams"""
EXAMPLES = 40
"""Texts that the report shows"""
_WORDS = re.compile(r"\w+|[^\w\s]")


class Generation(Suite):
    """Measure the texts that `sampling` generated from noise, and as many real ones, with the same functions.

    Empty texts, which an autoregressive model may generate, are counted (`empty`, a fraction) and left out of all
    other numbers.
    """

    name, title, use = "generation", "Unconditional samples", "unconditional"
    samples = ("unconditional",)
    template = "mm_ldlm.evaluation.suites/generation.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        texts = given.samples["unconditional"]["text"]
        few = (
            f"expected at least two unconditional samples that are not empty, found {len(texts)} samples. "
            "Set sampling.unconditional.count, and sampling.unconditional.length to a number where the run has not "
            "learned lengths, and run the sampling pipeline"
        )
        return super().skip_reason(given) or (few if sum(bool(text.strip()) for text in texts) < 2 else None)

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        config, table, seed = given.config.generation, given.samples["unconditional"], given.seed
        kept = [(text, row) for text, row in zip(table["text"], token_rows(table), strict=True) if text.strip() and row]
        real = held_out(given.dataset, count=len(table), seed=seed, split="test")
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
                **diversity(tokens[name], seed=seed),
            }
        if config.causal_model:
            judge = judge_of(config, device=given.model.device)
            for name, some in texts.items():
                found[name] |= generative_perplexity(judge, some, batch_size=config.batch_size)
        return found, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {f"unconditional.{name}": metrics.get(name) for name in ("empty", "memorised")}
        names = ("entropy_sample", "entropy_corpus", "self_bleu", "unique", "attested_bigrams", "perplexity")
        for side, prefix in (("generated", "unconditional"), ("real", "real")):
            shown = {name: metrics[side].get(name) for name in names} | {"distinct_2": metrics[side]["distinct"]["2"]}
            found |= {f"{prefix}.{name}": value for name, value in shown.items()}
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
            headline("memorised", "memorised", "fraction"),
        )

    def section(self, page: ReportInputs) -> dict[str, Any]:
        how = page.suites[self.name][MADE_BY]["samples"]["samples_unconditional"]["parameters"]
        return {"sampler": described_sampler(how["unconditional"]["text"])}


# -- metrics ----------------------------------------------------------------------------------------------------------


def diversity(rows: Sequence[Sequence[int | str]], *, seed: int = 0) -> dict[str, Any]:
    """Compute the diversity of texts given as tokens (ids or words), none of them empty.

    Returns:
        entropy_sample: mean entropy (nats) of the token histogram of each text, as the diffusion papers report it.
        entropy_corpus: entropy (nats) of the histogram of all tokens.
        distinct: fraction of distinct n-grams among all n-grams (Li et al. 2016), n = 1…4.
        self_bleu: mean BLEU-4 (0 to 100) of a text against the others; 100 means that all texts are equal.
        unique: fraction of distinct texts.
    """
    grams = {n: [tuple(row[i : i + n]) for row in rows for i in range(len(row) - n + 1)] for n in ORDERS}
    return {
        **entropies(rows),
        "distinct": {n: len(set(some)) / len(some) if some else 0.0 for n, some in grams.items()},
        "self_bleu": self_bleu(rows, seed=seed),
        "unique": len({tuple(row) for row in rows}) / len(rows),
    }


def entropies(rows: Sequence[Sequence[int | str]]) -> dict[str, float]:
    """Compute the two entropies of `diversity`."""
    return {
        "entropy_sample": float(np.mean([_entropy(row) for row in rows])),
        "entropy_corpus": _entropy([token for row in rows for token in row]),
    }


def _entropy(tokens: Sequence[Any]) -> float:
    return float(-sum(c / len(tokens) * math.log(c / len(tokens)) for c in Counter(tokens).values()))


def self_bleu(rows: Sequence[Sequence[Any]], *, texts: int = 200, seed: int = 0) -> float:
    """Compute the mean BLEU-4 of each chosen text against all others (Zhu et al. 2018), 0 to 100, as sacrebleu smooths.

    At most `texts` texts are drawn with `seed`: every text is compared with all others.
    """
    from sacrebleu.metrics import BLEU

    if len(rows) > texts:
        chosen = np.random.default_rng([seed, 0x5B]).choice(len(rows), size=texts, replace=False)
        rows = [rows[i] for i in sorted(chosen)]
    metric, joined = BLEU(tokenize="none", effective_order=True), [" ".join(map(str, row)) for row in rows]
    scores = [metric.sentence_score(text, joined[:i] + joined[i + 1 :]).score for i, text in enumerate(joined)]
    return float(np.mean(scores))


def judge_of(config: GenerationConfig, *, device: Any) -> CausalModel | CausalRun:
    """Load the model that scores generated texts."""
    name = str(config.causal_model)
    if (Path(name) / CHECKPOINTS).is_dir():
        return CausalRun(name, device=device)
    return CausalModel(name, revision=config.revision, device=str(device))


def generative_perplexity(judge: CausalModel | CausalRun, texts: Sequence[str], *, batch_size: int = 16) -> Metrics:
    """Compute the nats per token and the perplexity of texts under another model, in the tokens of that model."""
    nll_N, count_N = judge.nll(texts, batch_size=batch_size)
    scored = count_N > 0  # a text of one token scores nothing where there is no start token
    if not scored.any():
        raise EvaluationError(
            f"Expected texts with tokens to score by '{judge.name}', found none among {len(texts)}. Use another model."
        )
    rate = per_token(nll_N[scored], count_N[scored])
    value = perplexity(rate)
    return {"causal_model": judge.name, "nll_per_token": rate, "perplexity": value and value["value"]}


class CausalRun:
    """Run of this project with exact likelihoods, that scores texts.

    The end of a text is scored too, and not counted as a token. Texts of more tokens than the run reads are truncated.
    """

    def __init__(self, path: str, *, device: Any = None) -> None:
        from mm_ldlm.inference.api import MMLDLM

        self.name, self.model = path, MMLDLM.from_run(path, device=device)
        if self.model.capabilities.likelihood != "exact":
            raise EvaluationError(
                f"evaluation.generation.causal_model: expected a run with exact likelihoods, found '{path}' "
                f"({self.model.capabilities.trained_as}). Give a run of an autoregressive model."
            )
        self.weights = self.model.parts.weights

    def nll(self, texts: Sequence[str], *, batch_size: int = 16) -> tuple[np.ndarray, np.ndarray]:
        """Compute (nats per text, tokens per text) in the run's own tokens; the run chooses its batches itself."""
        scores = self.model.score(texts, ids=self.model.ids(texts, too_long="truncate"))
        return scores.nll, scores.tokens.astype(np.float64)


class CausalModel:
    """Causal language model of `transformers`, from a folder or the hub, that scores texts."""

    def __init__(self, name_or_path: str, *, revision: str | None = None, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        with foreign_code(lambda reason: EvaluationError(
            f"The causal model '{name_or_path}' cannot be loaded ({reason}). Give a hub name that this machine can "
            "reach or has in its cache, or a local folder with model and tokenizer."
        ), OSError, ValueError):  # fmt: skip
            self.tokenizer = AutoTokenizer.from_pretrained(name_or_path, revision=revision)
            model: Any = AutoModelForCausalLM.from_pretrained(name_or_path, revision=revision)
        self.name, self.device, self.model = name_or_path, device, model.to(device).eval()

    def nll(self, texts: Sequence[str], *, batch_size: int = 16) -> tuple[np.ndarray, np.ndarray]:
        """Compute (nats per text, scored tokens per text) in the model's own tokens.

        Where the tokenizer has a start token, it is prepended and every token of the text is scored; otherwise the
        first token is context only. Texts longer than the model's window are refused and not truncated.
        """
        import torch
        from torch.nn.functional import cross_entropy
        from torch.nn.utils.rnn import pad_sequence

        start = [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        rows = [start + self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        window = getattr(self.model.config, "max_position_embeddings", None)
        if window and (longest := max(map(len, rows))) > window:
            raise EvaluationError(
                f"The causal model '{self.name}' reads {window} tokens, found a text of {longest}. "
                "Use a model with a longer window."
            )
        nll_N, count_N = np.zeros(len(rows)), np.array([max(0, len(row) - 1) for row in rows], dtype=np.float64)
        order = np.argsort([len(row) for row in rows], kind="stable")
        for chosen in np.array_split(order, range(batch_size, len(order), batch_size)):
            ids_BL = pad_sequence([torch.tensor(rows[i], dtype=torch.long) for i in chosen], True).to(self.device)
            valid_BL = pad_sequence([torch.ones(len(rows[i]), dtype=torch.bool) for i in chosen], True).to(self.device)
            with torch.no_grad():
                logits_BLV = self.model(input_ids=ids_BL, attention_mask=valid_BL.long()).logits.float()
            loss_BL = cross_entropy(logits_BLV[:, :-1].transpose(1, 2), ids_BL[:, 1:], reduction="none").double()
            nll_N[chosen] = (loss_BL * valid_BL[:, 1:]).sum(dim=1).cpu().numpy()
        return nll_N, count_N


# -- overlap with the training texts, which are read as a stream and not kept in memory -------------------------------


def memorised(outputs: Sequence[str], training_texts: Iterable[str]) -> np.ndarray:
    """Find the outputs that are training sentences, compared by `comparison_form`: (n,) bool.

    On held-out sources a high fraction means that the model reproduces its training set and ignores the latent.
    """
    forms = [comparison_form(text) for text in outputs]
    found = set(forms).intersection(map(comparison_form, training_texts))
    return np.array([form in found for form in forms], dtype=bool)


def attested_bigrams(groups: Sequence[Sequence[str]], training_texts: Iterable[str]) -> list[np.ndarray]:
    """Compute the fraction of each text's word bigrams, text edges included, that occur in a training text: (n,) each.

    Texts that lack fluency have few; held-out texts give the reference value.
    """
    pairs = [[_bigrams(text) for text in texts] for texts in groups]
    wanted = {pair for rows in pairs for row in rows for pair in row}
    found: set[tuple[str, str]] = set()
    for text in training_texts:
        found.update(wanted.intersection(_bigrams(text)))
    return [np.array([sum(pair in found for pair in row) / len(row) for row in rows]) for rows in pairs]


def _bigrams(text: str) -> list[tuple[str, str]]:
    return list(pairwise(["", *words(text), ""]))


def words(text: str) -> list[str]:
    """Split a text into words and punctuation marks in its form for comparison."""
    return _WORDS.findall(comparison_form(text))
