"""Typed parameters: the decorator `config`, the functions `parse`, `parse_kind` and `check`, and bounded numbers.

Every room defines its parameters next to the code that reads them, as a frozen dataclass made by `@config`. A mapping
becomes such a type once, where it enters, and is trusted below. In a mapping, a single value where a list of any length
is expected is a list of one.
"""

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, cast, dataclass_transform

import pydantic
from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from mm_ldlm.core.credentials import holds_credentials, mask
from mm_ldlm.core.errors import ConfigurationError, MMLDLMError, SamplingError
from mm_ldlm.core.messages import escape, nearest, reason_of, show, summarise
from mm_ldlm.core.registry import MARK, Kinds, foreign_code, with_article

T = TypeVar("T")

bounded = Field
"""Annotation of a number within bounds (gt, ge, lt, le), or of a text of a form (pattern)"""
checked = AfterValidator
"""Annotation of a value that a function returns, or refuses by a ValueError"""

DEEPEST = 32
"""Number of mappings and lists that a parameter may be nested in."""

# Every number has an upper bound, so that a value that exhausts the memory or overflows in a worker is refused before
# the first node. The general bounds are for numbers that determine no allocation and no number of repetitions.
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
"""A size in bytes, at most the size of one value of an Arrow column."""
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
Precision = Literal["fp32", "bf16", "auto"]
"""Of sampling; auto: bf16 if the device is faster with it."""
CheckpointName = Annotated[str, bounded(coerce_numbers_to_str=True, pattern=r"^(latest|best|(step-)?\d+)$")]
"""Name of a checkpoint: `latest`, `best`, a step, or the name of its folder."""


class InvalidValue(ValueError):
    """Raised in `__post_init__` of a configuration; the message of the refusal names `keys` by their full paths."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def refuse_if(wrong: Any, message: str, *keys: str) -> None:
    """Refuse values that do not fit one another, in `__post_init__` of a configuration: raise `InvalidValue`."""
    if wrong:
        raise InvalidValue(message, *keys)


# --- making configurations --------------------------------------------------------------------------------------------


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass that refuses unknown keys and values of the wrong type.

    Checks across fields belong in `__post_init__` and call `refuse_if` with the names of the fields.
    """
    settings = ConfigDict(extra="forbid", strict=False, validate_default=True, allow_inf_nan=False)
    made: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=settings)(cls)
    made.__init__ = _in_own_words(made.__init__)
    setattr(made, MARK, True)
    return cast(type[T], made)


def _in_own_words(construct: Any) -> Any:
    """Wrap the constructor of a configuration: what it refuses is a ConfigurationError, as in `parse`."""

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **keys: Any) -> None:
        try:
            construct(self, *args, **keys)
        except ValidationError as error:
            at = type(self).__name__
            lines = _explain(error, keys, at=at) | _misnamed(type(self), keys, at=at)
            raise ConfigurationError(summarise([*lines.values()])) from None

    return __init__


def parse(cls: type[T], value: Any, *, at: str) -> T:
    """Build `cls` from a mapping; return an instance of it unchanged.

    `at` is the parameter's full path ("training", "ingestion.sources"), which precedes the key in every message.
    `RETIRED` of a class lists keys that it had in earlier versions, with the only value that their files may have.

    Raises:
        ConfigurationError: a key is unknown, missing or invalid, or the class comes from another package and fails. The
            message names each key by its full path, with the value found.
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"parameter '{at}': expected a mapping, found {show(value)}. Valid keys: {', '.join(_fields(cls))}."
        )
    retired = getattr(cls, "RETIRED", {})
    value = {key: item for key, item in value.items() if key not in retired or item != retired[key]}
    given, made = {}, f"{cls.__module__}:{cls.__qualname__}"
    with foreign_code(lambda reason: ConfigurationError(
        f"parameter '{at}': {made} cannot be made ({reason}). Correct its class."
    )):  # fmt: skip
        hints = _hints(cast(Any, cls))
        problems: dict[Any, str] = _misnamed(cls, value, at=at)
        for key in [name for name in value if name in hints]:
            try:
                given[key] = _resolve(hints[key], value[key], path_of(at, key))
            except ConfigurationError as error:
                problems[key] = str(error)
        try:
            typed: T = adapter(cast(Any, cls)).validate_python(given)
        except ValidationError as error:
            problems = _explain(error, given, at=at) | problems
    if problems:
        raise ConfigurationError(summarise([*problems.values()]))
    return typed


def parse_kind(kinds: Kinds, value: Any, *, at: str) -> Any:
    """Build the configuration that the key `kind` of a mapping names; return a configuration of the group unchanged.

    Raises:
        ConfigurationError: there is no such kind, a key is unknown, missing or invalid for this kind, or `value` is a
            configuration of another component.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kinds.check(type(value), type(value).__name__, at=at)
        return value
    if not isinstance(value, Mapping) or "kind" not in value:
        raise ConfigurationError(
            f"parameter '{at}': expected a mapping with the key 'kind', found {show(value)}. Choose "
            f"{with_article(kinds.what)}: {', '.join(kinds)}."
        )
    return parse(kinds.find(value["kind"], at=at), value, at=at)


def check(value: Any, hint: Any, *, name: str, error: type[MMLDLMError] = SamplingError) -> Any:
    """Return one argument of a function, checked by a type as parameters are: `Annotated[int, bounded(ge=1)]`.

    Lists become tuples where the type is a tuple. Scalars of numpy and torch are accepted as numbers.

    Raises:
        MMLDLMError: of the class `error`; the message names the argument, what was expected and what was found.
    """
    try:
        value = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
        value = value if isinstance(value, bool) else _resolve(hint, value, name)
        return adapter(hint).validate_python(value, strict=True)
    except RuntimeError as without_value:  # a tensor on the device "meta"
        reason = f"'{name}': {reason_of(without_value)}"
    except ConfigurationError as refused:
        reason = str(refused)
    except ValidationError as refused:
        reason = summarise([*_explain(refused, value, at=name, what="{}").values()])
    raise error(reason)


def to_dict(value: Any, *, retired: bool = False) -> Any:
    """Convert a typed parameter to dictionaries, lists, numbers and strings for JSON, with the key `kind` first.

    `retired` adds the keys that earlier versions had (`parse`), so that fingerprints equal the earlier versions'.
    """
    if type(value) in (str, int, float):  # nearly all values of a vocabulary
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = sorted((field.name for field in dataclasses.fields(value)), key=lambda name: name != "kind")
        found = {name: to_dict(getattr(value, name), retired=retired) for name in names}
        return found | getattr(value, "RETIRED", {}) if retired else found
    if isinstance(value, Mapping):
        return {str(key): to_dict(item, retired=retired) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item, retired=retired) for item in value]
    return value


# --- from mappings to types -------------------------------------------------------------------------------------------


@functools.cache
def adapter(hint: Any) -> pydantic.TypeAdapter[Any]:
    """Make the validator of a type, once for each type."""
    return pydantic.TypeAdapter(hint)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: hint for name, hint in typing.get_type_hints(cls, include_extras=True).items() if name in names}


def _resolve(hint: Any, item: Any, at: str) -> Any:
    """Replace the mappings in `item`, whose type is `hint`, by configurations, and lists by tuples, at any depth."""
    for kinds in getattr(hint, "__metadata__", ()):
        if isinstance(kinds, Kinds):
            return parse_kind(kinds, item, at=at)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if item is None:
        return None
    if origin is Annotated:
        return _resolve(args[0], item, at)
    if isinstance(item, bool) and hint in (int, float):  # which pydantic would convert to 1 and 0
        raise ConfigurationError(f"parameter '{at}': expected a number, found {show(item)}.")
    if origin in (Union, types.UnionType):
        fitting = [arg for arg in args if _may_be(arg, item)]
        fitting.sort(key=lambda arg: arg is not type(item))
        return _resolve((fitting or args)[0], item, at)  # the first type refuses what fits none of them
    if dataclasses.is_dataclass(hint):
        return parse(cast(type, hint), item, at=at)
    if isinstance(item, Mapping) and origin in (dict, Mapping):
        return {key: _resolve(args[1], each, path_of(at, key)) for key, each in item.items()}
    if origin in (tuple, list):
        same = origin is list or args[-1] is Ellipsis
        if same and isinstance(item, (str, int, float)) and not _may_be(args[0], {}):
            item = [item]  # a value in place of a list is a list of one; lists of mappings have no such values
        if isinstance(item, (list, tuple)):
            hints = [args[0]] * len(item) if same else [*args, *[None] * len(item)]  # pydantic refuses surplus items
            return origin(_resolve(hints[place], each, path_of(at, place)) for place, each in enumerate(item))
    return item


def _may_be(hint: Any, item: Any) -> bool:
    """Return whether a value can become a `hint`, which is one of several alternatives."""
    origin = typing.get_origin(hint)
    if isinstance(item, Mapping):
        kinds = any(isinstance(each, Kinds) for each in getattr(hint, "__metadata__", ()))
        return kinds or dataclasses.is_dataclass(hint) or origin in (dict, Mapping)
    if isinstance(item, (list, tuple)):
        return origin in (tuple, list)
    return hint is not types.NoneType and not _may_be(hint, {})


# --- refusals ---------------------------------------------------------------------------------------------------------


def path_of(at: str, part: str | int) -> str:
    """Return the path of a part of a parameter in messages: `at.key`, or `at[3]` for an item of a list."""
    return f"{at}[{part}]" if isinstance(part, int) else f"{at}.{part}" if at else part


def refuse_unwritable(value: Any, *, at: str, depth: int = 0) -> None:
    """Refuse parameters that no file of parameters can contain, at any depth: the check before all others.

    Raises:
        ConfigurationError: a key is not a string; a text is not valid Unicode or contains NUL; the nesting is deeper
            than `DEEPEST`; or a text contains a password or a token.
    """
    where = f"parameter '{escape(at)}'" if at else "the parameters"
    if isinstance(value, str):
        _refuse_text(value, where)
    if depth == DEEPEST and isinstance(value, (Mapping, list, tuple)):
        raise ConfigurationError(
            f"{where}: expected at most {DEEPEST} nested mappings and lists, found more. Write the value at a lower "
            "depth."
        )
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigurationError(
                    f"{where}: expected strings as keys, found {show(key)} ({type(key).__name__}). Quote the key."
                )
            _refuse_text(key, f"a key of {where}")
    inner: Iterable[Any] = value.items() if isinstance(value, Mapping) else ()
    for key, item in enumerate(value) if isinstance(value, (list, tuple)) else inner:
        refuse_unwritable(item, at=path_of(at, key), depth=depth + 1)


def _refuse_text(text: str, where: str) -> None:
    if "\0" in text or text != text.encode("utf-8", "replace").decode():
        raise ConfigurationError(
            f"{where}: expected a text in Unicode without NUL characters, found {show(text)}. Correct its characters."
        )
    if holds_credentials(text):
        raise ConfigurationError(
            f"{where}: found a password or a token in {show(text)}; parameters are stored with every run. Remove it "
            "and set it in the environment: PGPASSWORD, HF_TOKEN, or MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD."
        )


def _misnamed(cls: Any, given: Mapping[str, Any], *, at: str) -> dict[Any, str]:
    """Refuse the keys that a configuration does not have, and those that it lacks."""
    known = _fields(cls)
    valid = f"Valid keys: {', '.join(known)}."
    lines = {
        key: f"parameter '{escape(path_of(at, key))}' is not known.{nearest(key, known)} {valid}"
        for key in given
        if key not in known
    }
    missing = [
        name
        for name, field in known.items()
        if name not in given and field.default is field.default_factory is dataclasses.MISSING
    ]
    return lines | {name: f"parameter '{path_of(at, name)}' is missing and has no default." for name in missing}


def _fields(cls: Any) -> dict[str, Any]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


_MISNAMED = ("unexpected_keyword_argument", "extra_forbidden", "missing", "missing_keyword_only_argument")
"""Types of the errors of pydantic that `_misnamed` explains"""


def _explain(error: Any, given: Any, *, at: str, what: str = "parameter '{}'") -> dict[Any, str]:
    """Put the errors of pydantic in the words of parameters: a line for a wrong place in each key of `given`."""
    found: dict[Any, tuple[str, Any, list[Any]]] = {}
    for item in error.errors(include_url=False):
        if item["type"] in _MISNAMED and len(item["loc"]) == 1:
            continue
        path, value, first = at, given, None
        for part in item["loc"]:
            inside = part in value if isinstance(value, Mapping) else isinstance(part, int) and part < len(value)
            if inside:  # otherwise the name of an alternative of a union
                path, value, first = path_of(path, part), value[part], part if first is None else first
        if item["loc"][-1:] == ("[key]",):
            value = item["loc"][-2]
        if len(path) > len(found.setdefault(first, (path, value, []))[0]):  # the alternative that fits best
            found[first] = (path, value, [])
        if found[first][0] == path:
            found[first][2].append(item)
    return {first: _line(what, *each) for first, each in found.items()}


def _line(what: str, path: str, value: Any, items: Sequence[Any]) -> str:
    context = items[0].get("ctx", {})
    if isinstance(refused := context.get("error"), InvalidValue):
        return _of_keys(path, refused)
    words = " or ".join(dict.fromkeys(_expected(each) for each in items))
    if "found" in words or (refused is not None and not items[0]["loc"]):
        return f"{what.format(escape(path))}: {words}."
    choices = re.findall(r"'([^']*)'", context.get("expected", ""))
    words = words.removeprefix("expected ")
    return f"{what.format(escape(path))}: expected {words}, found {show(value)}.{nearest(value, choices)}"


_WORDS = {
    "tuple_type": "a list, as in [a, b]",
    "missing": "a longer list",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "dataclass_type"), "a mapping"),
    "string_type": "a text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
}
"""Types of errors of pydantic → what is expected"""


def _expected(item: Mapping[str, Any]) -> str:
    """Return what an error of pydantic expects: "a number greater than 0", "an integer"."""
    if item["type"] in _WORDS:
        return _WORDS[item["type"]]
    found = r"( after validation)?, (unable|got|not) .*"
    words = re.sub(found, "", escape(mask(str(item["msg"]).removeprefix("Value error, "))))
    words = re.sub(r"^\w+ should (be |have )?", "", words).replace("match pattern", "a text of the form")
    return f"a number {words}" if words.startswith(("greater", "less")) else words


def _of_keys(at: str, refused: InvalidValue) -> str:
    """Return the refusal of values of the section `at` that do not fit one another."""
    names = [f"'{path_of(at, key)}'" for key in refused.keys] or [f"'{at}'"]
    end = "" if str(refused).endswith("?") else "."
    return f"parameter{'s' if names[1:] else ''} {' and '.join(names)}: {escape(mask(str(refused)))}{end}"
