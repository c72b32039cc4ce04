"""Rendering: report inputs and figures become one self-contained HTML page, which embeds plotly.js once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.messages import duration
from mm_ldlm.evaluation.report import content
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.evaluation.suites import suites

if TYPE_CHECKING:
    import plotly.graph_objects as go

TEMPLATES = "mm_ldlm.evaluation.report/templates"


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
    config, numbers = inputs.run_config, inputs.metrics
    details = {
        "Fingerprints": content.flatten(config.get("fingerprints", {})),
        "Versions": [*content.installed_versions().items(), *content.flatten({"training": config.get("versions", {})})],
        "Parameters": content.flatten(inputs.parameters),
        "Numbers of metrics.json": content.flatten(numbers),
    }
    return rendered(
        f"{TEMPLATES}/report.html.j2",
        figures=figures,
        title=inputs.title,
        kind="report",
        m=inputs,
        sections=sections,
        left_out=left_out,
        details=details,
        cards=content.cards(numbers),
        trained=content.trained(inputs.events),
        sources=[source.get("name") or source["kind"] for source in inputs.parameters["ingestion"]["sources"]],
        bootstrap=inputs.parameters["evaluation"]["bootstrap"],
        events=content.event_lines(inputs.events),
        spikes=sum(event.get("event") == "spike" for event in inputs.events),
        validation=content.validation_losses(inputs.log),
        findings=inputs.validation_report.get("findings", []),
    )


def rendered(template: str, *, figures: Mapping[str, go.Figure], **values: Any) -> str:
    """Render a template ("package/file") with its values, and with the style, the script and plotly.js of every page.

    Everything that comes from data is escaped, by the template (autoescape) or by `embedded_json`.
    """
    plots = {name: embedded_json(figure) for name, figure in figures.items() if figure.data}
    text: str = (
        _environment()
        .get_template(template)
        .render(
            plots=plots,
            style=_text(f"{TEMPLATES}/report.css"),
            script=_text(f"{TEMPLATES}/report.js"),
            plotly=plotly_source() if plots else "",
            made_at=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            **values,
        )
    )
    return text


def embedded_json(figure: go.Figure) -> str:
    """Serialise a figure as JSON that is safe inside <script>: its text cannot end the element or open a comment."""
    text = json.dumps(json.loads(figure.to_json()), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def plotly_source() -> str:
    """Read minified plotly.js from the installed package."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _text(name: str) -> str:
    package, _, file = name.partition("/")
    return files(package).joinpath(file).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["spelled"] = content.spelled
    environment.filters["duration"] = duration
    environment.filters["fixed"] = lambda value, digits=3: f"{value:.{digits}f}"
    environment.filters["grouped"] = lambda value: f"{value:,}"
    return environment
