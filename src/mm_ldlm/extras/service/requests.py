"""Bodies of the endpoints: a typed configuration for each request of `MMLDLM` that is a command, and their limits.

The fields are the parameters of the request, read from its signature. Token ids and paths of files are left out: what
may be a path on the command line is a list of texts or of vectors here.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

from mm_ldlm.app.commands import COMMANDS, Request, registered, requests
from mm_ldlm.core import (
    Bytes,
    NonNegativeFloat,
    PositiveInt,
    SamplingError,
    Size,
    bounded,
    checked,
    config,
    parse,
    to_dict,
)

if TYPE_CHECKING:
    from mm_ldlm.inference.model import LoadedModel

TEXT = "The girl drew a horse in the garden."
"""Text of the examples"""
WRITES, READS = "Write texts", "Read texts and embeddings"


@config
class Limits:
    """Limits of a request, and the time that it waits for others."""

    max_rows: Annotated[Size, bounded(description="Largest number of texts or vectors of a request.")] = 64
    max_characters: Annotated[Size, bounded(description="Largest number of characters of a text.")] = 10_000
    max_bytes: Annotated[Bytes, bounded(description="Largest number of bytes of the body of a request.")] = 1 << 20
    max_work: Annotated[
        PositiveInt,
        bounded(description="Largest product of rows, steps, samples, draws and other numbers of a request."),
    ] = 20_000
    window: Annotated[
        NonNegativeFloat, bounded(description="Milliseconds that a request waits for others of its kind.")
    ] = 4.0


class Job(NamedTuple):
    """One request of a client, ready to be computed."""

    function: Callable[..., Any]
    columns: Mapping[str, Any]
    """Values with one item for each row, or the number of rows; several jobs' values can be joined"""
    options: Mapping[str, Any]
    rows: int
    key: Hashable
    """Equal for jobs that can be computed together"""


class Endpoint(NamedTuple):
    """A request of `MMLDLM` as an endpoint."""

    function: Callable[..., Any]
    body: Any
    """Configuration with a field for each parameter"""
    columns: Sequence[str]
    """Parameters with one item for each row, or the number of rows"""
    about: Mapping[str, Any]
    """What the page of the service shows: the description, an example of a body, and the groups (`tags`)"""
    limits: Limits
    default_sampler: Callable[[], Any]
    """The sampler of the model for this request, whose steps count where none are given"""

    def job(self, given: Any) -> Job:
        """Check the body of a request.

        Raises:
            MMLDLMError: a value is missing, unknown, ill-typed, or beyond a limit.
        """
        name = self.function.__name__
        values = vars(parse(self.body, given, at=""))
        columns = {key: values[key] for key in self.columns if values[key] is not None}
        options = {key: value for key, value in values.items() if key not in columns}
        counts = {value if isinstance(value, int) else len(value) for value in columns.values()}
        given = {**options, "seed": 0}
        if "steps" in given and not given["steps"] and "steps" not in (given.get("sampler") or ""):
            given["steps"] = getattr(self.default_sampler(), "steps", 1)
        work = max(counts) * _work(given)
        if work > self.limits.max_work:
            raise SamplingError(
                f"{name}: expected a request whose rows, steps, samples, draws and other numbers have a product "
                f"of at most {self.limits.max_work:,}, found {work:,.0f}. Send fewer rows, or choose smaller numbers."
            )
        one_sample = options.get("samples", 1) == 1  # further ones are numbered after all rows
        by_row = hasattr(self.function, "by_row") and one_sample and len(counts) == 1
        types = [(key, type(value[0]) if isinstance(value, list) else int) for key, value in columns.items()]
        key = (name, repr(types), repr(options)) if by_row else object()
        return Job(self.function, columns, options, max(counts), key)


def endpoints(limits: Limits, model: "LoadedModel") -> dict[str, Endpoint]:
    """Make an endpoint for each registered command that is a request."""
    return {name: _endpoint(name, request, limits, model) for name, request in requests().items()}


def _endpoint(name: str, request: Request, limits: Limits, model: "LoadedModel") -> Endpoint:
    function, columns, types = COMMANDS.load(name), list[str](), dict[str, Any]()
    hints = get_type_hints(function, include_extras=True)
    given = any(each.texts or each.vectors for each in request.parameters)
    for each in request.parameters:
        hint = hints[each.name]
        if each.texts or each.vectors:
            columns.append(each.name)
            hint = rows_of(limits, texts=each.texts, vectors=each.vectors)
        elif each.kind is int and not columns:  # a number of rows
            columns.append(each.name)
            hint = Annotated[hint, bounded(ge=1, le=limits.max_rows)]
        elif Any in (hint, *get_args(hint)[:1]):
            hint = Kind
        elif each.kind is int and each.name != "seed":
            hint = Annotated[hint, bounded(ge=1, le=limits.max_work)]
        hint = hint if each.required or each.default is not None else hint | None
        types[each.name] = Annotated[hint, bounded(description=each.help)]
    defaults = {each.name: each.default for each in request.parameters if not each.required}
    body: Any = type(name.title(), (), {"__annotations__": types, "__module__": __name__, **defaults})
    text = TEXT.replace("horse", defaults.get("mask", "horse"))
    example = {each.name: [text] if each.texts else 3 for each in request.parameters if each.required}
    tags = [WRITES if request.returns == "Texts" else READS]
    about = {"description": request.help, "example": example, "tags": tags}
    default = partial(model.model.default_sampler, conditional=given)
    return Endpoint(function, config(body), columns, about, limits, default)


def rows_of(limits: Limits, *, texts: bool, vectors: bool) -> Any:
    """Return the type of a list of texts, of vectors, or of either."""
    size = bounded(min_length=1, max_length=limits.max_rows)
    of_texts = Annotated[list[Annotated[str, bounded(max_length=limits.max_characters)]], size]
    of_vectors = Annotated[list[list[float]], size]
    return of_texts | of_vectors if texts and vectors else of_texts if texts else of_vectors


Kind = Annotated[str | dict[str, Any], checked(registered)]
"""A sampler: its kind, or a configuration with the key `kind`"""


def _work(value: Any) -> float:
    """Multiply the whole numbers in a value, at any depth; integers are also read from 8.0 and "8"."""
    if isinstance(inner := to_dict(value), dict):
        return math.prod(map(_work, inner.values()))
    try:
        number = float(inner)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 1.0
    return max(number, 1.0) if number.is_integer() else 1.0
