"""Every number and name that a module fixes: limits, sizes, tolerances, names of files, formats of stores.

Stores and runs of earlier versions contain some of them, others decide results or the memory that a run needs. A change
is made in the table as well, with the reason in the commit.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mm_ldlm.extras.gpu_check.kernels import TOLERANCE

import mm_ldlm
from mm_ldlm.app.tracking.mlflow import MlflowSink

SOURCE = Path(mm_ldlm.__file__).parent
TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("constants.json").read_text(encoding="utf-8"))
"""Module → name of a constant → its value, with lists for tuples and sets, and bytes as Python writes them"""
ELSEWHERE = ("corpus.starter",)
"""The starter corpus is one digest of all its sentences (tests/corpus/test_starter.py)."""


def literal(node: ast.expr) -> Any:
    """The value of an expression of literals and arithmetic, such as 64 * 2**20; ValueError for any other."""
    if isinstance(node, ast.BinOp):
        left, right = literal(node.left), literal(node.right)
        if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
            raise ValueError("no arithmetic of numbers")
        operations: dict[type, Any] = {
            ast.Mult: lambda: left * right, ast.Pow: lambda: left**right, ast.LShift: lambda: left << right,
            ast.Add: lambda: left + right, ast.Sub: lambda: left - right, ast.Div: lambda: left / right,
        }  # fmt: skip
        return operations[type(node.op)]()
    return ast.literal_eval(node)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value))
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    return repr(value) if isinstance(value, (bytes, complex)) else value


def constants(file: Path) -> Iterator[tuple[str, Any]]:
    """Name and value of each constant of a module that is a number, a name, or consists of numbers and names."""
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], (ast.Name, ast.Tuple)):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            target, value = statement.target, statement.value
        else:
            continue
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [value] * len(names)
        for each, of in zip(names, values, strict=True):
            name = each.id if isinstance(each, ast.Name) else ""
            if not name.isupper():
                continue
            try:
                found = plain(literal(of))
            except (ValueError, TypeError, KeyError):
                continue
            if not any(" " in text for text in texts(found)):  # sentences are tested where they are written
                yield name, found


def texts(value: Any) -> Iterator[str]:
    """Every text inside a value."""
    if isinstance(value, str):
        yield value
    for item in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(item)


def every() -> dict[str, dict[str, Any]]:
    """Constants by module."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        if not module.startswith(ELSEWHERE) and (own := dict(constants(file))):
            found[module] = own
    return found


FOUND = every()


@pytest.mark.parametrize("module", sorted({*TABLE, *FOUND}))
def test_the_constants_of_a_module_are_those_of_the_table(module: str) -> None:
    assert FOUND.get(module) == TABLE.get(module), f"in tests/constants.json write {json.dumps(FOUND.get(module))}"


def test_lines_that_mlflow_did_not_accept_are_kept_and_sent_again_after_a_minute() -> None:
    assert (MlflowSink.PAUSE, MlflowSink.KEPT) == (60.0, 100_000)


def test_the_tolerances_of_kernels_are_below_tf32_and_above_the_rounding_of_each_type() -> None:
    assert {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3} == TOLERANCE
