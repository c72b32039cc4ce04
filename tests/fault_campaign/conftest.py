"""Fixtures of the fault campaign: the stages with their undisturbed results, made once."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
for place in (TESTS / "fault_campaign", TESTS / "training"):  # `children`, `stages` and `helpers` are imported by name
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))


@pytest.fixture(scope="session")
def fault_root() -> Iterator[Path]:
    """A folder that other users may enter; the folders of pytest are closed to them."""
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root, ignore_errors=True)
