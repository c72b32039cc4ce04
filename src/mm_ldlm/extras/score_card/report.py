"""Render the tables of a score card in Markdown and LaTeX, its figure and its page."""

import itertools
import string
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from mm_ldlm.evaluation.bootstrap import FEWEST_PAIRS
from mm_ldlm.evaluation.report import page, theme
from mm_ldlm.evaluation.report.inputs import described_sampler

COSTS = {
    "parameters": ("parameters", "{:,.0f}"), "kind": ("cost", "{}"), "nats_per_token": ("nats per token", "{:.3f}"),
    "perplexity": ("perplexity per token", "{:.2f}"), "word_perplexity": ("per word", "{:.1f}"),
    "bits_per_character": ("bits per character", "{:.3f}"), "difference": ("", "{:+.3f}"), "p": ("p", "{:.3f}"),
}  # fmt: skip
"""Column of the card → its heading and the format of its numbers"""
SAMPLES = {
    "generative_perplexity": ("generative perplexity at matched entropy", "{:.1f}"), "entropy": ("entropy", "{:.2f}"),
    "distinct_2": ("distinct-2", "{:.3f}"), "self_bleu": ("self-BLEU", "{:.1f}"), "mauve": ("MAUVE", "{:.3f}"),
    "empty": ("empty", "{:.1%}"), "seconds_per_1000": ("s per 1,000", "{:.1f}"), "peak_gb": ("memory, GB", "{:.2f}"),
}  # fmt: skip
INTERVALS = ("nats_per_token", "difference")
BOUNDED = ("perplexity", "word_perplexity", "bits_per_character")
"""Columns in which ≤ marks an upper bound"""
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≤": r"$\le$", "–": "--", "−": "$-$",
    }
)  # fmt: skip


Table = namedtuple("Table", "title header rows notes")
"""A table of texts; the notes explain its empty cells and its numbers."""


def report(card: Mapping[str, Any], *, title: str) -> tuple[str, str, str, dict[str, go.Figure]]:
    """Return the tables in Markdown and in LaTeX, the page, and its figures by name."""
    found, figure = tables(card), frontier(card)
    figures, values = {} if figure is None else {"plot_entropy": figure}, {"title": title, "kind": "score card"}
    text = page.rendered(
        "mm_ldlm.extras.score_card/score_card.html.j2", figures=figures, card=card, tables=found, **values
    )
    return markdown(found), latex(found), text, figures


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(card: Mapping[str, Any]) -> list[Table]:
    """Format the numbers of a card; a missing one is a dash with the letter of its reason."""
    protocol, held_out = card["protocol"], {"name": "held-out text", "cells": card["held_out"], "reasons": {}}
    unit = "nats per token" if protocol["unit"] == "token" else "bits per character"
    costs = COSTS | {"difference": (f"− {protocol['baseline']}, {unit}", "{:+.3f}")}
    return [
        _table("Likelihood of held-out texts", costs, card["rows"], _of_costs(card)),
        _table("Texts from noise", SAMPLES, [held_out, *card["rows"]], _of_samples(card)),
    ]


def _table(title: str, columns: Mapping[str, tuple[str, str]], rows: Sequence[Mapping[str, Any]], note: str) -> Table:
    letters: dict[str, str] = {}
    cells = [[row["name"], *(_cell(row, name, columns[name][1], letters) for name in columns)] for row in rows]
    reasons = [f"({letter}) {reason.rstrip('.')}." for reason, letter in letters.items()]
    return Table(title, ["", *(heading for heading, _ in columns.values())], cells, [*reasons, note])


def _cell(row: Mapping[str, Any], column: str, form: str, letters: dict[str, str]) -> str:
    value, reason = row["cells"].get(column), row["reasons"].get(column)
    if value is None:
        return "–" if reason is None else f"– ({letters.setdefault(reason, string.ascii_letters[len(letters)])})"
    bound = "≤ " if column in BOUNDED and row["cells"]["kind"] != "exact" else ""
    if not isinstance(value, Mapping):
        return bound + form.format(value).replace("%", " %")
    ends = f" [{form.format(value['low'])}, {form.format(value['high'])}]" if column in INTERVALS else ""
    return bound + form.format(value["value"]) + ends


def _of_costs(card: Mapping[str, Any]) -> str:
    protocol, level = card["protocol"], f"{100 * card['protocol']['level']:g} %"
    unknown = [f"{row['name']} {row['cells']['unknown']:.4f}" for row in card["rows"] if row["cells"].get("unknown")]
    found = [
        f"{protocol['held_out']['count']:,} texts ({protocol['source']}, digest {protocol['held_out']['digest']:.8}) "
        f"of {protocol['words']:,} words between white space and {protocol['characters']:,} characters.",
        f"{protocol['left_out']:,} texts that some run cannot read are left out." if protocol["left_out"] else "",
        f"The cost {'is given' if protocol['given_length'] else 'includes'} the length of the text.",
        f"≤ marks upper bounds (NELBO, {protocol['draws']} draws for each text); differences include their gaps.",
        f"Brackets are {level} intervals over texts ({protocol['replicates']:,} resamples), and over runs if a row has "
        "several; one run contains no information about other seeds.",
        f"p is corrected for the number of rows (Holm); fewer than {FEWEST_PAIRS} texts have none.",
        f"Fraction of unknown tokens: {', '.join(unknown)}." if unknown else "",
        f"Seed {protocol['seed']}, {'averaged' if protocol['use_ema'] else 'last'} weights, checkpoint "
        f"{protocol['checkpoint']}.",
    ]
    return " ".join(filter(None, found))


def _of_samples(card: Mapping[str, Any]) -> str:
    protocol, runs = card["protocol"], [(row["name"], run) for row in card["rows"] for run in row["runs"]]
    samplers = dict.fromkeys(f"{name}: {described_sampler(run['sampler'])}" for name, run in runs if run["sampler"])
    found = [
        f"{protocol['samples']:,} samples (length {protocol['length']}, seed {protocol['seed']}) for each of the "
        f"temperatures {', '.join(f'{each:g}' for each in protocol['temperatures'])}, drawn in float64. Samplers, with "
        f"these temperatures: {'; '.join(samplers)}.",
        f"{protocol['compared_with']['count']:,} held-out texts (digest {protocol['compared_with']['digest']:.8}).",
        f"Entropy: nats of the unigrams ({protocol['unit']}s) of "
        f"{'all samples together' if protocol['entropy'] == 'corpus' else 'each sample, averaged'}; distinct-2 and "
        "self-BLEU have the same unit.",
        f"Generative perplexity: under {protocol['causal_model']}, log-linear between the temperatures, at the entropy "
        f"of held-out text ({protocol['held_out_entropy']:.2f})." if protocol["causal_model"] else "",
        "The other columns are measured at temperature 1.",
        f"MAUVE: on embeddings of {protocol['encoder']}; compare values of one table only." * bool(protocol["encoder"]),
        "Memory: peak of the run on a GPU; on a CPU, peak of the process, judge included.",
        f"Device: {', '.join(dict.fromkeys(run['device'] for _, run in runs))}.",
    ]  # fmt: skip
    return " ".join(filter(None, found))


# -- formats -----------------------------------------------------------------------------------------------------------


def markdown(found: Sequence[Table]) -> str:
    """Write tables as Markdown."""
    parts = []
    for table in found:
        lines = [table.header, ["---"] * len(table.header), *table.rows]
        body = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        parts.append("\n\n".join([f"## {table.title}", body, *table.notes]))
    return "\n\n".join(parts) + "\n"


def latex(found: Sequence[Table]) -> str:
    """Write tables as LaTeX, for a document that loads the packages booktabs and graphicx."""
    parts = ["% needs \\usepackage{booktabs,graphicx}"]
    for table in found:
        lines = [" & ".join(cell.translate(LATEX) for cell in line) + r" \\" for line in (table.header, *table.rows)]
        parts += [
            r"\begin{table}[t]", r"\centering", rf"\caption{{{table.title.translate(LATEX)}.}}",
            r"\resizebox{\linewidth}{!}{%", rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"\toprule",
            lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}}",
            rf"\par\smallskip{{\footnotesize {' '.join(table.notes).translate(LATEX)}\par}}", r"\end{table}",
        ]  # fmt: skip
    return "\n".join(parts) + "\n"


# -- figure ------------------------------------------------------------------------------------------------------------


def frontier(card: Mapping[str, Any]) -> go.Figure | None:
    """Plot perplexity against entropy for all temperatures, and held-out text as a point; None without a judge."""
    held_out, names = card["held_out"], [curve["name"] for curve in card["curves"]]
    if held_out["generative_perplexity"] is None:
        return None
    colours = dict(zip(dict.fromkeys(names), itertools.cycle(theme.PALETTE), strict=False))
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "markers", "name": "held-out text", "x": [held_out["entropy"]],
            "y": [held_out["generative_perplexity"]], "marker": {"size": 11, "symbol": "star", "color": theme.INK},
        }
    ]  # fmt: skip
    for number, (name, curve) in enumerate(zip(names, card["curves"], strict=True)):
        points = [point for point in curve["points"] if point.get("perplexity")]
        x, y, text = ([point[key] for point in points] for key in ("entropy", "perplexity", "temperature"))
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": name, "x": x, "y": y,
                "showlegend": name not in names[:number], "line": {"color": colours[name], "width": 2},
                "customdata": text,
                "hovertemplate": "temperature %{customdata}: entropy %{x:.2f}, perplexity %{y:.1f}<extra></extra>",
            }
        )  # fmt: skip
    axes = {"x": {"title": "entropy, nats"}, "y": {"title": "generative perplexity", "type": "log"}}
    figure = theme.chart(traces, **axes, height=420)
    figure.add_vline(x=held_out["entropy"], line={"dash": "dot", "color": theme.INK, "width": 1})
    return figure
