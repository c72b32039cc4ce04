"""Requests of `MMLDLM` as the command line, the service and MLflow offer them: their help and their parameters.

They are read from the source: importing a request would import torch, which takes longer than printing a help text
or most refusals.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

from mm_ldlm.core import ConfigurationError, Registry, contributed, foreign_code

COMMANDS = Registry(
    "command",
    {
        "run": "mm_ldlm.__main__:run",
        "invert": "mm_ldlm.inference.requests.generation:invert",
        "generate": "mm_ldlm.inference.requests.generation:generate",
        "embed": "mm_ldlm.inference.requests.embedding:embed",
        "encode": "mm_ldlm.inference.requests.embedding:encode",
        "score": "mm_ldlm.inference.requests.likelihood:score",
        "neighbours": "mm_ldlm.inference.requests.neighbours:neighbours",
    },
    group="commands",
)
"""Every command of `mm-ldlm`: objects of click, and requests of `MMLDLM`"""
SHARED = {
    "texts": "texts; each gets one answer.",
    "seed": "seed of the random draws.",
    "steps": "number of sampling steps; by default the sampler's.",
    "temperature": "sampling temperature; by default the sampler's.",
    "sampler": "kind of sampler; by default the model's.",
    "too_long": "refuse or truncate texts that are too long.",
}
"""Help of parameters that many requests have; others are explained under `Args:` in the docstring of the request"""


class Parameter(NamedTuple):
    """A parameter of a request."""

    name: str
    kind: Any
    """int, float, bool, str or `length`; str where it is a list (`texts`, `vectors`)"""
    texts: bool
    """Whether it is a list with one text for each row; it may be one of vectors as well"""
    vectors: bool
    choices: list[str]
    """All values that it can have, or none if they cannot be listed"""
    help: str
    positional: bool
    required: bool
    default: Any


class Request(NamedTuple):
    """Help, type of the result and parameters of a request."""

    help: str
    returns: str
    """Name of the type of its result"""
    parameters: list[Parameter]


def requests() -> dict[str, Request]:
    """Return the registered commands that are requests, by name."""
    found = {name: request_at(path) for name, path in (COMMANDS.external | COMMANDS.known).items()}
    return {name: request for name, request in found.items() if request is not None}


@functools.cache
def request_at(path: str) -> Request | None:
    """Read the source of a request, a function of "module:name" whose first argument is the model; None for others."""
    module, _, name = path.partition(":")
    named = (node for node in _source(module) if isinstance(node, ast.FunctionDef) and node.name == name)
    source = next((node for node in named if [each.arg for each in node.args.args[:1]] == ["model"]), None)
    if source is None:
        return None
    text, _, explained = (ast.get_docstring(source) or "").partition("\n\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*)", re.sub(r"\n {8}", " ", explained), re.MULTILINE)
    arguments, words = source.args, SHARED | dict(found)
    missing = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    parameters = [
        _parameter(argument, default, module, words.get(argument.arg, ""), positional=argument in arguments.args)
        for argument, default in [*zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True)][1:]
        if "Sequence[Sequence" not in ast.unparse(argument.annotation or argument)  # token ids
    ]
    return Request(text, ast.unparse(source.returns or ast.Constant("")), parameters)


def _parameter(argument: ast.arg, default: ast.expr | None, module: str, words: str, *, positional: bool) -> Parameter:
    hint = ast.unparse(argument.annotation or ast.Name("str"))
    names = re.findall(r"\w+", hint)
    choices, is_open = [] if positional else _choices(names[-1], module), "Any" in names  # also a configuration
    return Parameter(
        name=argument.arg,
        kind=next((_KINDS[name] for name in names if name in _KINDS), str),
        texts="Sequence[str]" in hint,
        vectors="Latents" in names,
        choices=[] if is_open else choices,
        help=words[:1].upper() + words[1:] + f" One of {', '.join(choices)}." * is_open,
        positional=positional,
        required=default is None,
        default=default and _literal(default, f"{module}: the parameter '{argument.arg}' of a request"),
    )


def _literal(node: ast.expr, what: str) -> Any:
    with foreign_code(lambda _: ConfigurationError(
        f"{what}: expected a default that is readable without an import, found {ast.unparse(node)}. Write a literal."
    )):  # fmt: skip
        return ast.literal_eval(node)


def _choices(name: str, module: str) -> list[str]:
    """List the values of a `Literal`, or the kinds of a registry, which a module defines or imports."""
    for node in _source(module):
        match node:
            case ast.ImportFrom(module=str(other), names=imported) if name in [each.name for each in imported]:
                return _choices(name, other)
            case ast.Assign([ast.Name(id)], ast.Subscript(ast.Name("Literal"), values)) if id == name:
                return [*ast.literal_eval(values)]
            case ast.Assign([ast.Name(id)], ast.Call(keywords=given)) if id == name:
                kinds = {each.arg: ast.literal_eval(each.value) for each in given if each.arg in ("core", "group")}
                return [*kinds.get("core", ()), *contributed(kinds.get("group", ""))]
    return []


@functools.cache
def _source(module: str) -> list[ast.stmt]:
    """Parse a module; one that cannot be read has no statements, and `COMMANDS.load` explains it."""
    try:
        spec = importlib.util.find_spec(module)
        return ast.parse(Path(str(spec and spec.origin)).read_bytes()).body
    except Exception:  # also what the package above the module raises, which `find_spec` imports
        return []


def length(value: str) -> str | int:
    """Return a length in words, or a number of tokens."""
    return int(value) if value.isdecimal() else value


def registered(value: Any) -> Any:
    """Return the kind that a client of a service chose.

    Raises:
        ValueError: it contains an import path.
    """
    if re.search(r"\S:\S", repr(value)):
        raise ValueError("expected a registered kind; import paths are refused, because they would run other code")
    return value


_KINDS = {"int": int, "float": float, "bool": bool, "Length": length}
