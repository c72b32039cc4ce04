"""Where the run lies that data/06_models/run.json names. Apart from `folder`, so that it can be asked without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mm_ldlm.errors import CheckpointError


def run_folder(runs: Path, reference: Any) -> Path:
    """The folder of the run that a run.json names.

    Raises:
        CheckpointError: it names none, or one that does not lie in `runs`.
    """
    name = reference.get("name") if isinstance(reference, dict) else None
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
        raise CheckpointError(
            f"run.json should hold the name of a folder in {runs}, found {name!r}; run `kedro run --pipeline=training`."
        )
    return Path(runs) / name
