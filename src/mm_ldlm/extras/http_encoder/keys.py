"""Keys of services: read from the environment variable that a parameter names, and hidden from logs and messages.

A parameter contains the name of the variable, never the value, because parameters are stored with runs and shown by
MLflow and the report.
"""

from __future__ import annotations

import os
import re

from mm_ldlm.core.credentials import MASK
from mm_ldlm.core.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ApiKey:
    """A secret value. Its representation is `***`; `reveal` returns the value."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return MASK

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key is not pickled; read it from the environment again")

    def reveal(self) -> str:
        """Return the value, for the request that needs it."""
        return self._value

    def redact(self, text: str) -> str:
        """Replace the value in a text that comes from outside, such as the message of a service."""
        return text.replace(self._value, MASK)


def is_variable_name(name: str) -> bool:
    """Return whether a string can be the name of an environment variable; most keys cannot."""
    return _NAME.fullmatch(name) is not None


def is_set(variable: str) -> bool:
    """Return whether the environment variable has a value."""
    return bool(os.environ.get(variable, "").strip())


def read_key(variable: str, *, parameter: str) -> ApiKey:
    """Read the key in an environment variable; `parameter` is the key that names the variable.

    Raises:
        ConfigurationError: the variable is not set, is empty, or contains characters that a header cannot contain. The
            message does not contain the value.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigurationError(missing(variable, parameter=parameter))
    if not all("!" <= character <= "~" for character in value):
        raise ConfigurationError(
            f"parameter '{parameter}': expected a key of printable ASCII characters without spaces in the environment "
            f"variable {variable}, found others in its {len(value)} characters. Set the variable to the key alone."
        )
    return ApiKey(value)


def missing(variable: str, *, parameter: str) -> str:
    """Return the error message for a variable that is not set."""
    return (
        f"parameter '{parameter}': expected a key in the environment variable {variable}, found none. Set the variable "
        "in the shell that starts the run, or name another one."
    )
