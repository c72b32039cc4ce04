"""The mutation tier: its operators, its list of equivalent mutants, and a campaign on a project of two files."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = b'''"""Doc: 1 < 2."""

LIMIT = 3


class Box:
    size = 2.5


def refuse(n: int, *, strict: bool = True) -> int:
    """A docstring with True and 1 + 1."""
    if n < LIMIT and not strict:
        raise ValueError(f"expected at least {LIMIT}, found {n + 1}")
    held = {}
    held["n"] = max(n, LIMIT)
    return (n - 1) * held["n"] ** 2


def call(a: int, b: int) -> int:
    return refuse(min(a, b), strict=a == b) if a is None else refuse(b)
'''


@pytest.fixture(autouse=True)
def _on_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))


def module(name: str) -> Any:
    return importlib.import_module(f"mutation.{name}")


def test_every_operator_finds_its_places_and_nothing_else() -> None:
    found = module("operators").mutants_of("a.py", SOURCE)
    text = {(mutant.line, mutant.operator, mutant.before, mutant.after) for mutant in found}
    assert {
        (3, "constant", "3", "4"), (7, "constant", "2.5", "5.0"), (10, "flag", "True", "False"),
        (12, "comparison", "<", "<="), (12, "boolean", "and", "or"), (12, "unary", "not strict", "(strict)"),
        (15, "function", "max", "min"), (15, "swap arguments", "n, LIMIT", "LIMIT, n"),
        (15, "drop statement", 'held["n"] = max(n, LIMIT)', "pass"), (16, "arithmetic", "-", "+"),
        (16, "arithmetic", "*", "/"), (16, "arithmetic", "**", "*"), (20, "drop keyword", ", strict=a == b", ""),
        (20, "comparison", "==", "!="), (20, "comparison", "is", "is not"),
    } <= text  # fmt: skip
    assert (13, "drop refusal") in {entry[:2] for entry in text}
    assert not {entry for entry in text if entry[0] in (1, 11)}, "docstrings have no mutants"
    assert {entry[1] for entry in text if entry[0] == 13} == {"drop refusal"}, "messages have no mutants"
    for mutant in found:
        compile(mutant.apply(SOURCE), "a.py", "exec")
    with pytest.raises(ValueError, match="another text"):
        found[0].apply(b" " + SOURCE)


def test_every_listed_equivalent_is_a_mutant_of_its_line(project: Path) -> None:
    campaign = module("campaign")
    known = campaign.read_equivalents(project / "mutation" / "equivalent.json")
    for item in known:
        source = (project / item.path).read_bytes()
        assert len(item.reason.split()) > 3, item
        assert any(
            campaign.is_equivalent(mutant, source, [item])
            for mutant in module("operators").mutants_of(item.path, source)
        ), item


SMALL = b"""STEP = 2


def grow(n):
    return n + STEP


def idle(n):
    return n * 1


def forever(n):
    while n < 1:
        n += 1
    return n
"""
TESTS = """from mm_ldlm.small import STEP, forever, grow, idle


def test_small():
    assert grow(3) == 5
    assert idle(3) == 3
    assert forever(0) == 1
    assert STEP == 2
"""
CAMPAIGN = """
import json, sys
from pathlib import Path
from mutation.runner import Fault, Limits, run_faults

root, source = Path(sys.argv[1]), Path(sys.argv[1], "src/mm_ldlm/small.py").read_bytes()
changes = {"same": (b"n * 1", b"n / 1"), "grow": (b"n + STEP", b"n - STEP"), "step": (b"STEP = 2", b"STEP = 3"),
           "hang": (b"n += 1", b"pass"), "name": (b"return n + STEP", b"return m + STEP")}
faults = [Fault(name, "src/mm_ldlm/small.py", source.replace(*change), ("tests/test_small.py",))
          for name, change in changes.items()]
runs = run_faults(root, faults, work=root / "work", limits=Limits(cpu_seconds=1, seconds=300))
print(json.dumps({run.name: [run.outcome, run.test] for run in runs}))
assert Path(root, "src/mm_ldlm/small.py").read_bytes() == source
"""


def test_pitfall_47_a_campaign_tells_killed_mutants_from_survivors(tmp_path: Path, project: Path) -> None:
    """In a process of its own, because a campaign forks."""
    (tmp_path / "src" / "mm_ldlm").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "src" / "mm_ldlm" / "__init__.py").touch()
    (tmp_path / "src" / "mm_ldlm" / "small.py").write_bytes(SMALL)
    (tmp_path / "tests" / "test_small.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "-q --import-mode=importlib"\n')
    done = subprocess.run(
        [sys.executable, "-c", CAMPAIGN, str(tmp_path)], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    failed = "tests/test_small.py::test_small"
    assert json.loads(done.stdout) == {
        "same": ["survived", ""], "grow": ["killed", failed], "step": ["killed", failed], "hang": ["limit", "limit"],
        "name": ["killed", failed],
    }  # fmt: skip
