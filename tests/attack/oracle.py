"""The allowed endings of a case: success, quarantine of counted rows, or a refusal with a short message."""

import dataclasses
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.core import MMLDLMError

PASSED = ("success", "quarantine", "refused")
"""Endings that are allowed. Every other ending is a failure, named by its kind."""
MAX_LINES = 3
MAX_CHARACTERS = 8000
"""A message of one endless line is not readable either; a path, which messages repeat, may have 4,096 bytes."""
SPECIALS = ("[MASK]", "[PAD]")


class Wrong(Exception):
    """The project ended as allowed, but the result is wrong. `kind` is, for example, "lost row"."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a case ended: one of `PASSED` or the kind of the failure, with details for people.

    `place` is the line of the project at which a failure arose; failures of one place count as one finding.
    """

    kind: str
    detail: str = ""
    place: str = ""

    @property
    def passed(self) -> bool:
        return self.kind in PASSED


def judge(run: Callable[[], str]) -> Ending:
    """Run a case in this process and name its ending. Signals and time-outs are judged by the parent process."""
    try:
        kind = run()
    except Wrong as error:
        return Ending(error.kind, error.detail, error.kind)
    except MMLDLMError as error:
        return judge_message(error)
    except BaseException as error:
        text = "".join(traceback.format_exception(error, limit=-6))
        memory = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error))
        return Ending("memory" if memory else "traceback", text[-3000:], f"{_place(error)} {type(error).__name__}")
    if kind not in PASSED:
        raise AssertionError(f"a case returned {kind!r}")
    return Ending(kind)


def judge_message(error: MMLDLMError) -> Ending:
    """Check the message of a refusal: not empty, short, and printable on any terminal."""
    message = str(error)
    place = f"{_place(error)} {type(error).__name__}"
    lines = [
        line for line in message.splitlines() if not line.startswith("✓")
    ]  # checks that passed before the failed one
    if any(0xD800 <= ord(character) < 0xE000 for character in message):
        return Ending("unprintable message", f"{message!r:.500}", place)
    if not message.strip():
        return Ending("empty message", type(error).__name__, place)
    if len(lines) > MAX_LINES or len(message) > MAX_CHARACTERS:
        return Ending("long message", f"{len(lines)} lines, {len(message)} characters: {message[:800]}", place)
    return Ending("refused", f"{type(error).__name__}: {message}", place)


def _place(error: BaseException) -> str:
    """The last line of `src/mm_ldlm` in the traceback, or the last line at all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/mm_ldlm/" in frame.filename] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].name}" if own else ""


# -- results of the Python API -----------------------------------------------------------------------------------------


def check_result(result: Any, *, own_words: str = "") -> None:
    """Raise `Wrong` if a result contains NaN or infinity, an empty text, or tokens that are no words.

    `own_words` is what the caller wrote, which a result may contain whatever it is.
    """
    for name, value in _fields(result):
        if name == "standard_errors" and len(result.draw_nll) == 1:
            continue  # one draw has no spread
        if isinstance(value, (float, np.ndarray)) or hasattr(value, "numpy"):
            array = np.asarray(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Wrong("not finite", f"{type(result).__name__}.{name} contains {array[~np.isfinite(array)][:3]}")
    for text in np.ravel(np.array(getattr(result, "texts", None) or (), dtype=object)):
        if not isinstance(text, str) or not text.strip():
            raise Wrong("empty text", f"{type(result).__name__} contains the text {text!r}")
        if any(word in text for word in SPECIALS if word not in own_words) and type(result).__name__ == "Texts":
            raise Wrong("no words", f"{type(result).__name__} contains the text {text!r}")


def _fields(result: Any) -> list[tuple[str, Any]]:
    names = [field.name for field in dataclasses.fields(result)] if dataclasses.is_dataclass(result) else []
    found = [(name, getattr(result, name)) for name in names] or [("value", result)]
    nested = [
        item for name, value in found if name != "value" and dataclasses.is_dataclass(value) for item in _fields(value)
    ]
    lists = [(name, item) for name, value in found if isinstance(value, (tuple, list)) for item in value]
    return [*found, *nested, *lists]


# -- conservation ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Written:
    """What a generator wrote into a source, counted from its own bytes.

    Attributes:
        low, high: how many rows the source has; they differ where the damage makes several readings possible.
        whole: every text that the source contains in full; None where the damage changes texts. An accepted text
            outside of this set was cut or merged.
        required: texts that no damage touches and that a finished ingestion must have accepted.
        forbidden: texts that must not be accepted, such as those of files outside the source.
    """

    low: int
    high: int
    whole: set[str] | None = None
    required: set[str] = dataclasses.field(default_factory=set)
    forbidden: set[str] = dataclasses.field(default_factory=set)

    @classmethod
    def of(cls, rows: list[str]) -> "Written":
        """The rows of an undamaged source."""
        return cls(len(rows), len(rows), set(rows), set(rows))

    def unknown(self, low: int = 0, high: int = 10**6) -> None:
        """Forget the texts and, within these bounds, the number of rows."""
        self.low, self.high, self.whole, self.required = low, high, None, set()


def check_rows(written: Written, report: dict[str, Any], accepted: list[str], quarantined: int) -> None:
    """Compare a finished ingestion with what was written.

    Raises:
        Wrong: rows were lost or counted twice, a text was cut, or a forbidden text was accepted.
    """
    into = report["accepted"] + report["duplicates"] + report["quarantined"] - report["rows_from_splitting"]
    if len(accepted) != report["accepted"] or quarantined != report["quarantined"]:
        raise Wrong("wrong report", f"{len(accepted)} records and {quarantined} quarantined rows, report {report}")
    if into < written.low:
        raise Wrong("lost row", f"the source has {written.low} rows, accounted for are {into}")
    if into > written.high:
        raise Wrong("invented row", f"the source has {written.high} rows, accounted for are {into}")
    if report["rows_from_splitting"]:
        return
    if leaked := written.forbidden & set(accepted):
        raise Wrong("foreign text", f"accepted {sorted(leaked)[:2]!r:.300}")
    if written.whole is not None and (other := set(accepted) - written.whole):
        raise Wrong("changed text", f"accepted {sorted(other)[:2]!r:.400}, which no row contains")
    missing = len(written.required - set(accepted)) - report["duplicates"]
    if missing > 0 and report["quarantined"] == 0:
        raise Wrong("lost row", f"{missing} good texts are neither accepted nor dropped nor quarantined")
