"""Commit of the source code that a run was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit(project: Path) -> dict[str, str]:
    """Return the current commit and whether the working tree differs from it, as tags; empty outside a git checkout."""
    try:
        head = _git(project, "rev-parse", "HEAD")
        return {
            "mlflow.source.git.commit": head,
            "git.dirty": str(bool(_git(project, "status", "--porcelain"))).lower(),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}


def _git(project: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout.strip()
