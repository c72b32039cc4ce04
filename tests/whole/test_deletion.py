"""Families are deletable: without the folders of some, their layers and their tests, everything else stays green."""

import ast
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.parent.name for path in (PROJECT / "src/mm_ldlm/families").glob("*/__init__.py"))
CHECKS = {
    "lint": ["ruff", "check", "--no-cache", "."],
    "contracts": ["lint-imports", "--no-cache"],
    "types": ["mypy"],
    "tests": ["pytest", "-q", "-p", "no:cacheprovider", "--ignore=tests/whole", "tests"],
}


@functools.cache
def configuration() -> dict[Path, list[Any]]:
    """Read the files of each layer of the configuration."""
    folders = sorted(each for each in (PROJECT / "conf").iterdir() if each.is_dir())
    return {each: [yaml.safe_load(path.read_text("utf-8")) or {} for path in each.rglob("*.yml")] for each in folders}


def names_of(family: str) -> set[str]:
    """List the names of a family and of its components."""
    components = importlib.import_module(f"mm_ldlm.families.{family}").COMPONENTS
    return {family, *(name for names in components.values() for name in names)}


def layers_of(family: str) -> set[Path]:
    """List the layers that choose a kind, a section or a function of a family, and those that compare such layers."""
    sections = importlib.import_module(f"mm_ldlm.families.{family}").COMPONENTS.get("sections", {})
    known, found = names_of(family), set[Path]()

    def names(tree: Any) -> bool:
        if isinstance(tree, dict):
            chosen = tree.get("kind") in known or tree.get("env") in {each.name for each in found}
            return chosen or any(map(names, tree.values()))
        if isinstance(tree, list):
            return any(map(names, tree))
        return isinstance(tree, str) and tree.startswith(f"mm_ldlm.families.{family}.")

    for layer, trees in [*configuration().items()] * 2:  # twice, because a comparison may come before what it compares
        if any(names(tree) or sections.keys() & tree.keys() for tree in trees):
            found.add(layer)
    return found


def test_nothing_outside_a_family_names_what_belongs_to_it() -> None:
    """Except words that names in the core's own code consist of: "uniform" is a family's process and a loss of the core.

    Tables of other trainers (`trainers.py`) have their words.
    """
    files = [path for room in ("src", "tests") for path in (PROJECT / room).rglob("*.py") if path.name != "trainers.py"]
    texts = {path: path.read_text("utf-8") for path in files}
    words, found = set[str](), set[str]()
    for path in texts:
        if path.is_relative_to(PROJECT / "src") and "families" not in path.parts:
            for node in ast.walk(ast.parse(texts[path])):
                words |= {
                    word for key in ("id", "attr", "arg", "name") for word in str(getattr(node, key, "")).split("_")
                }
    named = {path: {*re.findall(r'(?<="|\+)\w+(?=\+\w|")|(?<=families\.)\w+', text)} for path, text in texts.items()}
    for family in FAMILIES:
        layers = {each.name for each in layers_of(family)}
        assert "base" not in layers, family
        names = (names_of(family) | layers) - words
        for path in texts:
            if family not in path.parts and names & named[path]:
                found.add(f"{path.relative_to(PROJECT)} names {', '.join(names & named[path])} of {family}")
    assert not found, "\n".join(sorted(found))


@pytest.mark.slow
@pytest.mark.parametrize("families", [FAMILIES[::2], FAMILIES[1::2]], ids=["first half", "second half"])
def test_everything_else_works_without_half_of_the_families(families: list[str], tmp_path: Path) -> None:
    """No family may import another one (a contract), so that no pair needs to be tried."""
    copy = tmp_path / "project"
    committed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    for name in committed.stdout.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, copy / name, follow_symlinks=False)
    folders = {layer for family in families for layer in layers_of(family)}
    folders |= {PROJECT / place / family for family in families for place in ("src/mm_ldlm/families", "tests/families")}
    for path in folders:
        shutil.rmtree(copy / path.relative_to(PROJECT), ignore_errors=not path.exists())
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "KEDRO_DISABLE_TELEMETRY": "1"}
    failed = {}
    for name, (program, *arguments) in CHECKS.items():
        command = [str(Path(sys.executable).with_name(program)), *arguments]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        if done.returncode:
            failed[name] = f"{done.stdout[-6000:]}{done.stderr[-2000:]}"
    assert not failed, "\n".join(f"{name} without {families}:\n{output}" for name, output in failed.items())
