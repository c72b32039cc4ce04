"""The requests of `MMLDLM` for MLflow: a table of inputs and parameters become the arguments of one request."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mm_ldlm.app.commands import Parameter, registered, requests
from mm_ldlm.app.console import frame_of
from mm_ldlm.core import SamplingError, nearest, show
from mm_ldlm.inference.api import MMLDLM

REQUEST = "request"
"""Name of the parameter that chooses the request"""
TEXT, VECTOR = "text", "vector"
"""Columns of the input"""


def answer(model: MMLDLM, table: pd.DataFrame, given: Mapping[str, Any]) -> pd.DataFrame:
    """Answer the request that the parameter `request` names.

    Args:
        table: inputs in the columns `text` and `vector`, of which a request may need none.
        given: parameters by name; those that are None have the defaults of the request.

    Raises:
        SamplingError: there is no such request, or it has no such parameter or needs another input.
    """
    chosen, known = {name: value for name, value in given.items() if value is not None}, requests()
    name = chosen.pop(REQUEST, None)
    if name not in known:
        raise SamplingError(f"{REQUEST}: expected one of {', '.join(known)}, found {show(name)}.{nearest(name, known)}")
    columns = {key: [*table[key]] for key in (VECTOR, TEXT) if key in table and table[key].notna().any()}
    values, missing = dict[str, Any](), list[str]()
    for each in known[name].parameters:
        column = next((column for column in columns_of(each) if column in columns), None)
        if column is not None:
            values[each.name] = columns.pop(column)
        elif each.name in chosen and not columns_of(each):
            value = chosen.pop(each.name)
            try:
                values[each.name] = each.kind(registered(value)) if isinstance(value, str) else value
            except ValueError as error:
                raise SamplingError(f"{each.name}: {error}. Correct the parameter.") from None
        elif each.required:
            place = " or ".join(columns_of(each))
            missing.append(f"{each.name} in the column {place}" if place else f"the parameter {each.name}")
    if missing or chosen or columns:
        found = "none" if missing else ", ".join([*chosen, *columns])
        raise SamplingError(
            f"{name}: expected {' and '.join(missing) or 'nothing else'}, found {found}. It reads "
            f"{', '.join(each.name for each in known[name].parameters)}."
        )
    return frame_of(getattr(model, name)(**values))


def columns_of(parameter: Parameter) -> list[str]:
    """List the columns that a parameter is read from, the preferred one first; none for a parameter of the request."""
    return [VECTOR] * parameter.vectors + [TEXT] * parameter.texts
