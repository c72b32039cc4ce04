"""Typed parameters: the decorator `config`, the parsers `parse` and `parse_kind`, and constrained number types.

In a mapping, a single value where a list of any length is expected is a list of one.

Every room defines its parameters beside the code that reads them, as a frozen dataclass made by `@config`. The
pipelines parse the catalog's dictionaries into those types before the first node runs.

A GPU host that only reads specs needs no pydantic: the specs were validated when they were written. Without pydantic
the same types are built without range checks; unknown and missing keys are still refused.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, Union, cast, dataclass_transform

from mm_ldlm.core.config_errors import explain, name_keys, reason, without_branches
from mm_ldlm.core.credentials import holds_credentials
from mm_ldlm.core.errors import ConfigurationError, MMLDLMError, SamplingError
from mm_ldlm.core.kinds import MARK, Kinds, with_article
from mm_ldlm.core.messages import escape, nearest, show, summarise

try:
    import pydantic
    from pydantic import ConfigDict, Field

    def bounded(**bounds: Any) -> Any:
        """Make the annotation of a number within bounds (gt, ge, lt, le)."""
        return Field(**bounds)

except ModuleNotFoundError:  # a GPU host without pydantic
    pydantic = None  # type: ignore[assignment]

    def bounded(**bounds: Any) -> Any:
        return tuple(sorted(bounds.items()))


T = TypeVar("T")

DEEPEST = 32
"""Number of mappings and lists that a parameter may be nested in."""

# Every number has an upper bound, so that a value that exhausts the memory or overflows in a worker is refused before
# the first node. The general bounds are those of numbers that determine no allocation and no number of repetitions.
PositiveInt = Annotated[int, bounded(gt=0, le=10**12)]
NonNegativeInt = Annotated[int, bounded(ge=0, le=10**12)]
PositiveFloat = Annotated[float, bounded(gt=0, le=1e30)]
NonNegativeFloat = Annotated[float, bounded(ge=0, le=1e30)]
"""Floats fit float32 with room for a product."""
Fraction = Annotated[float, bounded(ge=0, le=1)]
"""A number between 0 and 1, both included."""
Seed = Annotated[int, bounded(ge=0, lt=2**63)]
Size = Annotated[int, bounded(gt=0, le=65_536)]
"""A dimension of a tensor of the model, or its number of heads."""
Layers = Annotated[int, bounded(gt=0, le=1024)]
LayersOrNone = Annotated[int, bounded(ge=0, le=1024)]
Ratio = Annotated[float, bounded(gt=0, le=1000)]
"""A factor of a dimension."""
Rows = Annotated[int, bounded(gt=0, le=10**8)]
"""A number of examples, tokens or texts that are held in memory together."""
RowsOrNone = Annotated[int, bounded(ge=0, le=10**8)]
"""The same, where 0 stands for none."""
Bytes = Annotated[int, bounded(gt=0, lt=2**31)]
"""A size in bytes, at most that of one value of an Arrow column."""
Repeats = Annotated[int, bounded(gt=0, le=100_000)]
"""A number of model calls, draws or candidates for one result."""
Workers = Annotated[int, bounded(gt=0, le=4096)]
"""A number of processes, threads or hosts."""
WorkersOrNone = Annotated[int, bounded(ge=0, le=4096)]
Duration = Annotated[float, bounded(gt=0, le=10**7)]
"""Seconds or minutes."""
Device = Annotated[str, bounded(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")]
AutoDevice = Annotated[str, bounded(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")]
"""auto: the GPU of the local rank if there is one, otherwise the CPU."""
CheckpointName = Annotated[str, bounded(coerce_numbers_to_str=True, pattern=r"^(latest|best|(step-)?\d+)$")]
"""Name of a checkpoint: `latest`, `best`, a step, or the name of its folder."""


class InvalidValue(ValueError):
    """Raised in `__post_init__` of a configuration; the message of the refusal names `keys` by their full paths."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def refuse_unwritable(value: Any, *, at: str) -> None:
    """Refuse parameters that no file of parameters can contain, at any depth: the check before all others.

    Raises:
        ConfigurationError: a key is no string; a text is not valid Unicode or contains a NUL character; the nesting is
            deeper than `DEEPEST`; or a text contains a password or a token.
    """
    waiting: list[tuple[Any, str, int]] = [(value, at, 0)]
    while waiting:
        item, path, depth = waiting.pop()
        where = f"parameter '{escape(path)}'" if path else "the parameters"
        if isinstance(item, str):
            _refuse_text(item, where)
        elif isinstance(item, (Mapping, list, tuple)):
            if depth == DEEPEST:
                raise ConfigurationError(
                    f"{where}: expected at most {DEEPEST} nested mappings and lists, found more. "
                    "Write the value at a lower depth."
                )
            pairs: Iterable[tuple[Any, Any]] = item.items() if isinstance(item, Mapping) else enumerate(item)
            for key, inner in pairs:
                if isinstance(item, Mapping) and not isinstance(key, str):
                    raise ConfigurationError(
                        f"{where}: expected strings as keys, found {show(key)} ({type(key).__name__}). Quote the key."
                    )
                if isinstance(item, Mapping):
                    _refuse_text(key, f"a key of {where}")
                waiting.append((inner, f"{path}.{key}" if path else str(key), depth + 1))


def _refuse_text(text: str, where: str) -> None:
    if "\0" in text or not _is_unicode(text):
        raise ConfigurationError(
            f"{where}: expected a text in Unicode without NUL characters, found {show(text)}. Correct its characters."
        )
    if holds_credentials(text):
        raise ConfigurationError(
            f"{where}: found a password or a token in {show(text)}; parameters are stored with every run. Remove it "
            "and set it in the environment: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or HF_TOKEN."
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_kind(kinds: Kinds, value: Any, *, at: str) -> Any:
    """Build the configuration that the key `kind` of a mapping names.

    Keys that this configuration does not read are refused.

    Raises:
        ConfigurationError: there is no such kind, a key is unknown, missing or invalid for this kind, or `value` is a
            configuration of another component.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kinds.check(type(value), type(value).__name__, at=at)
        return value
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"parameter '{at}': expected a mapping with the key 'kind', found {show(value)}. "
            f"Choose {with_article(kinds.what)}: {', '.join(kinds.known)}."
        )
    if "kind" not in value:
        raise ConfigurationError(
            f"parameter '{at}.kind' is missing and has no default. Choose {with_article(kinds.what)}: "
            f"{', '.join(kinds.known)}."
        )
    found = kinds.find(value["kind"], at=at)
    return parse(found, {**value, "kind": kinds.name(found, value["kind"])}, at=at)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass that refuses unknown keys and values of the wrong type.

    Checks across fields belong in `__post_init__` and raise `InvalidValue` with the names of the fields.
    """
    if pydantic is None:
        made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    else:
        settings = ConfigDict(extra="forbid", strict=False, validate_default=True, allow_inf_nan=False)
        made = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=settings)(cls)
        made.__init__ = _in_own_words(made)
    setattr(made, MARK, True)
    return cast(type[T], made)


def _in_own_words(made: Any) -> Any:
    """Wrap the constructor of a configuration: what it refuses is a ConfigurationError, as in `parse`."""
    construct = made.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **keys: Any) -> None:
        try:
            construct(self, *args, **keys)
        except pydantic.ValidationError as error:
            name = type(self).__name__
            lines = [explain(type(self), name, item) for item in error.errors(include_url=False)]
            raise ConfigurationError("\n".join(lines)) from None

    return __init__


def parse(cls: type[T], value: Any, *, at: str) -> T:
    """Build `cls` from a mapping.

    `at` is the parameter's full path ("training", "ingestion.sources"), which precedes the key in every message.

    Raises:
        ConfigurationError: a key is unknown, missing or invalid. The message names each by its full path, with the
            value found.
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"parameter '{at}': expected a mapping of {cls.__name__}, found {show(value)}.")
    refuse_unwritable(value, at=at)
    value = _with_kinds(cls, value, at)
    if pydantic is None:
        return _build_plain(cls, value, at)
    try:
        typed: T = _adapter(cast(Any, cls)).validate_python(dict(value))
    except pydantic.ValidationError as error:
        lines = [explain(cls, at, item) for item in without_branches(error.errors(include_url=False))]
        raise ConfigurationError(summarise(lines)) from None
    if lines := [
        f"parameter '{path}': expected a number, found {show(found)}." for path, found in _switches(value, typed, at)
    ]:
        raise ConfigurationError(summarise(lines))
    return typed


def check(value: Any, expected: Any, *, name: str, error: type[MMLDLMError] = SamplingError) -> Any:
    """Validate one argument of a function by an annotated type, such as `PositiveInt`, and return it.

    Texts are not converted to numbers, nor true and false; numpy's scalars are those of Python.

    Raises:
        MMLDLMError: of the class `error`, with the name of the argument and the value found.
    """
    plain = value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value
    if pydantic is None:
        return plain
    try:
        return _adapter(expected).validate_python(plain, strict=True)
    except pydantic.ValidationError as refused:
        found = refused.errors(include_url=False)  # more than one for a type with alternatives
        message = ", or: ".join(item["msg"] for item in found)
        raise error(f"{name}: {reason({**found[0], 'msg': message})}") from None


@functools.cache
def _adapter(cls: type[Any]) -> Any:
    return pydantic.TypeAdapter(cls)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _with_kinds(cls: Any, value: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return `value` with every mapping under a `Kinds` annotation replaced by the configuration that it describes."""
    hints = _hints(cls)
    return {key: _resolve_kinds(hints.get(key), item, f"{at}.{key}") for key, item in value.items()}


def _resolve_kinds(hint: Any, item: Any, at: str) -> Any:
    """Resolve the mappings in `item`, whose type is `hint`, at any depth; only an optional type may be absent."""
    for kinds in getattr(hint, "__metadata__", ()):
        if isinstance(kinds, Kinds):
            return parse_kind(kinds, item, at=at)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if item is None:
        return None
    if origin in (Union, types.UnionType):
        present = [arg for arg in args if arg is not type(None)]
        fitting = present if len(present) == 1 else [arg for arg in present if _may_be(arg, item)]
        return _resolve_kinds(fitting[0], item, at) if fitting else item
    if isinstance(item, Mapping):
        if dataclasses.is_dataclass(hint):
            return _with_kinds(hint, item, at)
        if origin in (dict, Mapping):
            return {key: _resolve_kinds(args[-1], each, f"{at}.{key}") for key, each in item.items()}
    if isinstance(item, (str, int, float)) and origin in (list, tuple) and _any_length(origin, args):
        # A value in place of a list is a list of one. Lists of mappings have no such values.
        item = item if dataclasses.is_dataclass(args[0]) or _holds_kinds(args[0]) else [item]
    if isinstance(item, (list, tuple)) and origin in (list, tuple):
        same = _any_length(origin, args)
        hints = [args[0]] * len(item) if same else [*args, *[None] * len(item)]  # surplus items are refused later
        return [_resolve_kinds(hints[place], each, f"{at}.{place}") for place, each in enumerate(item)]
    return item


def _any_length(origin: Any, args: tuple[Any, ...]) -> bool:
    return origin is list or (bool(args) and args[-1] is Ellipsis)


def _may_be(hint: Any, item: Any) -> bool:
    """Return whether a mapping or a list can become a `hint`, which is one of several alternatives."""
    origin = typing.get_origin(hint)
    if isinstance(item, Mapping):
        return dataclasses.is_dataclass(hint) or _holds_kinds(hint) or origin in (dict, Mapping)
    return isinstance(item, (list, tuple)) and origin in (list, tuple)


def _holds_kinds(hint: Any) -> bool:
    return any(isinstance(each, Kinds) for each in getattr(hint, "__metadata__", ()))


def to_dict(value: Any) -> Any:
    """Convert a typed parameter to dictionaries, lists, numbers and strings for JSON, with the key `kind` first."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = sorted((field.name for field in dataclasses.fields(value)), key=lambda name: name != "kind")
        return {name: to_dict(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value


def _switches(given: Any, typed: Any, at: str) -> list[tuple[str, bool]]:
    """List every true and false that pydantic converted to 1 and 0, with its path."""
    if isinstance(given, bool):
        return [] if isinstance(typed, bool) or not isinstance(typed, (int, float)) else [(at, given)]
    inner: list[tuple[Any, Any, Any]] = []
    if isinstance(given, Mapping):
        known = typed if isinstance(typed, Mapping) else vars(typed)
        inner = [(key, item, known.get(key)) for key, item in given.items()]
    elif isinstance(given, (list, tuple)) and isinstance(typed, (list, tuple)):
        inner = [(place, *pair) for place, pair in enumerate(zip(given, typed, strict=True))]
    return [found for key, item, made in inner for found in _switches(item, made, f"{at}.{key}")]


def _build_plain(cls: Any, value: Mapping[str, Any], at: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := sorted(set(value) - set(fields)):
        raise ConfigurationError(
            f"parameter '{at}.{unknown[0]}' is not known.{nearest(unknown[0], fields)} Known here: {', '.join(fields)}."
        )
    hints = typing.get_type_hints(cls)
    try:
        return cls(**{name: _coerce(hints[name], item, f"{at}.{name}") for name, item in value.items()})
    except InvalidValue as error:
        raise ConfigurationError(name_keys(at, error.keys, str(error))) from None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"parameter '{at}': {error}") from None


def _coerce(hint: Any, value: Any, at: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _build_plain(hint, value, at)
    if origin in (Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return _coerce(inner[0], value, at) if len(inner) == 1 else value
    if origin is tuple and isinstance(value, (list, tuple)):
        each = args[0] if len(args) == 2 and args[1] is Ellipsis else None
        return tuple(_coerce(each or args[i], item, f"{at}.{i}") for i, item in enumerate(value))
    if origin is dict or origin is Mapping:
        return {key: _coerce(args[1], item, f"{at}.{key}") for key, item in value.items()}
    return value
