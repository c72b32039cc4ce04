"""What a run will do, where its results will be, and how long the last one took: the first lines of its log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.core.messages import duration, escape, shorten
from mm_ldlm.data.features import from_encoder

_MEASURED = ("embedding", "training")
"""Pipelines that measure their own speed and show how long they take"""
_SHORTEST = 1.0
"""Pipelines that took fewer seconds are not listed"""


def outlook(
    executed: Mapping[str, Sequence[str]], typed: Mapping[str, Any], *, seconds: Mapping[str, float],
    results: Mapping[str, Path], project: Path,
) -> list[str]:  # fmt: skip
    """Describe a run before its first node, in up to three lines; nothing for a run without nodes.

    Args:
        executed: names of the nodes of each pipeline that runs, in order.
        typed: the parsed parameters by section.
        seconds: of each pipeline in the last run in the same folder, where there was one.
        results: path of each result, by its name in words.
        project: paths inside this folder are shown relative to it.
    """
    if not executed:
        return []
    words = " → ".join(name + (f" ({about})" if (about := _details(name, typed)) else "") for name in executed)
    count = sum(map(len, executed.values()))
    where = ", ".join(f"{name} {_short(path, project)}" for name, path in results.items())
    return [
        f"this run: {words}; {count} node{'s' if count > 1 else ''}",
        f"results: {where}",
        *_times(executed, seconds),
    ]


def _details(pipeline: str, typed: Mapping[str, Any]) -> str:
    """Describe what a pipeline reads or builds by the kinds and sizes in the parameters."""
    if pipeline == "ingestion" and "ingestion" in typed:
        return _name(", ".join(dict.fromkeys(source.kind for source in typed["ingestion"].sources)))
    if pipeline == "embedding" and "encoder" in typed:
        encoder = typed["encoder"]
        if {"model", "objective"} <= typed.keys() and not from_encoder(
            model=typed["model"], objective=typed["objective"]
        ):
            return "needs no encoder"
        return _name(getattr(encoder, "name", None) or encoder.kind)
    if pipeline == "training" and {"model", "objective", "training"} <= typed.keys():
        limits = {"steps": "max_steps", "epochs": "epochs", "tokens": "max_tokens", "minutes": "max_minutes"}
        found = {name: getattr(typed["training"], key) for name, key in limits.items()}
        set_ones = {name: value for name, value in found.items() if value is not None}
        most = " or ".join(f"{value:,} {name[:-1] if value == 1 else name}" for name, value in set_ones.items())
        process = getattr(typed["objective"], "process", None)
        kinds = f"model {typed['model'].kind}, objective {typed['objective'].kind}"
        return f"{kinds}, {f'process {process.kind}, ' if process is not None else ''}{most}"
    return ""


def _times(executed: Collection[str], seconds: Mapping[str, float]) -> list[str]:
    """Report the seconds of the last run; without one, which pipelines will measure theirs."""
    known = {name: seconds[name] for name in executed if name in seconds}
    if not known:
        measured = " and ".join(name for name in _MEASURED if name in executed)
        return [f"time: no run here yet; {measured} will show an estimate after the first seconds"] if measured else []
    listed = sorted((name for name in known if known[name] >= _SHORTEST), key=lambda name: -known[name])
    parts = ", ".join(f"{name} {duration(known[name])}" for name in listed) if len(known) > 1 else ""
    new = [name for name in executed if name not in known]
    return [
        f"time: the last run here took {duration(sum(known.values()))}{f' ({parts})' if parts else ''}"
        + (f"; without {', '.join(new)}, which did not run yet" if new else "")
    ]


def _name(text: str) -> str:
    return shorten(escape(text), 80)


def _short(path: Path, project: Path) -> str:
    return path.relative_to(project).as_posix() if path.is_relative_to(project) else path.as_posix()
