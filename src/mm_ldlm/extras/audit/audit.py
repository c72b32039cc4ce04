"""The audit: a sample is read from its vectors as they are, in each stored form, and behind each defence.

The sample is divided. The texts of the first rows are read from their vectors; the attacker knows the texts and vectors
of the others. All of them are the collection in which retrieval is measured.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.extras.audit.config import AuditConfig
from mm_ldlm.extras.audit.defences import Floats, adaptive, cosines, forms, nearest, pairs, recall_and_ndcg, scaled
from mm_ldlm.extras.audit.readable import (
    Vocabulary,
    by_kind,
    by_length,
    compare,
    masked,
    most_readable,
    shares,
)
from mm_ldlm.extras.audit.sources import Sample, sample
from mm_ldlm.inference.files import run_of

if TYPE_CHECKING:
    from mm_ldlm.inference import MMLDLM

log = logging.getLogger(__name__)

CHECKED = 32
"""Rows whose texts are embedded again, to see whether their vectors are those of the model's encoder"""
ALIKE = 0.9
"""Smallest median cosine of these; stored forms of one byte for each dimension are above it"""
PROTECTED = 0.05
"""Fraction of exact texts below which a level of noise is reported as sufficient"""


def model_of(config: AuditConfig) -> "MMLDLM":
    """Load the inverter, which also reads vectors that requests refuse."""
    from mm_ldlm.inference import MMLDLM

    model = MMLDLM.from_run(run_of(config.model))
    model.strict = False  # truncated and rotated vectors are read as well
    return model


def audit(config: AuditConfig, model: "MMLDLM", *, seed: int) -> dict[str, Any]:
    """Audit a collection; return plain values, which contain texts only with `config.show_texts`.

    Raises:
        SourceError: the collection cannot be read.
        EvaluationError: its vectors are not those of the encoder of the model.
    """
    found, bootstrap = sample(config, dim=model.dim, seed=seed), config.bootstrap.seeded(seed)
    log.info("%s: %d of %d rows are sampled", found.name, len(found), found.rows)
    alike = encoder_cosine(found, model)
    count = min(config.rows, len(found) // 2)
    texts, vectors_nd = found.texts[:count], found.vectors_nd.astype(np.float64)
    vocabulary = Vocabulary(found.texts)
    reader = Reader(config, model, like_nd=vectors_nd, seed=seed)
    rows = compare(texts, outputs := reader.read(vectors_nd[:count]), vocabulary)
    chance = compare(texts, [*outputs[1:], outputs[0]], vocabulary)
    lines = compared(config, reader, texts, vectors_nd, vocabulary, bootstrap, seed=seed)
    show, chosen = (str if config.show_texts else masked), most_readable(rows, config.shown)
    lengths = [len(ids) for ids in model.tokenizer.encode(list(texts))]
    return {
        "collection": {
            "name": found.name, "rows": found.rows, "read": found.read, "refused": found.refused,
            "passed_over": found.passed_over, "audited": count, "known": len(found) - count, "dim": model.dim,
            "encoder_cosine": alike, "too_long": sum(length > model.max_length for length in lengths),
        },
        "model": {
            "name": config.model, "step": model.parts.step, "fingerprints": dict(model.parts.fingerprints),
            "max_length": model.max_length,
            "parameters": sum(parameter.numel() for parameter in model.model.model.parameters()),
        },
        "search": asdict(config.search), "calls": reader.calls, "seed": seed,
        "bootstrap": asdict(config.bootstrap),
        "readable": shares(rows, bootstrap), "chance": shares(chance, bootstrap),
        "by_kind": by_kind(rows, bootstrap), "by_length": by_length(rows, bootstrap),
        "forms": lines, "queries": min(config.queries, count), "compared": min(config.compared_rows, count),
        "sufficient_noise": sufficient_noise(lines), "protected": PROTECTED,
        "texts_shown": config.show_texts,
        "rows": [
            {"id": found.ids[row], "text": show(texts[row]), "output": show(outputs[row]), **_plain(rows.iloc[row])}
            for row in chosen
        ],
    }  # fmt: skip


def _plain(row: pd.Series) -> dict[str, Any]:
    return {name: row[name].item() for name in ("as_written", "exact", "f1", "words")}


def encoder_cosine(found: Sample, model: "MMLDLM") -> float | None:
    """Compute the median cosine of vectors to those of their texts embedded again; None without an encoder.

    Raises:
        EvaluationError: it is below `ALIKE`.
    """
    if model.no_encoder is not None:
        log.warning("whether the vectors are those of the model's encoder is not checked: %s", model.no_encoder)
        return None
    again_nd = np.asarray(model.encode(list(found.texts[:CHECKED]), too_long="truncate"), np.float64)
    alike = float(np.median(cosines(found.vectors_nd[:CHECKED].astype(np.float64), again_nd)))
    if alike < ALIKE:
        raise EvaluationError(
            f"{found.name}: expected vectors of the encoder that the model was trained for, with a cosine of about 1 "
            f"to those of their texts embedded again, found a median cosine of {alike:.2f} in {len(again_nd)} rows, "
            f"and that they look like {model.recognise(found.vectors_nd)}. Choose the model of their encoder "
            "(audit.model), or a column whose vectors belong to the texts."
        )
    return alike


class Reader:
    """The inverter, and the model calls that it needed.

    Args:
        like_nd: vectors of the collection, whose median length those that are read receive.
    """

    def __init__(self, config: AuditConfig, model: "MMLDLM", *, like_nd: Floats, seed: int) -> None:
        self._config, self._model, self._like_nd, self._seed = config, model, like_nd, seed
        self._calls: list[float] = []

    def read(self, vectors_nd: Floats) -> list[str]:
        """Read texts from vectors, which may have any length."""
        search = self._config.search if self._model.no_encoder is None else None
        with _quiet("mm_ldlm.inference.model"):
            made = self._model.invert(scaled(vectors_nd, self._like_nd), search=search, seed=self._seed)
        self._calls.append(float(np.mean(made.model_calls)))
        return list(made.texts)

    @property
    def calls(self) -> float:
        """Model calls for each text, on average over all readings."""
        return float(np.mean(self._calls))


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Suppress the warnings of a logger: altered vectors are unlike those of the training, as they should be."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def compared(
    config: AuditConfig, reader: Reader, texts: Sequence[str], vectors_nd: Floats, vocabulary: Vocabulary,
    bootstrap: Bootstrap, *, seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure each form: the texts that both attackers read, and the retrieval that it keeps."""
    some, queries = min(config.compared_rows, len(texts)), min(config.queries, len(texts))
    truth_qk = nearest(vectors_nd, vectors_nd[:queries])
    lines, known = [], len(vectors_nd) - len(texts)
    for form in forms(config, vectors_nd, seed=seed):
        if (form.known_pairs or 0) > known:
            log.warning(
                "%s: left out, because the sample has only %d rows that the attacker may know", form.name, known
            )
            continue
        stored_nd = form.store(vectors_nd)
        name, back = adaptive(*pairs(form, stored_nd[len(texts) :], vectors_nd[len(texts) :]))
        undone_nd = back(stored_nd[:some])
        naive = reader.read(stored_nd[:some])
        clever = naive if name == "none" else reader.read(undone_nd)
        recall_q, ndcg_q = recall_and_ndcg(truth_qk, nearest(stored_nd, form.query(vectors_nd[:queries])))
        read = {
            kind: shares(compare(texts[:some], outputs, vocabulary), bootstrap)
            for kind, outputs in (("naive", naive), ("adaptive", clever))
        }
        lines.append(
            {
                "name": form.name, "group": form.group, "bytes": form.bytes_per_vector, "level": form.level,
                "map": name,
                "cosine": float(cosines(undone_nd, vectors_nd[:some]).mean()), **read,
                "recall": bootstrap.proportion(recall_q), "ndcg": bootstrap.proportion(ndcg_q),
            }
        )  # fmt: skip
        log.info(
            "%s: exact %.1f %% naive, %.1f %% adaptive (%s); recall@10 %.3f", form.name,
            100 * read["naive"]["exact"]["value"], 100 * read["adaptive"]["exact"]["value"], name, recall_q.mean(),
        )  # fmt: skip
    return lines


def strongest(line: dict[str, Any], share: str = "exact") -> dict[str, float]:
    """Return the fraction that the better of both attackers recovers."""
    found: dict[str, float] = max((line["naive"][share], line["adaptive"][share]), key=lambda each: each["value"])
    return found


def sufficient_noise(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Find the noise at which the exact texts fall below `PROTECTED`, between two levels; None if none suffices.

    Between the levels, the logarithm of the noise, the fraction and the retrieval are taken as linear.
    """
    levels = [(0.0, next(line for line in lines if line["name"] == "as it is"))]
    levels += sorted(((line["level"], line) for line in lines if line["level"]), key=lambda each: each[0])
    for (low, above), (high, below) in pairwise(levels):
        first, second = strongest(above)["value"], strongest(below)["value"]
        if second < PROTECTED <= first:
            part = (first - PROTECTED) / (first - second)
            level = high * part if low == 0 else math.exp((1 - part) * math.log(low) + part * math.log(high))
            kept = {key: (1 - part) * above[key]["value"] + part * below[key]["value"] for key in ("recall", "ndcg")}
            return {"level": level, "between": [low, high], **kept}
    return None
