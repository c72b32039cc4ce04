"""Families are deletable: without the folders of some, their layers and their tests, everything else stays green."""

import importlib
import os
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


def layers_of(family: str) -> list[Path]:
    """List the layers of the configuration that choose a kind, a section or a function of a family."""
    components = importlib.import_module(f"mm_ldlm.families.{family}").COMPONENTS
    kinds = {name for names in components.values() for name in names}

    def names(tree: Any) -> bool:
        if isinstance(tree, dict):
            return tree.get("kind") in kinds or any(map(names, tree.values()))
        if isinstance(tree, list):
            return any(map(names, tree))
        return isinstance(tree, str) and tree.startswith(f"mm_ldlm.families.{family}.")

    found = []
    for folder in sorted(each for each in (PROJECT / "conf").iterdir() if each.is_dir() and each.name != "base"):
        trees = [yaml.safe_load(path.read_text(encoding="utf-8")) or {} for path in folder.rglob("*.yml")]
        if any(names(tree) or components.get("sections", {}).keys() & tree.keys() for tree in trees):
            found.append(folder)
    return found


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
