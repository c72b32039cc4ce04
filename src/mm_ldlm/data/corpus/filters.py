"""Filters on length and language. Rows that fail go to quarantine with a reason."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from mm_ldlm.core.config import InvalidValue, PositiveInt, config
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.store.fingerprint import fingerprint

LanguageFilter = Callable[[str], bool]


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
            if high is not None and high < low:
                raise InvalidValue(f"max_{unit} {high} is below min_{unit} {low}", f"max_{unit}", f"min_{unit}")

    def refuse(self, text: str) -> tuple[str, str] | None:
        """Return (reason, detail) when the text is out of bounds."""
        if not text:
            return "empty", "only white space"
        characters = len(text)
        if characters < self.min_characters:
            return "too_short", f"{characters} characters, min_characters is {self.min_characters}"
        if self.max_characters is not None and characters > self.max_characters:
            return "too_long", f"{characters} characters, max_characters is {self.max_characters}"
        if self.min_words > 1 or self.max_words is not None:
            words = len(text.split())
            if words < self.min_words:
                return "too_short", f"{words} words, min_words is {self.min_words}"
            if self.max_words is not None and words > self.max_words:
                return "too_long", f"{words} words, max_words is {self.max_words}"
        return None


def load_language_filter(dotted: str) -> LanguageFilter:
    """Import the callable `package.module:function`, which receives a normalised text and returns True to keep it.

    Raises:
        ConfigurationError: The module cannot be imported, or has no such callable.
    """
    found: LanguageFilter = load_function(dotted, at="parameter 'ingestion.language_filter'")
    return found


def load_function(dotted: str, *, at: str) -> Callable[..., Any]:
    """Import the callable `package.module:function`; `at` names the parameter in messages.

    Raises:
        ConfigurationError: The module cannot be imported, or has no such callable.
    """
    module_name, colon, name = dotted.partition(":")
    if not colon or not name:
        raise ConfigurationError(f"{at}: expected 'package.module:function', found {dotted!r}.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigurationError(
            f"{at}: module {module_name!r} cannot be imported ({error}). Install it first."
        ) from None
    except Exception as error:  # a module of the user may fail in any way
        raise ConfigurationError(
            f"{at}: module {module_name!r} cannot be imported ({type(error).__name__}: {error}). Correct it."
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigurationError(f"{at}: {module_name!r} has no callable {name!r}. Correct the name.")
    made: Callable[..., Any] = found
    return made


def describe_language_filter(dotted: str | None) -> Any:
    """Return the filter's name and, where available, the digest of its module's source code."""
    if dotted is None:
        return None
    load_language_filter(dotted)
    return describe_function(dotted)


def describe_function(dotted: str) -> dict[str, str]:
    """Return the name of a function and, where available, the digest of its module's source code."""
    try:
        source = inspect.getsource(importlib.import_module(dotted.partition(":")[0]))
    except (OSError, TypeError):
        source = ""
    return {"name": dotted, "source": fingerprint(source)}


def keep_ascii(text: str) -> bool:
    """Keep texts of which at least nine tenths of the characters are ASCII: a language filter for English corpora."""
    return text.isascii() or 10 * sum(character.isascii() for character in text) >= 9 * len(text)
