"""Quality of unconditional samples: generative perplexity under another language model, and diversity.

Generative perplexity is never reported alone, because it falls when diversity collapses (arXiv:2409.02908):
`GenerativeScore` cannot be constructed without token entropy, distinct-n and self-BLEU of the same texts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.likelihood import Estimate, per_token


@dataclass(frozen=True, kw_only=True)
class Diversity:
    """Diversity of generated texts.

    Attributes:
        entropy_sample: mean entropy (nats) of the token histogram of each text, as the diffusion papers report it.
        entropy_corpus: entropy (nats) of the histogram of all tokens.
        distinct: fraction of distinct n-grams among all n-grams, n = 1…4.
        self_bleu: mean BLEU-4 (0 to 100) of a text against the others; 100 means that all texts are equal.
        unique: fraction of distinct texts.
    """

    texts: int
    entropy_sample: float
    entropy_corpus: float
    distinct: dict[int, float]
    self_bleu: float
    unique: float


@dataclass(frozen=True, kw_only=True)
class GenerativeScore:
    """Generative perplexity together with the diversity of the same texts."""

    nll_per_token: Estimate
    diversity: Diversity

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll_per_token.value)


def diversity(token_rows: Sequence[Sequence[int | str]], *, self_bleu_texts: int = 200, seed: int = 0) -> Diversity:
    """Compute the diversity of texts given as tokens (ids or words).

    Self-BLEU (Zhu et al. 2018) is computed on at most `self_bleu_texts` texts drawn with `seed`, each against all the
    others.
    """
    rows = [list(row) for row in token_rows]
    if len(rows) < 2 or not all(rows):
        raise EvaluationError(
            f"Diversity needs at least two texts, none of them empty; found {len(rows)} texts, "
            f"{sum(not r for r in rows)} of them empty."
        )
    everything: Counter = Counter()
    for row in rows:
        everything.update(row)
    return Diversity(
        texts=len(rows),
        entropy_sample=float(np.mean([_entropy(Counter(row)) for row in rows])),
        entropy_corpus=_entropy(everything),
        distinct={n: distinct_n(rows, n) for n in range(1, 5)},
        self_bleu=self_bleu(rows, texts=self_bleu_texts, seed=seed),
        unique=len({tuple(row) for row in rows}) / len(rows),
    )


def _entropy(counts: Counter) -> float:
    total = sum(counts.values())
    return float(-sum(c / total * math.log(c / total) for c in counts.values()))


def distinct_n(rows: Sequence[Sequence], n: int) -> float:
    """Compute distinct n-grams ÷ all n-grams (Li et al. 2016); 0 if no text is long enough."""
    grams = [tuple(row[i : i + n]) for row in rows for i in range(len(row) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def self_bleu(rows: Sequence[Sequence], *, texts: int = 200, seed: int = 0, order: int = 4) -> float:
    """Compute the mean BLEU-`order` of each chosen text against all others, 0 to 100, smoothed as in sacrebleu.

    One pass suffices: the largest and the second-largest count of an n-gram over the texts give its clipping count when
    any single text is excluded.
    """
    from sacrebleu.metrics import BLEU

    chosen = list(rows)
    if len(chosen) > texts:
        pick = np.random.default_rng([seed, 0x5B]).choice(len(chosen), size=texts, replace=False)
        chosen = [chosen[i] for i in sorted(pick)]
    lengths = np.array([len(row) for row in chosen])
    per_text: list[list[Counter]] = [
        [Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1)) for n in range(1, order + 1)] for row in chosen
    ]
    top: dict[tuple, tuple[int, int, int]] = {}  # n-gram → (largest count, its text, second largest)
    for index, counters in enumerate(per_text):
        for counter in counters:
            for gram, count in counter.items():
                first, owner, second = top.get(gram, (0, -1, 0))
                if count > first:
                    top[gram] = (count, index, first)
                elif count > second:
                    top[gram] = (first, owner, count)
    scores = []
    for index, counters in enumerate(per_text):
        correct, total = [], []
        for counter in counters:
            others = ((count, top[gram]) for gram, count in counter.items())
            correct.append(sum(min(count, entry[2] if entry[1] == index else entry[0]) for count, entry in others))
            total.append(sum(counter.values()))
        rest = np.delete(lengths, index)
        nearest = int(min(rest, key=lambda size: (abs(size - lengths[index]), size)))
        scores.append(
            BLEU.compute_bleu(
                correct, total, int(lengths[index]), nearest, smooth_method="exp", effective_order=True
            ).score
        )
    return float(np.mean(scores))


class CausalModel:
    """Causal language model of `transformers`, from a folder or the hub, that scores texts."""

    def __init__(self, name_or_path: str, *, revision: str | None = None, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(name_or_path, revision=revision)
            model: Any = AutoModelForCausalLM.from_pretrained(name_or_path, revision=revision)
            self.model = model.to(device).eval()
        except (OSError, ValueError) as error:
            reason, *_ = str(error).split("\n")
            raise EvaluationError(
                f"The causal model '{name_or_path}' cannot be loaded "
                f"({type(error).__name__}: {reason}). Give a hub name that this machine can reach or "
                "has in its cache, or a local folder with model and tokenizer."
            ) from error
        self.name, self.device = name_or_path, device

    def nll(self, texts: Sequence[str], *, batch_size: int = 16) -> tuple[np.ndarray, np.ndarray]:
        """Compute (nats per text, scored tokens per text) in the model's own tokens.

        Where the tokenizer has a start token, it is prepended and every token of the text is scored; otherwise the
        first token is context only. Texts longer than the model's window are refused and not truncated.
        """
        import torch
        import torch.nn.functional as F

        start = self.tokenizer.bos_token_id
        rows = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        rows = [([start] if start is not None else []) + list(row) for row in rows]
        window = getattr(self.model.config, "max_position_embeddings", None)
        if window and (longest := max(map(len, rows))) > window:
            raise EvaluationError(
                f"The causal model '{self.name}' reads {window} tokens, found a text of {longest}. "
                "Use a model with a longer window."
            )
        nll_N, count_N = np.zeros(len(rows)), np.zeros(len(rows))
        order = np.argsort([len(row) for row in rows], kind="stable")
        for begin in range(0, len(rows), batch_size):
            chosen = order[begin : begin + batch_size]
            padded = max(len(rows[i]) for i in chosen)
            ids_BL = torch.zeros(len(chosen), padded, dtype=torch.long)
            valid_BL = torch.zeros(len(chosen), padded, dtype=torch.bool)
            for line, i in enumerate(chosen):
                ids_BL[line, : len(rows[i])] = torch.tensor(rows[i], dtype=torch.long)
                valid_BL[line, : len(rows[i])] = True
            with torch.no_grad():
                logits_BLV = self.model(
                    input_ids=ids_BL.to(self.device), attention_mask=valid_BL.long().to(self.device)
                ).logits.float()
            loss_BL = F.cross_entropy(
                logits_BLV[:, :-1].transpose(1, 2).cpu(), ids_BL[:, 1:], reduction="none"
            ).double()
            scored_BL = valid_BL[:, 1:]
            nll_N[chosen] = (loss_BL * scored_BL).sum(dim=1).numpy()
            count_N[chosen] = scored_BL.sum(dim=1).numpy()
        return nll_N, count_N


def generative_score(
    texts: Sequence[str],
    model: CausalModel,
    *,
    token_rows: Sequence[Sequence[int | str]] | None = None,
    batch_size: int = 16,
    self_bleu_texts: int = 200,
    seed: int = 0,
) -> GenerativeScore:
    """Compute the generative perplexity of `texts` under `model`, and their diversity.

    Diversity counts `token_rows`, or the model's own tokens where there are none.
    """
    nll_N, count_N = model.nll(texts, batch_size=batch_size)
    kept = count_N > 0  # a text of one token scores nothing where there is no start token
    if not kept.any():
        raise EvaluationError(f"None of the {len(texts)} generated texts has a token to score.")
    rows = (
        token_rows
        if token_rows is not None
        else [model.tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]
    )
    return GenerativeScore(
        nll_per_token=per_token(nll_N[kept], count_N[kept]),
        diversity=diversity(rows, self_bleu_texts=self_bleu_texts, seed=seed),
    )


def mauve(generated: Sequence[str], real: Sequence[str], *, featurizer: str, seed: int = 0) -> float:
    """Compute MAUVE (Pillutla et al. 2021) with the package `mauve-text`.

    Raises:
        EvaluationError: the package, which is optional, is not installed.
    """
    try:
        import mauve as library
    except ModuleNotFoundError:
        raise EvaluationError(
            "MAUVE needs the package 'mauve-text', which is not installed here: `pip install mauve-text`, "
            "or leave evaluation.generation.mauve at false."
        ) from None
    result = library.compute_mauve(
        p_text=list(real), q_text=list(generated), featurize_model_name=featurizer, seed=seed, verbose=False
    )
    return float(result.mauve)
