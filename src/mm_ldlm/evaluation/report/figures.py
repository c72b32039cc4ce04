"""Plotly figures of the metrics, one function each; None where the run has nothing to draw.

One colour per thing, everywhere: the model blue, the teacher grey, the one-step regression amber, baselines rose,
real data green. Backgrounds are transparent and inks neutral, so that a page may lay them on light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import plotly.graph_objects as go

MODEL, TEACHER, ONE_STEP, BASELINE, REAL, SECOND = "#4c7bd9", "#8b93a1", "#d9962b", "#cf5c7c", "#3f9e6e", "#8a6fd1"
PALETTE = (MODEL, ONE_STEP, REAL, BASELINE, SECOND, "#3aa6b9", "#a3703f", "#7a9a3c", TEACHER)
_INK, _GRID = "#7d8590", "rgba(125,133,144,0.18)"
_FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


def all_figures(
    *,
    inversion: Mapping[str, Any],
    sts: Mapping[str, Any],
    likelihood: Mapping[str, Any],
    latents: Mapping[str, Any],
    log: Sequence[Mapping[str, Any]],
    comparison: Mapping[str, Any] | None = None,
    smoothing: float = 0.9,
) -> dict[str, go.Figure]:
    """Every figure by name; one that has nothing to show is an empty figure that says so."""
    drawn = {
        "plot_calls": calls(inversion),
        "plot_length": by_length(inversion),
        "plot_baselines": baselines(inversion),
        "plot_sts": sts_scores(sts),
        "plot_sts_scatter": sts_scatter(sts),
        "plot_masked_share": masked_share(likelihood),
        "plot_cosine": cosine_histogram(latents),
        "plot_latent_spectrum": spectrum(latents),
        "plot_calibration": calibration(latents),
        "plot_training": training(log, smoothing=smoothing),
        "plot_diagnostics": diagnostics(log),
        "plot_comparison": comparison_plot(comparison),
    }
    return {name: figure if figure is not None else empty() for name, figure in drawn.items()}


def empty(text: str = "nothing to show for this run") -> go.Figure:
    figure = _figure(height=160)
    figure.add_annotation(text=text, showarrow=False, font={"color": _INK}, x=0.5, y=0.5, xref="paper", yref="paper")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure


# -- inversion -------------------------------------------------------------------------------------------------------


def calls(inversion: Mapping[str, Any]) -> go.Figure | None:
    """Exact match against network calls a sentence, with intervals; the reference's level as a line."""
    lines = inversion.get("sweep") or []
    if not lines:
        return None
    import plotly.graph_objects as go

    figure = _figure(height=420)
    plain = [line for line in lines if not line["encoder_calls"]]
    searched = [line for line in lines if line["encoder_calls"]]
    for group, name, colour, symbol in (
        (plain, "network alone", MODEL, "circle"),
        (searched, "search with the encoder", SECOND, "diamond"),
    ):
        if not group:
            continue
        group = sorted(group, key=lambda line: line["network_calls"])
        figure.add_trace(
            go.Scatter(
                x=[line["network_calls"] for line in group],
                y=[line["exact_match"]["value"] for line in group],
                error_y=_bars([line["exact_match"] for line in group], colour),
                mode="markers+text",
                text=[line["label"] for line in group],
                textposition=["top center" if i % 2 == 0 else "bottom center" for i in range(len(group))],
                textfont={"size": 11, "color": _INK},
                name=name,
                marker={"size": 11, "color": colour, "symbol": symbol},
                customdata=[
                    [line["sentences_per_second"], line["token_accuracy"]["value"], line["cosine"]["value"]]
                    for line in group
                ],
                hovertemplate="<b>%{text}</b><br>%{x:.1f} calls · exact %{y:.1%}<br>"
                "token accuracy %{customdata[1]:.2%} · cosine %{customdata[2]:.3f}<br>"
                "%{customdata[0]:.1f} sentences a second<extra></extra>",
            )
        )
    reference = next((line for line in lines if line["label"] == line["reference"]), None)
    if reference:
        level = reference["exact_match"]["value"]
        figure.add_hline(
            y=0.99 * level,
            line={"dash": "dot", "color": TEACHER, "width": 1},
            annotation={"text": f"99 % of {reference['label']}", "font": {"size": 11, "color": _INK}},
            annotation_position="bottom right",
        )
    highest = max(line["network_calls"] for line in lines)
    figure.update_xaxes(title="network calls a sentence", type="log", range=[-0.35, math.log10(highest) + 0.35])
    figure.update_xaxes(tickvals=[1, 2, 4, 8, 16, 32, 64, 128])
    lowest = min(line["exact_match"]["low"] for line in lines)
    figure.update_yaxes(title="exact match", tickformat=".0%", range=[max(-0.02, lowest - 0.12), 1.06])
    return figure


def by_length(inversion: Mapping[str, Any]) -> go.Figure | None:
    """Exact match and token accuracy by length of the sentence."""
    lines = inversion.get("by_length") or []
    if not lines:
        return None
    import plotly.graph_objects as go

    figure = _figure(height=340)
    x = [f"{line['tokens']}<br><span style='font-size:10px'>n = {line['rows']}</span>" for line in lines]
    exact = [{"value": line["exact_match"], "low": line["low"], "high": line["high"]} for line in lines]
    figure.add_trace(
        go.Bar(x=x, y=[e["value"] for e in exact], error_y=_bars(exact, _INK), name="exact match", marker_color=MODEL)
    )
    figure.add_trace(
        go.Scatter(
            x=x,
            y=[line["token_accuracy"] for line in lines],
            name="token accuracy",
            mode="lines+markers",
            line={"color": SECOND, "width": 2},
        )
    )
    figure.update_xaxes(title="tokens in the sentence")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def baselines(inversion: Mapping[str, Any]) -> go.Figure | None:
    """The model beside what it has to beat."""
    if "metrics" not in inversion:
        return None
    import plotly.graph_objects as go

    names = {"exact_match": 1.0, "token_set_f1": 1.0, "bleu": 0.01, "rouge_l": 1.0, "cosine": 1.0}
    labels = {
        "exact_match": "exact match",
        "token_set_f1": "token F1",
        "bleu": "BLEU",
        "rouge_l": "ROUGE-L",
        "cosine": "cosine",
    }
    figure = _figure(height=340)
    sources = [("model", "model", MODEL, inversion["metrics"])]
    for (name, entry), colour in zip((inversion.get("baselines") or {}).items(), (BASELINE, ONE_STEP), strict=False):
        sources.append((name, name.replace("_", " "), colour, entry["metrics"]))
    for _, label, colour, metrics in sources:
        some = [name for name in names if name in metrics]
        scaled = [{k: metrics[n][k] * names[n] for k in ("value", "low", "high")} for n in some]
        figure.add_trace(
            go.Bar(
                x=[labels[n] for n in some],
                y=[s["value"] for s in scaled],
                error_y=_bars(scaled, _INK),
                name=label,
                marker_color=colour,
            )
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%")
    return figure


# -- embedding -------------------------------------------------------------------------------------------------------

_WHO = (("teacher", "teacher", TEACHER), ("one_step", "one-step regression", ONE_STEP), ("model", "model", MODEL))


def sts_scores(sts: Mapping[str, Any]) -> go.Figure | None:
    """Spearman × 100 by set: model, one-step regression, teacher, with intervals."""
    if not sts:
        return None
    import plotly.graph_objects as go

    figure = _figure(height=max(220, 130 + 70 * len(sts)))
    for who, label, colour in _WHO:
        sets = [name for name in sts if who in sts[name]["scores"]]
        if not sets:
            continue
        values = [sts[name]["scores"][who]["spearman"] for name in sets]
        figure.add_trace(
            go.Scatter(
                y=sets,
                x=[v["value"] for v in values],
                error_x=_bars(values, colour),
                mode="markers",
                name=label,
                marker={"size": 11, "color": colour},
                hovertemplate="%{y}: %{x:.2f}<extra>" + label + "</extra>",
            )
        )
    figure.update_xaxes(title="Spearman × 100")
    figure.update_yaxes(type="category", autorange="reversed")
    figure.update_layout(scattermode="group", scattergap=0.6)
    return figure


def sts_scatter(sts: Mapping[str, Any]) -> go.Figure | None:
    """Gold against cosine on the first set, model over teacher."""
    entry = next(iter(sts.values()), None) if sts else None
    if not entry or "scatter" not in entry:
        return None
    import plotly.graph_objects as go

    figure = _figure(height=340)
    gold = np.array(entry["scatter"]["gold"])
    jitter = np.random.default_rng(0).uniform(-0.12, 0.12, size=len(gold))
    for who, label, colour in _WHO:
        if who in entry["scatter"] and who != "one_step":
            figure.add_trace(
                go.Scatter(
                    x=gold + jitter + (0.1 if who == "model" else -0.1),
                    y=entry["scatter"][who],
                    mode="markers",
                    name=label,
                    marker={"size": 5, "color": colour, "opacity": 0.65},
                    hovertemplate="gold %{x:.1f} · cosine %{y:.2f}<extra>" + label + "</extra>",
                )
            )
    figure.update_xaxes(title="gold score")
    figure.update_yaxes(title="cosine of the two embeddings")
    return figure


def cosine_histogram(latents: Mapping[str, Any]) -> go.Figure | None:
    """Cosine of generated latents to the encoder's, sentence by sentence."""
    samplers = latents.get("samplers") or {}
    if not samplers:
        return None
    import plotly.graph_objects as go

    figure = _figure(height=320)
    colours = {"model": MODEL, "one_step": ONE_STEP}
    values = np.concatenate([np.asarray(entry["cosines"]) for entry in samplers.values()])
    low = math.floor(max(-1.0, float(np.quantile(values, 0.002))) * 50) / 50
    edges = np.linspace(low, 1.0, 60)
    for name, entry in samplers.items():
        counts, _ = np.histogram(np.clip(entry["cosines"], low, 1.0), bins=edges)
        figure.add_trace(
            go.Scatter(
                x=((edges[1:] + edges[:-1]) / 2).round(4),
                y=counts / max(1, counts.sum()),
                mode="lines",
                line={"color": colours.get(name, SECOND), "width": 2, "shape": "hvh"},
                fill="tozeroy",
                name="model" if name == "model" else "one-step regression",
            )
        )
    figure.update_xaxes(title="cosine to the encoder's vector")
    figure.update_yaxes(title="share of sentences", tickformat=".0%")
    return figure


def spectrum(latents: Mapping[str, Any]) -> go.Figure | None:
    """Eigenvalues of the covariance of generated and real latents."""
    found = latents.get("spectrum") or {}
    if not found:
        return None
    import plotly.graph_objects as go

    figure = _figure(height=320)
    looks = {
        "real": ("encoder", REAL),
        "model": ("model, text given", MODEL),
        "one_step": ("one-step regression", ONE_STEP),
        "unconditional": ("model, out of noise", SECOND),
    }
    for name, entry in found.items():
        label, colour = looks.get(name, (name, TEACHER))
        values = np.asarray(entry["eigenvalues"], dtype=float)
        values = values[: min(len(values), max(1, entry["rows"] - 1))]
        figure.add_trace(
            go.Scatter(
                x=np.arange(1, len(values) + 1),
                y=np.where(values > 0, values, np.nan),
                mode="lines",
                line={"color": colour, "width": 2},
                name=f"{label} (effective rank {entry['effective_rank']:.0f})",
            )
        )
    figure.update_xaxes(title="direction", type="log", tickformat="~g")
    figure.update_yaxes(title="variance", type="log", tickformat="~g", nticks=6)
    return figure


def calibration(latents: Mapping[str, Any]) -> go.Figure | None:
    """Rank of the truth among K samples; flat is calibrated."""
    entry = latents.get("calibration")
    if not entry:
        return None
    import plotly.graph_objects as go

    share = entry["rank_share"]
    figure = _figure(height=300)
    figure.add_trace(go.Bar(x=list(range(len(share))), y=share, marker_color=MODEL, name="model"))
    figure.add_hline(y=1 / len(share), line={"dash": "dot", "color": TEACHER, "width": 1})
    figure.update_xaxes(title=f"how many of {entry['samples']} samples lie below the truth", dtick=1)
    figure.update_yaxes(title="share", tickformat=".0%")
    figure.update_layout(showlegend=False)
    return figure


# -- language model and training -------------------------------------------------------------------------------------


def masked_share(likelihood: Mapping[str, Any]) -> go.Figure | None:
    """Nats per masked token against the share that is masked: what context, and what the latent, are worth."""
    import plotly.graph_objects as go

    figure = _figure(height=340)
    drawn = False
    for name, label, colour in (("unconditional", "latent unknown", TEACHER), ("given_latent", "latent given", MODEL)):
        if not likelihood.get(name):
            continue
        lines = [line for line in likelihood[name]["by_masked_share"] if line["cross_entropy"] is not None]
        figure.add_trace(
            go.Scatter(
                x=[(line["low"] + line["high"]) / 2 for line in lines],
                y=[line["cross_entropy"] for line in lines],
                mode="lines+markers",
                line={"color": colour, "width": 2},
                name=label,
                customdata=[[line["accuracy"], line["masked_tokens"]] for line in lines],
                hovertemplate="%{x:.0%} masked: %{y:.3f} nats · %{customdata[0]:.1%} right · "
                "%{customdata[1]} tokens<extra>" + label + "</extra>",
            )
        )
        drawn = True
    figure.update_xaxes(title="share of tokens masked", tickformat=".0%", range=[0, 1])
    figure.update_yaxes(title="nats per masked token", rangemode="tozero")
    return figure if drawn else None


PANELS = (
    ("loss", ("loss", "validation/loss"), "linear"),
    ("text and latent loss", ("text_loss", "latent_loss"), "log"),
    ("accuracy of masked tokens, of lengths", ("text_accuracy", "length_accuracy"), "linear"),
    ("gradient norm", ("grad_norm",), "log"),
    ("learning rate", ("lr",), "linear"),
    ("tokens a second", ("tokens_per_second",), "linear"),
)
"""Title, keys of the training log, scale of the axis."""
DIAGNOSTICS = (
    ("text loss by share masked (t0 least)", "text_nll_t", "linear"),
    ("latent error by noise (t0 least)", "latent_error_t", "linear"),
    ("gradient norm by part", "grad_norm/", "log"),
    ("update ÷ weight by part", "update_ratio/", "log"),
    ("largest attention logit by block", "attention_logit_max/", "linear"),
    ("activation scale by block", "activation_rms/", "linear"),
)
"""Title, how the keys begin, scale of the axis."""


def training(log: Sequence[Mapping[str, Any]], *, smoothing: float = 0.9) -> go.Figure | None:
    """Panels over steps from the training log; thin lines are the log's, thick ones smoothed."""
    known = _known(log)
    panels = [(title, [key for key in keys if key in known], scale) for title, keys, scale in PANELS]
    return _panels(log, [panel for panel in panels if panel[1]], smoothing=smoothing)


def diagnostics(log: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """What the worker saw of the network itself, one line a part or block; hover names it."""
    known = _known(log)
    panels = [(title, sorted(k for k in known if k.startswith(start)), scale) for title, start, scale in DIAGNOSTICS]
    return _panels(log, [panel for panel in panels if panel[1]], smoothing=0.0)


def _known(log: Sequence[Mapping[str, Any]]) -> set[str]:
    return {key for line in log for key in line}


def _panels(
    log: Sequence[Mapping[str, Any]], panels: Sequence[tuple[str, Sequence[str], str]], *, smoothing: float
) -> go.Figure | None:
    if not panels:
        return None
    from plotly.subplots import make_subplots

    rows = math.ceil(len(panels) / 2)
    figure = make_subplots(
        rows=rows,
        cols=2,
        subplot_titles=[panel[0] for panel in panels],
        vertical_spacing=0.24 / rows,
        horizontal_spacing=0.09,
    )
    for number, (_, keys, scale) in enumerate(panels):
        place = {"row": number // 2 + 1, "col": number % 2 + 1}
        for count, key in enumerate(keys):
            _curve(figure, log, key, PALETTE[count % len(PALETTE)], smoothing, place, positive=scale == "log")
        figure.update_yaxes(type=scale, **({"tickformat": "~g", "nticks": 5} if scale == "log" else {}), **place)
    _style(figure, height=250 * rows)
    figure.update_layout(showlegend=False, hovermode="closest", margin={"l": 50, "r": 16, "t": 36, "b": 36})
    for annotation in figure.layout.annotations:
        annotation.font = {"size": 12, "color": _INK}
    return figure


def _curve(
    figure: go.Figure,
    log: Sequence[Mapping[str, Any]],
    key: str,
    colour: str,
    smoothing: float,
    place: dict[str, int],
    *,
    positive: bool,
) -> None:
    import plotly.graph_objects as go

    from mm_ldlm.tracking.jsonl import number

    points = [(line["step"], number(line.get(key))) for line in log if key in line]
    finite = [(step, value) for step, value in points if value is not None and math.isfinite(value)]
    finite = [(step, value) for step, value in finite if value > 0 or not positive]
    if not finite:
        return
    steps, values = [step for step, _ in finite], [value for _, value in finite]
    smooth = key != "lr" and not key.startswith("validation/") and len(values) > 20 and smoothing > 0
    mode = "lines" if len(values) > 1 else "markers"
    thin = {"color": colour, "width": 1 if smooth else 2}
    figure.add_trace(
        go.Scatter(
            x=steps,
            y=values,
            mode=mode,
            name=key,
            line=thin,
            opacity=0.3 if smooth else 1.0,
            hoverinfo="skip" if smooth else "all",
        ),
        **place,
    )
    if smooth:
        thick = {"color": colour, "width": 2.2}
        figure.add_trace(
            go.Scatter(x=steps, y=smoothed(values, smoothing), mode="lines", name=key, line=thick), **place
        )


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Exponential moving average without the start's bias (as in Adam)."""
    found, state = [], 0.0
    for count, value in enumerate(values, start=1):
        state = weight * state + (1 - weight) * value
        found.append(state / (1 - weight**count))
    return found


def comparison_plot(comparison: Mapping[str, Any] | None) -> go.Figure | None:
    """Shares of the headline of this run and the others, with intervals."""
    if not comparison or not comparison.get("table"):
        return None
    import plotly.graph_objects as go

    wanted = (
        "l2t.exact_match",
        "l2t.token_accuracy",
        "l2t.token_set_f1",
        "l2t.cosine",
        "t2l.cosine",
        "t2l.retrieval.at_1",
    )
    lines = [line for line in comparison["table"] if line["metric"] in wanted]
    figure = _figure(height=340)
    colours = (MODEL, ONE_STEP, BASELINE, REAL, SECOND, TEACHER)
    for number, name in enumerate(comparison["runs"]):
        some = [
            (line["metric"], line["values"][number]) for line in lines if line["values"][number]["value"] is not None
        ]
        whole = [{k: v[k] if v[k] is not None else v["value"] for k in ("value", "low", "high")} for _, v in some]
        figure.add_trace(
            go.Bar(
                x=[metric for metric, _ in some],
                y=[w["value"] for w in whole],
                error_y=_bars(whole, _INK),
                name=name,
                marker_color=colours[number % len(colours)],
            )
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(tickformat=".0%")
    return figure


# -- looks -----------------------------------------------------------------------------------------------------------


def _figure(*, height: int) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    _style(figure, height=height)
    return figure


def _style(figure: go.Figure, *, height: int) -> None:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 62, "r": 20, "t": 28, "b": 52},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": _FONT, "size": 12, "color": _INK},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        hoverlabel={"font": {"family": _FONT}},
        bargap=0.35,
        colorway=PALETTE,
    )
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _GRID, "ticks": "", "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)


def adopted(figure: go.Figure, *, height: int = 280) -> go.Figure:
    """A figure of another room in this page's looks; the original stays as it is."""
    import plotly.graph_objects as go

    own = go.Figure(figure)
    own.update_layout(width=None, autosize=True, title=None)
    _style(own, height=height)
    own.update_traces(marker_line_width=0, selector={"type": "bar"})
    return own


def _bars(values: Sequence[Mapping[str, float]], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, v["high"] - v["value"]) for v in values],
        "arrayminus": [max(0.0, v["value"] - v["low"]) for v in values],
        "color": colour,
        "thickness": 1.2,
        "width": 4,
    }
