"""The mutation tier: its operators, its list of fitting tests, and a campaign on a project of two files."""

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


def test_a_strict_zip_is_an_assertion_and_another_is_not() -> None:
    def found(source: bytes) -> set[tuple[str, str]]:
        return {(mutant.operator, mutant.before) for mutant in module("operators").mutants_of("a.py", source)}

    assert found(b"x = zip(a[0], b(), strict=True)") == {("constant", "0")}
    assert found(b"x = zip(a, b(), strict=False)") == {("flag", "False"), ("drop keyword", ", strict=False")}


def test_all_mutants_of_a_file_of_each_room_compile(project: Path) -> None:
    rooms = module("campaign").ROOMS
    for room in rooms:
        files = [file for file in (project / "src" / "mm_ldlm" / room).rglob("*.py") if file.name != "__init__.py"]
        file = min((file for file in files if file.stat().st_size > 1000), key=lambda file: file.stat().st_size)
        mutants = list(module("operators").mutants_of(file.name, file.read_bytes()))
        assert mutants, file
        for mutant in mutants:
            compile(mutant.apply(file.read_bytes()), str(mutant), "exec")


def test_the_fitting_tests_begin_with_those_of_the_module(project: Path) -> None:
    fitting = module("fitting").fitting_tests
    for path, first in {
        "sampling/orders.py": "sampling/test_orders.py", "core/typed.py": "core/test_typed.py",
        "extras/editing/verbatim.py": "extras/editing/test_verbatim.py", "cli.py": "test_cli.py",
    }.items():  # fmt: skip
        assert fitting(project, f"src/mm_ldlm/{path}")[0] == f"tests/{first}"
    assert "tests/app/test_parameters.py" in fitting(project, "src/mm_ldlm/training/config.py")
    assert "tests/app/test_parameters.py" in fitting(project, "conf/base/parameters/sampling.yml")


def test_every_import_of_a_test_counts(project: Path, tmp_path: Path) -> None:
    """Also those in a row, those in brackets, and a module that is imported from its room."""
    (tmp_path / "a.py").write_text(
        "from mm_ldlm.one import first\nfrom mm_ldlm.two import second, third as other\nfrom mm_ldlm import four\n"
        "from mm_ldlm.five import (\n    fifth,\n    sixth,\n)\nimport mm_ldlm.seven\n"
    )
    modules = {"one.first", "two.second", "two.third", "four", "five.fifth", "five.sixth", "seven"}
    assert module("fitting").imports_of(tmp_path / "a.py") >= modules


def test_code_of_functions_is_replaced_and_other_faults_are_recognised(tmp_path: Path) -> None:
    code, file = module("code"), tmp_path / "made.py"
    file.write_bytes(SOURCE)
    names: dict[str, Any] = {}
    exec(compile(SOURCE, str(file), "exec"), names)
    kept = names["refuse"]
    changed = code.changed_functions(SOURCE, SOURCE.replace(b"(n - 1)", b"(n + 1)"), str(file))
    assert [name for name, _ in changed] == ["refuse"]
    assert kept(4) == 3 * 16
    assert code.replace_code(changed, str(file)) == 1
    assert kept(4) == 5 * 16
    for old, new in ((b"LIMIT = 3", b"LIMIT = 4"), (b"size = 2.5", b"size = 5.0"), (b"bool = True", b"bool = False")):
        assert code.changed_functions(SOURCE, SOURCE.replace(old, new), str(file)) is None


def test_a_listed_equivalent_is_not_drawn(project: Path) -> None:
    campaign = module("campaign")
    known = campaign.read_equivalents(project / "mutation" / "equivalent.json")
    for item in known:
        source = (project / item.path).read_bytes()
        lines = [line.strip().decode() for line in source.splitlines()]
        assert item.line in lines, f"{item.path} has no line {item.line!r}: remove it from the list"
        assert len(item.reason.split()) > 3, item
        assert any(
            campaign.is_equivalent(mutant, source, [item])
            for mutant in module("operators").mutants_of(item.path, source)
        ), item
    path = "src/mm_ldlm/diffusion/random.py"
    drawn = campaign.draw(project, rooms=["diffusion"], count=30, seed=1, known=known)
    assert drawn == campaign.draw(project, rooms=["diffusion"], count=30, seed=1, known=known)
    assert len(drawn) == len(set(drawn)) == 30
    assert drawn != campaign.draw(project, rooms=["diffusion"], count=30, seed=2, known=known)
    one = module("operators").mutants_of(path, (project / path).read_bytes())[0]
    line = (project / path).read_text().splitlines()[one.line - 1].strip()
    item = campaign.Equivalent(one.path, line, one.before, one.after, "no reason")
    assert campaign.is_equivalent(one, (project / path).read_bytes(), [item])


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


def test_scores_are_counted_per_room() -> None:
    campaign, Run = module("campaign"), module("runner").Run
    names = ("diffusion/a.py", "diffusion/b.py", "store/c.py", "store/d.py")
    outcomes = ("killed", "survived", "killed", "limit")
    runs = [Run(f"src/mm_ldlm/{name}:1 [flag] True → False", outcome, "", 0.0)
            for name, outcome in zip(names, outcomes, strict=True)]  # fmt: skip
    table = campaign.score(runs)
    assert table["diffusion"] == {"killed": 1, "survived": 1, "limit": 0, "score": 0.5}
    assert table["store"] == {"killed": 1, "survived": 0, "limit": 1, "score": 1.0}
    assert table["all"]["score"] == pytest.approx(2 / 3)
    assert "src/mm_ldlm/diffusion/b.py:1" in campaign.as_text(runs)
