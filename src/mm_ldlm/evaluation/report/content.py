"""Content of the page below its cards: tables, examples and provenance as plain values for the template."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core.messages import duration
from mm_ldlm.evaluation.headline import MOST_UNKNOWN
from mm_ldlm.evaluation.report.cards import percent
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.training.checkpoints.provenance import MADE_BY
from mm_ldlm.training.jsonl import number


def lede(inputs: ReportInputs) -> str:
    """Describe the model and its training in one sentence, as far as the artifacts contain it."""
    config, counts = inputs.run_config, inputs.ingestion_report
    model, objective = config.get("model") or {}, config.get("objective") or {}
    encoder = (config.get("encoder") or {}).get("name") or (config.get("encoder") or {}).get("path")
    size, own = parameter_count(inputs.events), _parameters_of_objective(inputs.events)
    words = ["A model"]
    if kind := model.get("kind"):
        words.append(f"of kind “{kind}”")
    if size:
        words.append(f"with {(size - own) / 1e6:.1f} M parameters")
    if shape := [f"{key} {model[key]}" for key in ("depth", "dim", "heads") if key in model]:
        words.append(f"({', '.join(shape)})")
    words.append("was trained")
    if kind := objective.get("kind"):
        process = (objective.get("process") or {}).get("kind")
        words.append(f"with the objective “{kind}”" + (f" and the process “{process}”" if process else ""))
        if own >= 50_000:  # smaller ones, such as a head, would be 0.0 M
            words[-1] += f" ({own / 1e6:.1f} M further parameters)"
    if train := (counts.get("splits") or {}).get("train"):
        words.append(f"on {train:,} examples of {', '.join(source_names(inputs)) or 'text'}")
    if encoder:
        words.append(f"and their latents by the encoder {encoder}")
    if step := inputs.run.get("step") or (inputs.log[-1].get("step") if inputs.log else None):
        words.append(f"for {int(step):,} steps")
    if seconds := inputs.timings.get("training"):
        words.append(f"in {duration(seconds)}")
    return " ".join(words) + "."


def parameter_count(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number of trained and frozen parameters by the last event "trains"; None if there is no such event."""
    counts = [event.get("parameters") for event in events if event.get("event") == "trains"]
    return int(counts[-1]) if counts and counts[-1] else None


def _parameters_of_objective(events: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of parameters of the objective, which are outside the model, by the last event "trains"."""
    last: Mapping[str, Any] = next((event for event in reversed(events) if event.get("event") == "trains"), {})
    return int(last.get("objective_parameters", 0))


def left_out(inputs: ReportInputs) -> list[tuple[str, str]]:
    """List (section, reason) of every section that this run has no content for."""
    nothing = "the evaluation has no results for it"
    found = []
    if not inputs.inversion.get("metrics"):
        found.append(("From latent to text", inputs.inversion.get("skipped") or nothing))
    found += [("Part of the inversion", reason) for reason in inputs.inversion.get("left_out") or ()]
    if not inputs.latents.get("samplers"):
        found.append(("From text to latent", inputs.latents.get("skipped") or nothing))
    if not inputs.sts.get("sets"):
        empty = "no STS sets are configured (evaluation.sts.sets)" if "sets" in inputs.sts else nothing
        found.append(("Semantic textual similarity", inputs.sts.get("skipped") or empty))
    elif inputs.sts.get("skipped"):
        found.append(("STS of the model", inputs.sts["skipped"]))
    if inputs.sts.get("left_out"):
        found.append(("STS of the encoder", inputs.sts["left_out"]))
    for name, entry in (inputs.sts.get("sets") or {}).items():
        if (unknown := entry.get("unknown") or 0.0) > MOST_UNKNOWN:
            words = f"{percent(unknown)} of its sentences contain words outside the run's vocabulary"
            found.append((f"STS {name} among the headlines", words))
    if not (inputs.likelihood.get("unconditional") or inputs.likelihood.get("given_latent")):
        found.append(("Likelihood", inputs.likelihood.get("skipped") or nothing))
    found += [("Part of the likelihood", reason) for reason in inputs.likelihood.get("left_out") or ()]
    if not inputs.generation.get("generated"):
        found.append(("Unconditional samples", inputs.generation.get("skipped") or nothing))
    if (reason := inputs.images.get("left_out")) is not None:
        found.append(("Labels of images", reason))
    return [(section, str(reason).rstrip(".") + ".") for section, reason in found]


def source_names(inputs: ReportInputs) -> list[str]:
    """List the names of the text sources in the parameters."""
    sources = (inputs.parameters.get("ingestion") or {}).get("sources") or []
    return [str(s.get("name") or s.get("path") or s.get("kind")) for s in sources if isinstance(s, Mapping)]


def unconditional_sampler(inputs: ReportInputs) -> str | None:
    """Describe the text sampler of the unconditional samples from the parameters that are stored with them."""
    parameters = (inputs.unconditional.attrs.get(MADE_BY) or {}).get("parameters") or {}
    return _sampler((parameters.get("unconditional") or {}).get("text") or {})


def inversion_sampler(inputs: ReportInputs) -> tuple[str | None, str | None]:
    """Describe the text sampler and the search of the reconstructions from the parameters that are stored with them.

    The search is None if every sentence was written once and not embedded again.
    """
    made_by = (inputs.inversion.get(MADE_BY) or {}).get("samples") or {}
    parameters = (made_by.get("samples_l2t") or {}).get("parameters") or {}
    search = parameters.get("search") or {}
    candidates, rounds = search.get("candidates", 1), search.get("rounds", 0)
    described = f"candidates {candidates}, rounds {rounds}" if candidates > 1 or rounds > 0 else None
    return _sampler(parameters.get("text") or {}), described


def _sampler(parameters: Mapping[str, Any]) -> str | None:
    options = dict(parameters)
    if (kind := options.pop("kind", None)) is None:
        return None
    described = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    return f"{kind} ({described})" if described else str(kind)


# -- examples --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """One held-out sentence and its reconstruction. pieces: ('same' | 'lost' | 'made', words) in reading order."""

    kind: str
    reference: str
    pieces: list[tuple[str, str]]
    exact: bool
    accuracy: float
    cosine: float | None


def examples(rows: pd.DataFrame, *, count: int, seed: int) -> dict[str, list[Example]]:
    """Choose examples of inversion.

    'any': drawn at random. 'worst': lowest token accuracy, then lowest cosine. 'near': wrong, but nearest by cosine.
    """
    if len(rows) == 0 or "exact" not in rows:
        return {}
    rows = rows.assign(accuracy=rows["matches"] / rows["positions"].clip(lower=1))
    by = ["accuracy", "cosine"] if "cosine" in rows else ["accuracy"]
    drawn = np.sort(np.random.default_rng([seed, 0xE4]).permutation(len(rows))[:count])
    wrong = rows[~rows["exact"].astype(bool)]
    chosen = {
        "any": rows.iloc[drawn],
        "worst": wrong.sort_values(by).head(count),
    }
    if "cosine" in rows:
        chosen["near"] = wrong.sort_values("cosine", ascending=False).head(count)
    return {
        kind: [_example(kind, {str(k): v for k, v in row.items()}) for row in part.to_dict(orient="records")]
        for kind, part in chosen.items()
        if len(part)
    }


def _example(kind: str, row: Mapping[str, Any]) -> Example:
    cosine = row.get("cosine")
    return Example(
        kind=kind,
        reference=str(row["reference"]),
        pieces=word_difference(str(row["reference"]), str(row["hypothesis"])),
        exact=bool(row["exact"]),
        accuracy=float(row["accuracy"]),
        cosine=None if cosine is None or not math.isfinite(cosine) else float(cosine),
    )


def word_difference(reference: str, hypothesis: str) -> list[tuple[str, str]]:
    """Compare two texts word by word: the words kept ('same'), lost and made."""
    a, b = reference.split(), hypothesis.split()
    found: list[tuple[str, str]] = []
    for operation, i, j, k, m in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
        if operation == "equal":
            found.append(("same", " ".join(b[k:m])))
            continue
        if j > i:
            found.append(("lost", " ".join(a[i:j])))
        if m > k:
            found.append(("made", " ".join(b[k:m])))
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


def inversion_table(inversion: Mapping[str, Any]) -> list[dict[str, str]]:
    """Make the table of inversion as text: one row per metric, one column for the model and each baseline."""
    if "metrics" not in inversion:
        return []
    labels = {
        "exact_match": ("Exact match", "fraction"),
        "token_accuracy": ("Token accuracy", "fraction"),
        "token_set_f1": ("Token-set F1 (vec2text)", "fraction"),
        "bleu": ("BLEU, corpus", "points"),
        "sentence_bleu": ("BLEU, mean of sentences", "points"),
        "chrf": ("chrF", "points"),
        "rouge_l": ("ROUGE-L", "fraction"),
        "cosine": ("Cosine, re-embedded", "cosine"),
        "exact_match_as_written": ("Exact match, as written", "fraction"),
        "token_set_f1_as_written": ("Token-set F1, as written", "fraction"),
        "bleu_as_written": ("BLEU, as written", "points"),
    }
    columns = {"model": inversion["metrics"]}
    columns |= {name: entry["metrics"] for name, entry in (inversion.get("baselines") or {}).items()}
    return [
        {"label": label, **{name: spelled(values.get(key), kind) for name, values in columns.items()}}
        for key, (label, kind) in labels.items()
        if key in inversion["metrics"]
    ]


def spelled(value: Mapping[str, float] | float | None, kind: str) -> str:
    """Format a number, with its interval in brackets where it has one."""
    if value is None:
        return "–"
    forms = {"points": "{:.1f}", "cosine": "{:.3f}", "nats": "{:.3f}", "plain": "{:.2f}"}
    form = percent if kind == "fraction" else forms[kind].format
    if not isinstance(value, Mapping):
        return form(value)
    if value["low"] == value["high"] == value["value"]:
        return form(value["value"])
    return f"{form(value['value'])} [{form(value['low'])}, {form(value['high'])}]"


def findings(validation_report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the findings of validation, the most severe first."""
    order = {"error": 0, "fail": 0, "critical": 0, "warning": 1, "warn": 1, "info": 2, "ok": 3, "pass": 3}
    listed = validation_report.get("findings") or []
    return sorted(
        (dict(item) for item in listed if isinstance(item, Mapping)),
        key=lambda f: order.get(str(f.get("severity")).lower(), 2),
    )


def spikes(events: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> str | None:
    """Explain the events `spike` in a sentence with their number; None if there are none."""
    count = sum(event.get("event") == "spike" for event in events)
    if not count:
        return None
    guard = (parameters.get("training") or {}).get("guard") or {}
    limit = f"more than {guard['spike_z']:g}" if "spike_z" in guard else "many"
    what = "1 step was a spike" if count == 1 else f"{count:,} steps were spikes"
    return (
        f"{what}: the loss or the gradient norm was {limit} robust standard deviations above its median over the "
        "preceding steps of the same kind. Such a step is logged and applied, with its gradient clipped."
    )


def validation_losses(log: Sequence[Mapping[str, Any]]) -> str | None:
    """Describe the last and the lowest validation loss in a sentence; None if none was computed."""
    found = [(number(line.get("validation/loss")), line["step"]) for line in log if "validation/loss" in line]
    finite = [(loss, step) for loss, step in found if loss is not None and math.isfinite(loss)]
    if not finite:
        return None
    (last, step), (lowest, best) = finite[-1], min(finite)
    text = f"The validation loss of the averaged weights is {last:.3f} at step {step:,}"
    return f"{text}." if best == step else f"{text}; its lowest value is {lowest:.3f}, at step {best:,}."


def event_lines(events: Sequence[Mapping[str, Any]], *, most: int = 200) -> list[tuple[str, str, list[str]]]:
    """Format the first `most` events as (step, kind, lines), with one line per list item and nested value.

    The sentences that were shown while the model learned are left out.
    """
    found = []
    for event in [event for event in events if event.get("event") != "preview"][:most]:
        lines: list[str] = []
        for key, value in event.items():
            if key in ("step", "event", "time") or value is None:
                continue
            if isinstance(value, (list, tuple)):
                lines += [str(item) for item in value]
            else:
                lines += [f"{name}: {text}" for name, text in flatten(value, str(key))]
        found.append((str(event.get("step", "")), str(event.get("event", "")), lines))
    return found


def flatten(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested parameters to (dotted key, text) pairs."""
    if isinstance(values, Mapping):
        return [
            pair for key, item in values.items() for pair in flatten(item, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(values, (list, tuple)) and any(isinstance(item, Mapping) for item in values):
        return [pair for i, item in enumerate(values) for pair in flatten(item, f"{prefix}[{i}]")]
    return [(prefix, "null" if values is None else str(values))]


def installed_versions() -> dict[str, str]:
    """List the installed versions of the packages that the numbers depend on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    names = (
        "mm-ldlm", "kedro", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "scipy", "pyarrow",
        "sacrebleu", "rouge-score", "plotly",
    )  # fmt: skip
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
