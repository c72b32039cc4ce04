"""The run that data/06_models/run.json names. Separate from `folder`, so that it does not need torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mm_ldlm.errors import CheckpointError, UnsafePathError
from mm_ldlm.store.paths import inside

MARKER = "COMPLETE"
"""File of a checkpoint that is written last and names its other files."""


def run_folder(runs: Path, reference: Any) -> Path:
    """Return the folder of the run that a run.json names.

    Raises:
        CheckpointError: It names no run, or one outside `runs`.
    """
    name = reference.get("name") if isinstance(reference, dict) else None
    try:
        found = inside(runs, name)
    except UnsafePathError:
        found = Path()
    if found.parent != Path(runs):
        raise CheckpointError(
            f"expected the name of a folder in {runs} in run.json, found {name!r}. Run `kedro run "
            "--pipelines=training`."
        )
    return found
