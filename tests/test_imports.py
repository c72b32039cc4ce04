"""No module of the package imports itself through others; imports under TYPE_CHECKING and in functions count."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

LAZY = {("mm_ldlm", "mm_ldlm.inference")}
"""`from mm_ldlm import MMLDLM` imports inference on first use only."""


def import_graph(package: str) -> dict[str, set[str]]:
    """Map each module to the modules that its import executes: those it names and their packages."""
    graph = grimp.build_graph(package, cache_dir=None)
    edges = {
        module: {
            part for found in graph.find_modules_directly_imported_by(module) for part in _packages_and_self(found)
        }
        - {
            parent
            for parent in _packages_and_self(module)
            if parent not in graph.find_modules_directly_imported_by(module)
        }
        for module in graph.modules
    }
    return {module: {found for found in imported if (module, found) not in LAZY} for module, imported in edges.items()}


def cycles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module."""
    names = sorted({*edges, *(found for imported in edges.values() for found in imported)})
    number = {name: i for i, name in enumerate(names)}
    pairs = [(number[a], number[b]) for a, imported in edges.items() for b in imported]
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    matrix = csr_array(([1] * len(pairs), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(matrix, directed=True, connection="strong")
    members: dict[int, list[str]] = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        members.setdefault(label, []).append(name)
    return [found for found in members.values() if len(found) > 1]


def _packages_and_self(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts) + 1)]


def test_there_are_no_import_cycles() -> None:
    found = cycles(import_graph("mm_ldlm"))
    assert not found, "these files import one another:\n" + "\n".join(" <-> ".join(cycle) for cycle in found)


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_cycles_are_found(edges: dict[str, set[str]], expected: list[list[str]]) -> None:
    assert sorted(cycles(edges)) == expected


def test_a_module_that_tests_import_by_name_has_a_name_of_its_own() -> None:
    """A session of tests of several folders has all their folders on its path; of two modules it would take any."""
    tests = Path(__file__).parent
    on_path = [path.parent for path in tests.glob("*/conftest.py") if "HERE not in sys.path" in path.read_text()]
    assert len(on_path) > 4
    names = Counter(file.stem for folder in (tests, *on_path) for file in folder.glob("*.py"))
    shared = {
        f"{file.relative_to(tests)} imports {name}"
        for file in tests.rglob("*.py")
        for name in re.findall(r"^ *(?:from|import) (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        if names[name] > 1
    }
    assert not shared


def test_the_package_lists_its_api_without_importing_torch() -> None:
    """IPython completes the names of `dir` and of `__all__`."""
    code = (
        "import sys, mm_ldlm; print('MMLDLM' in dir(mm_ldlm), '__version__' in dir(mm_ldlm), mm_ldlm.__all__, "
        "'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True True ['MMLDLM'] False\n"
