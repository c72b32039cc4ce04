"""Filters on length and language, whose rows go to quarantine with a reason."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mm_ldlm.core import (
    ConfigurationError,
    PositiveInt,
    config,
    foreign_code,
    import_object,
    refuse_if,
    show,
)
from mm_ldlm.data.corpus.quarantine import Unusable
from mm_ldlm.data.store.fingerprint import fingerprint


@config
class LengthConfig:
    """Bounds on the normalised text; None means no bound. Words are separated by white space."""

    min_characters: PositiveInt = 1
    max_characters: PositiveInt | None = None
    min_words: PositiveInt = 1
    max_words: PositiveInt | None = None

    def __post_init__(self) -> None:
        for unit in ("characters", "words"):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            refuse_if(
                high is not None and high < low,
                f"max_{unit} {high} is below min_{unit} {low}",
                f"max_{unit}",
                f"min_{unit}",
            )

    def check(self, text: str) -> None:
        """Raise `Unusable` for a text that is out of bounds."""
        if not text:
            raise Unusable("empty", "no text, or only white space", text)
        for unit, count in (("characters", len(text)), ("words", len(text.split()))):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if count < low:
                raise Unusable("too_short", f"{count} {unit}, min_{unit} is {low}", text)
            if high is not None and count > high:
                raise Unusable("too_long", f"{count} {unit}, max_{unit} is {high}", text)


LANGUAGE_FILTER = "parameter 'ingestion.language_filter'"


def check_language(text: str, dotted: str) -> None:
    """Raise `Unusable` for a text that a function refuses, or for which it raises an error.

    Raises:
        ConfigurationError: there is no such function, or it is not a predicate: it returned anything but a boolean.
    """
    keep = load_function(dotted, at=LANGUAGE_FILTER)
    with foreign_code(  # many detectors raise for texts without letters
        lambda reason: Unusable("filter_error", f"{LANGUAGE_FILTER} {dotted} raised {reason}", text)
    ):
        kept = keep(text)
    if type(kept) not in (bool, np.bool_):
        raise ConfigurationError(
            f"{LANGUAGE_FILTER}: expected true or false from {dotted}, found {show(kept, 100)} "
            f"({type(kept).__name__}). Return a boolean; a generator or an async function is not a filter."
        )
    if not kept:
        raise Unusable("language", f"refused by {dotted}", text)


@functools.cache
def load_function(dotted: str, *, at: str) -> Callable[..., Any]:
    """Import the callable `package.module:function`; `at` names the parameter in messages.

    Raises:
        ConfigurationError: the module cannot be imported, or has no such callable.
    """
    found: Callable[..., Any] = import_object(dotted, at)
    if not callable(found):
        raise ConfigurationError(f"{at}: expected a function, found {show(found, 100)} at {dotted}. Correct the name.")
    return found


def describe_function(dotted: str, *, at: str) -> dict[str, str]:
    """Return the name of a function and, where available, the digest of its module's source code.

    Raises:
        ConfigurationError: there is no such function (`load_function`).
    """
    load_function(dotted, at=at)
    return {"name": dotted, "source": code_of(dotted.partition(":")[0])}


def code_of(module: str) -> str:
    """Return the digest of a module's source code, or of no text where it is not available."""
    try:
        return fingerprint(inspect.getsource(importlib.import_module(module)))
    except (OSError, TypeError):
        return fingerprint("")
