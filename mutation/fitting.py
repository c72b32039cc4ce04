"""The test files that fit a source file: a table from names and imports, the nearest first."""

import functools
import re
from pathlib import Path

MOST_FILES = 12
"""Largest number of test files of one source file"""
DEFAULTS = "tests/app/test_parameters.py"
"""Test file of the types and defaults of all parameters"""
CONFIGURATION = (DEFAULTS, "tests/test_pipeline_registry.py", "tests/app/test_config_loader.py")
"""Test files of `conf/base`"""


@functools.cache
def imports_of(file: Path) -> frozenset[str]:
    """Return the modules of `mm_ldlm` that a Python file imports or names in text, without the package's name."""
    text = file.read_text(encoding="utf-8")
    found = set(re.findall(r"mm_ldlm\.([\w.]+)", text))
    for module, names in re.findall(r"from mm_ldlm(?:\.([\w.]+))? import (\([\w\s,]+|[\w ,]+)", text):
        found |= {f"{module}.{name}".strip(".") for name in re.findall(r"\w+", names)}
    return frozenset(found)


def fitting_tests(root: Path, path: str) -> list[str]:
    """Return the test files to run on a fault in `path` (relative to `root`), the likeliest to fail first.

    First the files with the name of the module (tests/core/test_typed.py for src/mm_ldlm/core/typed.py), then those
    that import it, then those of its room, then those that import a module which imports it. A module that declares
    parameters also has `DEFAULTS`.
    """
    if path.startswith("conf/"):
        return [name for name in CONFIGURATION if (root / name).is_file()]
    parts = Path(path).relative_to("src/mm_ldlm").with_suffix("").parts
    declares = re.search(r"^@config$|bounded\(", (root / path).read_text(encoding="utf-8"), re.MULTILINE)
    module, words = ".".join(parts), {part for part in parts if part != "nodes"}
    room = "/".join(parts[:2] if parts[0] in ("families", "extras") else parts[:1])
    above = {
        ".".join(file.relative_to(root / "src/mm_ldlm").with_suffix("").parts)
        for file in (root / "src/mm_ldlm").rglob("*.py")
        if module in imports_of(file)
    }
    ranked = []
    for file in sorted((root / "tests").rglob("test_*.py")):
        name = file.relative_to(root).as_posix()
        own_room, imported = name.startswith(f"tests/{room}/"), imports_of(file)
        stem = file.stem.removeprefix("test_")
        own_file = (own_room and stem in words) or name == f"tests/test_{module}.py"
        score = 8 * own_file + 4 * (module in imported) + 2 * own_room + bool(above & imported)
        score += 4 * (name == DEFAULTS and declares is not None)
        if score:
            ranked.append((-score, len(imported), name))
    return [name for _, _, name in sorted(ranked)][:MOST_FILES]
