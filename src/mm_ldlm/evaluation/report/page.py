"""Rendering: report inputs and figures become one self-contained HTML page, which embeds plotly.js once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mm_ldlm.evaluation.report import cards, content
from mm_ldlm.evaluation.report.inputs import ReportInputs

if TYPE_CHECKING:
    import plotly.graph_objects as go


def render(inputs: ReportInputs, figures: Mapping[str, go.Figure], *, made_at: str = "") -> str:
    """Render the page as text.

    Everything that comes from data is escaped, by the template (autoescape) or by `embedded_json`.
    """
    plots = {name: embedded_json(figure) for name, figure in figures.items() if figure.data}
    return rendered(
        "report.html.j2",
        plots=plots,
        m=inputs,
        made_at=made_at,
        lede=content.lede(inputs),
        cards=cards.cards(inputs.metrics),
        examples=content.examples(inputs.inversion_rows, count=inputs.examples, seed=inputs.seed),
        inversion_table=content.inversion_table(inputs.inversion),
        events=content.event_lines(inputs.events),
        spikes=content.spikes(inputs.events, inputs.parameters),
        validation_losses=content.validation_losses(inputs.log),
        left_out=content.left_out(inputs),
        level=((inputs.parameters.get("evaluation") or {}).get("bootstrap") or {}).get("level", 0.95),
        sampler=content.unconditional_sampler(inputs),
        inversion_sampler=content.inversion_sampler(inputs),
        label=(inputs.run_config.get("objective") or {}).get("label"),
        likelihood_label=cards.LIKELIHOODS[inputs.likelihood.get("likelihood", "bound")],
        findings=content.findings(inputs.validation_report),
        parameters=content.flatten(dict(inputs.parameters)),
        fingerprints=content.flatten(dict(inputs.run_config.get("fingerprints") or {})),
        versions=content.installed_versions(),
        run_versions=dict(inputs.run_config.get("versions") or {}),
        spelled=content.spelled,
        duration=content.duration,
    )


def rendered(template: str, *, plots: Mapping[str, str], **values: Any) -> str:
    """Render a template with its values, and with the style, the script and plotly.js that every page contains.

    `plots`: figures as JSON, by name (`embedded_json`).
    """
    text: str = (
        _environment()
        .get_template(template)
        .render(
            plots=plots,
            style=_text("report.css"),
            script=_text("report.js"),
            plotly=plotly_source() if plots else "",
            **values,
        )
    )
    return text


def embedded_json(figure: go.Figure) -> str:
    """Serialise a figure as JSON that is safe inside <script>: its text cannot end the element or open a comment."""
    text = json.dumps(json.loads(figure.to_json()), ensure_ascii=False, allow_nan=False)
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


@lru_cache(maxsize=1)
def plotly_source() -> str:
    """Read minified plotly.js from the installed package."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _text(name: str) -> str:
    return (files("mm_ldlm.evaluation.report") / "templates" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = cards.percent
    environment.filters["fixed"] = lambda value, digits=3: f"{value:.{digits}f}"
    environment.filters["grouped"] = lambda value: f"{value:,}"
    return environment
