"""Description of a run for its page in MLflow: name, note, and texts without absolute paths and credentials."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.core.credentials import mask, mask_values

_ABSOLUTE = re.compile(r"(?<![\w.:/~-])(?:[A-Za-z]:)?/(?:[^\s/'\"=,;()\[\]{}]+/)+")
"""Folders of an absolute path, up to its last part; the path of an address (http://host/x) is none"""

_DATABASE = re.compile(r"(?<=sqlite:///)/(?:[^\s/'\"=,;()\[\]{}]+/)+")
"""Folders of an absolute path to a database"""


def without_paths(text: str, *, project: Path | None = None) -> str:
    """Replace the folders of absolute paths in `text` by "…/", those of the project by nothing; mask credentials."""
    if project is not None:
        text = text.replace(f"{project.as_posix()}/", "")
    return _DATABASE.sub("…/", _ABSOLUTE.sub("…/", mask(text)))


def clean(value: Any, *, project: Path | None = None) -> Any:
    """Apply `without_paths` to every text of a JSON value, and mask the values of keys that name credentials."""
    if isinstance(value, str):
        return without_paths(value, project=project)
    if isinstance(value, Mapping):
        return {str(key): clean(mask_values(item, key=str(key)), project=project) for key, item in value.items()}
    return [clean(item, project=project) for item in value] if isinstance(value, (list, tuple)) else value


def command(arguments: Sequence[str], *, project: Path | None = None) -> str:
    """Return the command line of a program, whose path is left out, for a shell."""
    program = Path(arguments[0]).name if arguments else ""
    words = [f"python -m {Path(arguments[0]).parent.name}" if program == "__main__.py" else program]
    return without_paths(" ".join([*words, *map(shlex.quote, arguments[1:])]), project=project)


def by_pipeline(nodes: Sequence[Any], pipelines: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the nodes of each of these pipelines, which are tags of the nodes; without empty ones."""
    found = {pipeline: [node.name for node in nodes if pipeline in node.tags] for pipeline in pipelines}
    return {pipeline: names for pipeline, names in found.items() if names}


def name_of(executed: Mapping[str, Sequence[str]], whole: Mapping[str, Sequence[str]], main: Sequence[str]) -> str:
    """Name a run by the pipelines that it executes: "all", "sampling,evaluation", "training (plan_training)".

    Args:
        executed, whole: the nodes of each pipeline, in this run and altogether.
        main: the pipelines of the main job.
    """
    parts = []
    for pipeline, nodes in executed.items():
        short = [node.rpartition(".")[2] for node in nodes]
        everything = whole.get(pipeline, nodes)
        if len(nodes) == len(everything):
            parts.append(pipeline)
        else:
            parts.append(
                f"{pipeline} ({', '.join(short) if len(short) < 3 else f'{len(short)} of {len(everything)} nodes'})"
            )
    return "all" if parts == list(main) else ",".join(parts)


def note(*, summary: str, command: str, facts: Mapping[str, str], headline: Mapping[str, float]) -> str:
    """Compose the Markdown text that MLflow shows as the description of a run."""
    lines = [summary, "", f"`{command}`"]
    if headline:
        lines += ["", "| headline number | value |", "| --- | --- |"]
        lines += [f"| {name} | {value:.4g} |" for name, value in headline.items()]
    if facts:
        lines += ["", "| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts.items())]
    return "\n".join(lines)
