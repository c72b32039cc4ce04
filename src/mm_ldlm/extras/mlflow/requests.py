"""The requests of `MMLDLM` for MLflow: a table of inputs and parameters become the arguments of one request.

They are read from the signatures of the requests, as the options of the command line are.
"""

import functools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mm_ldlm.app.console import COMMANDS, Items, frame_of, registered, request_at, required_by, type_of
from mm_ldlm.core import SamplingError, nearest, show
from mm_ldlm.inference.api import MMLDLM

REQUEST = "request"
"""Name of the parameter that chooses the request"""
TEXT, VECTOR = "text", "vector"
"""Columns of the input"""


@functools.cache
def requests() -> dict[str, dict[str, Any]]:
    """List the requests: name → their parameters, with the type of each."""
    found = {}
    for name, path in (COMMANDS.external | COMMANDS.known).items():
        if (request := request_at(path)) is not None:
            arguments = {each.arg: type_of(each) for each in (*request.args.args[1:], *request.args.kwonlyargs)}
            found[name] = {argument: kind for argument, kind in arguments.items() if kind is not None}
    return found


def answer(model: MMLDLM, table: pd.DataFrame, given: Mapping[str, Any]) -> pd.DataFrame:
    """Answer the request that the parameter `request` names.

    Args:
        table: inputs in the columns `text` and `vector`, of which a request may need none.
        given: parameters by name; those that are None have the defaults of the request.

    Raises:
        SamplingError: there is no such request, or it has no such parameter or needs another input.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    name = chosen.pop(REQUEST, None)
    if name not in requests():
        raise SamplingError(
            f"{REQUEST}: expected one of {', '.join(requests())}, found {show(name)}.{nearest(name, requests())}"
        )
    columns = {key: [*table[key]] for key in (VECTOR, TEXT) if key in table and table[key].notna().any()}
    values = {}
    for argument, kind in requests()[name].items():
        if isinstance(kind, Items):
            column = next((each for each in _columns(kind) if each in columns), None)
            if column is not None:
                values[argument] = columns.pop(column)
        elif argument in chosen:
            value = chosen.pop(argument)
            try:
                values[argument] = kind(registered(value)) if isinstance(value, str) else value
            except ValueError as error:
                raise SamplingError(f"{argument}: {error}. Correct the parameter.") from None
    if chosen or columns:
        raise SamplingError(
            f"{name}: expected no {', '.join([*chosen, *columns])}. It reads {', '.join(requests()[name])}."
        )
    if missing := [_place(each, requests()[name].get(each)) for each in _required(name) if each not in values]:
        raise SamplingError(f"{name}: expected {' and '.join(missing)}, found none. Add it to the request.")
    return frame_of(getattr(model, name)(**values))


@functools.cache
def _required(name: str) -> list[str]:
    request = request_at((COMMANDS.external | COMMANDS.known)[name])
    return [] if request is None else required_by(request)


def _columns(kind: Items) -> list[str]:
    """List the columns that an argument is read from, the preferred one first."""
    return [VECTOR] * kind.vectors + [TEXT] * kind.texts


def _place(argument: str, kind: Any) -> str:
    if isinstance(kind, Items):
        return f"{argument} in the column {' or '.join(_columns(kind))}"
    return f"the parameter {argument}"
