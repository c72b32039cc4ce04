"""Errors on purpose: their messages in every terminal, their way between processes, and the one below a wrapping."""

from __future__ import annotations

import pickle

import pytest

from mm_ldlm.core import errors
from mm_ldlm.core.errors import MMLDLMError, UnsafePathError, WorkerFailed, purposeful

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MMLDLMError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_bytes_of_a_path_that_are_not_utf8_are_escaped_in_every_message(kind: type[MMLDLMError]) -> None:
    path = "caf\udce9.txt"
    error = UnsafePathError(path, path, "is odd") if kind is UnsafePathError else kind(f"{path}: wrong")
    assert "caf\\udce9.txt" in str(error)
    assert str(error).encode("utf-8").decode("utf-8") == str(error)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_the_same_in_another_process(kind: type[MMLDLMError]) -> None:
    error = UnsafePathError("folder", "../x", "leads out") if kind is UnsafePathError else kind("a message")
    if isinstance(error, WorkerFailed):
        error = WorkerFailed("a message", error_class="ValueError")
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (kind, str(error), vars(error))


@pytest.mark.parametrize(("name", "shown"), [
    ("../x", "'../x'"), (None, "None"), ("a\nERROR b\r", r"'a\nERROR b\r'"), ("\x1b[31m\x07", r"'\x1b[31m\x07'"),
    ("caf\xe9\u202e", r"'caf\xe9\u202e'"), ("a" * 198, f"'{'a' * 198}'"), ("a" * 10_000, f"'{'a' * 199}"),
])  # fmt: skip
def test_a_name_of_a_file_enters_a_message_in_one_short_line_of_ascii(name: str | None, shown: str) -> None:
    """The name is that of a file that somebody else wrote: it cannot forge a line of the log or move the cursor."""
    error = UnsafePathError("folder", name, "is odd")
    assert error.detail == f"the name {shown} is odd"
    start = f"folder: expected the name of a file inside this folder, but the name {shown} is odd."
    assert str(error).startswith(start)


def test_the_first_error_on_purpose_of_a_chain_of_causes_is_found() -> None:
    inner, outer, defect = MMLDLMError("inner"), MMLDLMError("outer"), ValueError("a defect")
    assert purposeful(inner) is inner
    outer.__cause__, defect.__cause__ = inner, outer
    assert purposeful(defect) is outer
    raised_while_handling = ValueError("a defect")
    raised_while_handling.__context__ = inner
    assert purposeful(raised_while_handling) is None


@pytest.mark.parametrize(
    ("recorded", "caused"), [("ValueError", True), ("", False), ("Value", False), ("UnicodeValueError", False)]
)
def test_a_failed_worker_was_ended_by_exactly_one_class(recorded: str, caused: bool) -> None:
    assert WorkerFailed("it ended", error_class=recorded).caused_by(ValueError) is caused
    assert not WorkerFailed("it ended").caused_by(ValueError)
