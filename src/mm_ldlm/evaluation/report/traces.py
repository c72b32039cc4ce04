"""The page of traces: one HTML file that plays how texts were written, without a server."""

from dataclasses import asdict
from typing import Any

from mm_ldlm.evaluation.report.page import TEMPLATES, rendered
from mm_ldlm.inference.results import Texts


def trace_page(found: Texts, *, title: str) -> str:
    """Render the traces of written texts; the template escapes their words."""
    return rendered(
        f"{TEMPLATES}/trace.html.j2", figures={}, title=title, kind="trace", texts=found.texts, traces=played(found)
    )


def played(found: Texts) -> list[dict[str, Any]]:
    """Return what the player (`player.js`) plays of each text, as values of JSON."""
    cosines = [None] * len(found) if found.cosines is None else [float(cosine) for cosine in found.cosines]
    return [
        {"text": text, "source": source, "cosine": cosine, "calls": int(calls), **asdict(trace)}
        for text, source, cosine, calls, trace in zip(
            found.texts, found.sources, cosines, found.model_calls, found.traces or (), strict=True
        )
    ]
