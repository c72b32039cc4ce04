"""The page: its content as plain values, and its rendering as one HTML file, which embeds plotly.js once."""

import math
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from mm_ldlm.core import duration
from mm_ldlm.data.validation.checks import plots as data_plots
from mm_ldlm.evaluation.report.inputs import ReportInputs, trained
from mm_ldlm.evaluation.suites import headlines, suites
from mm_ldlm.evaluation.suites.base import Headline
from mm_ldlm.training.jsonl import number

TEMPLATES = "mm_ldlm.evaluation.report/templates"
FORMS = {
    "fraction": "{:.1%}", "cosine": "{:.3f}", "points": "{:.1f}", "cost": "{:.3f}", "perplexity": "{:.2f}",
    "plain": "{:.2f}", "count": "{:,.0f}",
}  # fmt: skip
"""Form of a number → its format"""
WHOLE = {"fraction": 1, "cosine": 1, "points": 100}
"""Form of a number that has a bar → the value of a full bar"""
MOST_EVENTS = 200
DISTRIBUTIONS = (
    "mm-ldlm", "kedro", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "scipy", "pyarrow",
    "sacrebleu", "rouge-score", "plotly",
)  # fmt: skip
"""Packages that the numbers depend on"""


def render(inputs: ReportInputs, figures: Mapping[str, go.Figure]) -> str:
    """Render the page as text; every suite that evaluated the run has a section, the others their reasons."""
    sections, left_out = [], []
    for name, suite in suites().items():
        metrics = inputs.suites.get(name, {"skipped": "the evaluation has no results for it"})
        reasons = [metrics["skipped"]] if "skipped" in metrics and suite.usual else metrics.get("left_out", [])
        left_out += [(suite.title, f"{str(reason).rstrip('.')}.") for reason in reasons]
        if "skipped" not in metrics:
            shown = {"title": suite.title, "name": name, "template": suite.template, "metrics": metrics}
            sections.append({**shown, "own": suite.section(inputs)})
    config, numbers, events = inputs.record.config, inputs.metrics, inputs.record.events
    details = {
        "Fingerprints": flatten(config.get("fingerprints", {})),
        "Versions": [*installed_versions().items(), *flatten({"training": config.get("versions", {})})],
        "Parameters": flatten(inputs.parameters),
        "Numbers of metrics.json": flatten(numbers),
    }
    return rendered(
        f"{TEMPLATES}/report.html.j2",
        figures=figures,
        title=inputs.reporting.title,
        kind="report",
        m=inputs,
        sections=sections,
        left_out=left_out,
        details=details,
        cards=cards(numbers),
        trained=trained(events),
        sources=[source.get("name") or source["kind"] for source in inputs.parameters["ingestion"]["sources"]],
        bootstrap=inputs.parameters["evaluation"]["bootstrap"],
        events=event_lines(events),
        spikes=sum(event.get("event") == "spike" for event in events),
        validation=validation_losses(inputs.record.log),
        findings=inputs.validation_report.get("findings", []),
        data_plots=data_plots(),
    )


def rendered(template: str, *, figures: Mapping[str, go.Figure], **values: Any) -> str:
    """Render a template ("package/file") with its values, and with the style, the script and plotly.js of every page.

    Everything that comes from data is escaped: by the template (autoescape), and inside <script> by plotly.
    """
    plots = {name: figure.to_json() for name, figure in figures.items()}
    page = _environment().get_template(template)
    return str(
        page.render(
            plots=plots,
            style=_text(f"{TEMPLATES}/report.css"),
            script=_text(f"{TEMPLATES}/report.js"),
            plotly=get_plotlyjs() if plots else "",
            made_at=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            **values,
        )
    )


def _text(name: str) -> str:
    package, _, file = name.partition("/")
    return files(package).joinpath(file).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "spelled": spelled,
        "duration": duration,
        "fixed": lambda value, digits=3: f"{value:.{digits}f}",
        "grouped": lambda value: f"{value:,}",
    }
    return environment


# -- content ----------------------------------------------------------------------------------------------------------


def spelled(value: Mapping[str, Any] | float | None, form: str) -> str:
    """Format a number, with its interval in brackets if it has one; "–" for none."""
    if value is None:
        return "–"
    if not isinstance(value, Mapping):
        return FORMS[form].format(value).replace("%", " %")
    if value["value"] is None or value["low"] is None or value["low"] == value["high"]:
        return spelled(value["value"], form)
    return f"{spelled(value['value'], form)} [{spelled(value['low'], form)}, {spelled(value['high'], form)}]"


def cards(metrics: Mapping[str, float]) -> list[dict[str, Any]]:
    """Make the cards of the headline numbers that this run has; the bar is in percent of its width."""
    return [_card(headline, headline.note, metrics) for headline in headlines(metrics) if headline.note is not None]


def _card(headline: Headline, note: str, metrics: Mapping[str, float]) -> dict[str, Any]:
    key, form = headline.key, headline.form
    beside = [f"{words} {spelled(metrics[name], of)}" for words, name, of in headline.beside if name in metrics]
    card = {"label": headline.label, "value": spelled(metrics[key], form), "note": "; ".join([note, *beside])}
    if f"{key}.low" not in metrics:
        return {**card, "interval": "", "bar": None}
    ends = {"value": metrics[key], "low": metrics[f"{key}.low"], "high": metrics[f"{key}.high"]}
    scale = 100 / WHOLE.get(form, 100)
    bar = {name: round(min(max(scale * end, 0), 100), 2) for name, end in ends.items()}
    interval = f"{spelled(ends['low'], form)} – {spelled(ends['high'], form)}"
    return {**card, "interval": interval, "bar": bar if form in WHOLE else None}


def validation_losses(log: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Find the last and the lowest validation loss with their steps; None if none was computed."""
    found = [(number(line.get("validation/loss")), line["step"]) for line in log if "validation/loss" in line]
    finite = [(loss, step) for loss, step in found if loss is not None and math.isfinite(loss)]
    if not finite:
        return None
    return {"last": finite[-1][0], "last_step": finite[-1][1], "best": min(finite)[0], "best_step": min(finite)[1]}


def event_lines(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Format the first `MOST_EVENTS` events, one pair of key and value per line.

    The sentences that were shown while the model learned are left out.
    """
    found = []
    for event in [event for event in events if event["event"] != "preview"][:MOST_EVENTS]:
        told = {key: event[key] for key in event if key not in ("step", "event", "time") and event[key] is not None}
        found.append({"step": event["step"], "event": event["event"], "told": flatten(told)})
    return found


def flatten(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested parameters to (dotted key, text) pairs."""
    if isinstance(values, Mapping):
        pairs = [(f"{prefix}.{key}" if prefix else str(key), item) for key, item in values.items()]
    elif isinstance(values, (list, tuple)) and values:
        pairs = [(f"{prefix}[{place}]", item) for place, item in enumerate(values)]
    else:
        return [(prefix, "null" if values is None else str(values))]
    return [pair for key, item in pairs for pair in flatten(item, key)]


def installed_versions() -> dict[str, str]:
    """List the installed versions of the packages that the numbers depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in DISTRIBUTIONS}}
