"""Audit a collection: read a sample from its vectors as they are, in each stored form, and behind each defence.

The sample is divided. The texts of the first rows are read from their vectors; the attacker knows the texts and vectors
of the others. All of them are the collection in which retrieval is measured.
"""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mm_ldlm.core import EvaluationError
from mm_ldlm.core.progress import shown
from mm_ldlm.data.latents.recognition import cosines_of, unit
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.extras.audit.config import AuditConfig
from mm_ldlm.extras.audit.defences import (
    Floats,
    Form,
    adaptive,
    forms,
    length_of,
    nearest,
    pairs,
    recall_and_ndcg,
)
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
    from mm_ldlm.inference.api import MMLDLM

log = logging.getLogger(__name__)

CHECKED = 32
"""Rows whose texts are embedded again, to check that their vectors are from the model's encoder"""
ALIKE = 0.9
"""Smallest median cosine of these; stored forms of one byte for each dimension are above it"""
ATTACKERS = ("naive", "adaptive", "trained")
PROTECTED = 0.05
"""Fraction of exact texts below which a level of noise is reported as sufficient"""


def model_of(name: str) -> "MMLDLM":
    """Load an inverter, which also reads vectors that requests refuse."""
    from mm_ldlm.inference.api import MMLDLM

    model = MMLDLM.from_run(run_of(name))
    model.strict = False  # truncated and rotated vectors are read as well
    return model


def audit(config: AuditConfig, model: "MMLDLM", *, seed: int) -> dict[str, Any]:
    """Audit a collection; return plain values, which contain texts only with `config.show_texts`.

    Raises:
        SourceError: the collection cannot be read.
        EvaluationError: its vectors are not from the encoder of the model.
    """
    found, bootstrap = sample(config, dim=model.dim, seed=seed), config.bootstrap.seeded(seed)
    log.info("%s: %d of %d rows are sampled", found.name, len(found), found.rows)
    alike = encoder_cosine(found, model)
    count = audited(config, found)
    texts, vectors_nd = found.texts[:count], found.vectors_nd.astype(np.float64)
    vocabulary = Vocabulary(found.texts)
    reader = Reader(config, model, vectors_nd=vectors_nd, seed=seed)
    rows = compare(texts, outputs := reader.read(vectors_nd[:count]), vocabulary)
    chance = compare(texts, [*outputs[1:], outputs[0]], vocabulary)
    lines = compared(config, reader, found, vectors_nd, vocabulary, bootstrap, seed=seed)
    written, chosen = (str if config.show_texts else masked), most_readable(rows, config.shown)
    lengths = [len(ids) for ids in model.tokenizer.encode(list(texts))]
    return {
        "collection": {
            "name": found.name, "rows": found.rows, "read": found.read, "refused": found.refused,
            "passed_over": found.passed_over, "audited": count, "known": len(found) - count, "dim": model.dim,
            "encoder_cosine": alike, "too_long": sum(length > model.max_length for length in lengths),
        },
        "model": {
            "name": run_of(config.model).name, "step": model.parts.step, "fingerprints": dict(model.parts.fingerprints),
            "max_length": model.max_length, "adapter": _adapter(model),
            "parameters": sum(parameter.numel() for parameter in model.model.model.parameters()),
        },
        "attackers": dict(config.attackers), "search": asdict(config.search), "calls": reader.calls, "seed": seed,
        "bootstrap": asdict(config.bootstrap),
        "readable": shares(rows, bootstrap), "chance": shares(chance, bootstrap),
        "by_kind": by_kind(rows, bootstrap), "by_length": by_length(rows, bootstrap),
        "forms": lines, "queries": min(config.queries, count), "compared": min(config.compared_rows, count),
        "sufficient_noise": sufficient_noise(lines), "protected": PROTECTED,
        "texts_shown": config.show_texts,
        "rows": [
            {"id": found.ids[row], "text": written(texts[row]), "output": written(outputs[row])}
            | _plain(rows.iloc[row])
            for row in chosen
        ],
    }  # fmt: skip


def _adapter(model: "MMLDLM") -> dict[str, Any] | None:
    adapter = getattr(model.normaliser, "adapter", None)
    return None if adapter is None else {name: getattr(adapter, name) for name in ("encoder", "pairs", "cosine")}


def _plain(row: pd.Series) -> dict[str, Any]:
    return {name: row[name].item() for name in ("as_written", "exact", "f1", "words")}


def embeds(model: "MMLDLM") -> bool:
    """Return whether texts can be embedded and compared with the vectors: by their encoder, or through an adapter."""
    return model.no_encoder is None or model.parts.load_own is not None


def encoder_cosine(found: Sample, model: "MMLDLM") -> float | None:
    """Compute the median cosine of vectors to their texts embedded again; None without an encoder.

    Raises:
        EvaluationError: it is below `ALIKE`, or below this part of what an adapter of the model reaches.
    """
    if not embeds(model):
        log.warning("whether the vectors come from the model's encoder is not checked: %s", model.no_encoder)
        return None
    reached = 1.0 if model.no_encoder is None else float(model.normaliser.adapter.about.cosine)
    vectors_nd = found.vectors_nd[:CHECKED]
    alike = float(np.median(model.reembedded(found.texts[:CHECKED], vectors_nd)[0]))
    if alike < ALIKE * reached:
        raise EvaluationError(
            f"{found.name}: expected vectors of the encoder that the model was trained for, with a cosine of about "
            f"{reached:.2g} to their texts embedded again, found a median cosine of {alike:.2f} in "
            f"{len(vectors_nd)} rows, and that they look like {model.recognise(found.vectors_nd)}. Choose the model of "
            "their encoder (audit.model), fit an adapter (mm-ldlm align), or name a column whose vectors belong to the "
            "texts."
        )
    return alike


class Reader:
    """The inverter, and the model calls that it needed.

    Args:
        vectors_nd: the collection, whose median length those that are read receive, unless the encoder's vectors have
            norm 1: a database may store them at another length.
    """

    def __init__(self, config: AuditConfig, model: "MMLDLM", *, vectors_nd: Floats, seed: int) -> None:
        self._config, self._model, self._vectors_nd, self._seed = config, model, vectors_nd, seed
        self._length = 1.0 if model.normaliser.unit_norm else length_of(vectors_nd)
        self._calls: list[float] = []

    @property
    def dim(self) -> int:
        return self._model.dim

    def with_model(self, model: "MMLDLM") -> "Reader":
        """Return a reader with another model."""
        return Reader(self._config, model, vectors_nd=self._vectors_nd, seed=self._seed)

    def scaled(self, vectors_nd: Floats) -> Floats:
        """Scale vectors of any length as the model reads them."""
        return unit(vectors_nd) * self._length

    def read(self, vectors_nd: Floats) -> list[str]:
        """Read texts from vectors, which may have any length."""
        search = self._config.search if embeds(self._model) else None
        made = self._model.invert(self.scaled(vectors_nd), search=search, seed=self._seed)
        self._calls.append(float(np.mean(made.model_calls)))
        return list(made.texts)

    @property
    def calls(self) -> float:
        """Model calls for each text, on average over all readings."""
        return float(np.mean(self._calls))


def compared(
    config: AuditConfig, reader: Reader, found: Sample, vectors_nd: Floats, vocabulary: Vocabulary,
    bootstrap: Bootstrap, *, seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure each form: the texts that each attacker reads, and the retrieval that it keeps.

    `vectors_nd` are the vectors of `found` in float64; the attackers know the rows after the audited ones.

    Raises:
        EvaluationError: `config.attackers` names a form that is not measured, or a run of another dimension.
    """
    count = audited(config, found)
    some, queries, known = min(config.compared_rows, count), min(config.queries, count), len(found) - count
    texts, truth_qk = found.texts[:some], nearest(vectors_nd, vectors_nd[:queries])
    measured = [*_enough(forms(config, vectors_nd, seed=seed), known)]
    trained, lines = _trained(config, reader, [form.name for form in measured]), []
    for form in shown(measured, desc="forms and defences", unit="forms"):
        stored_nd = form.store(vectors_nd)
        name, back = adaptive(*pairs(form, stored_nd[count:], vectors_nd[count:]))
        if config.attacker_data is not None:
            end = count + (form.known_pairs or known)
            write_pairs(
                Path(config.attacker_data), form, found.texts[count:end], reader.scaled(back(stored_nd[count:end]))
            )
        undone_nd = back(stored_nd[:some])
        outputs = {"naive": reader.read(stored_nd[:some])}
        outputs["adaptive"] = outputs["naive"] if name == "none" else reader.read(undone_nd)
        if form.name in trained:
            outputs["trained"] = trained[form.name].read(undone_nd)
        recall_q, ndcg_q = recall_and_ndcg(truth_qk, nearest(stored_nd, form.query(vectors_nd[:queries])))
        read = {kind: shares(compare(texts, each, vocabulary), bootstrap) for kind, each in outputs.items()}
        lines.append(
            {
                "name": form.name, "group": form.group, "bytes": form.bytes_per_vector, "level": form.level,
                "map": name,
                "cosine": float(cosines_of(undone_nd, vectors_nd[:some]).mean()), **read,
                "recall": bootstrap.proportion(recall_q), "ndcg": bootstrap.proportion(ndcg_q),
            }
        )  # fmt: skip
        log.info(
            "%s: exact %s; map %s; recall@10 %.3f", form.name,
            ", ".join(f"{100 * each['exact']['value']:.1f} % {kind}" for kind, each in read.items()), name,
            recall_q.mean(),
        )  # fmt: skip
    return lines


def audited(config: AuditConfig, found: Sample) -> int:
    """Return the number of the first rows, whose texts are read; the attackers know the others."""
    return min(config.rows, len(found) // 2)


def _enough(some: Iterable[Form], known: int) -> Iterator[Form]:
    """Leave out the forms whose attacker would know more rows than there are."""
    for form in some:
        if (form.known_pairs or 0) <= known:
            yield form
        else:
            log.warning(
                "%s: left out, because the sample has only %d rows that the attacker may know", form.name, known
            )


def _trained(config: AuditConfig, reader: Reader, names: Sequence[str]) -> dict[str, Reader]:
    """Load the trained attackers, before anything is read."""
    if unknown := [name for name in config.attackers if name not in names]:
        raise EvaluationError(
            f"audit.attackers: expected names of measured forms, found '{unknown[0]}'. Measured are: "
            f"{'; '.join(names)}."
        )
    models = {name: model_of(run) for name, run in config.attackers.items()}
    for name, model in models.items():
        if model.dim != reader.dim:
            raise EvaluationError(
                f"audit.attackers: expected for '{name}' a run that reads vectors of dimension {reader.dim}, found "
                f"dimension {model.dim}. Name the run that was trained on the file of this form."
            )
    return {name: reader.with_model(model) for name, model in models.items()}


def write_pairs(folder: Path, form: Form, texts: Sequence[str], vectors_nd: Floats) -> None:
    """Write the texts that the attacker knows, with their vectors, as the environment own_vectors reads them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    vectors = pa.FixedSizeListArray.from_arrays(vectors_nd.astype(np.float32).ravel(), vectors_nd.shape[1])
    pq.write_table(
        pa.table({"text": list(texts), "embedding": vectors}),
        folder / f"{re.sub('[^a-z0-9.]+', '-', form.name)}.parquet",
    )


def strongest(line: dict[str, Any]) -> dict[str, float]:
    """Return the fraction of exact texts of the best attacker."""
    found: dict[str, float] = max(
        (line[kind]["exact"] for kind in ATTACKERS if kind in line), key=lambda each: each["value"]
    )
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
