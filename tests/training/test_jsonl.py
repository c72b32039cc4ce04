"""The log: every written line can be read, whatever was killed, repeated or is not finite."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import StoreError
from mm_ldlm.training.jsonl import NewLines, Tracker, read_events, read_lines, read_metrics

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6,
)  # fmt: skip


@given(values=st.dictionaries(st.sampled_from("abc"), VALUES))
def test_a_line_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    file = tmp_path_factory.mktemp("log") / "log.jsonl"
    log = Tracker(file)
    log.metrics(3, values)
    log.close()
    (line,) = read_lines(file)

    def plain(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    assert line == {"step": 3, **plain(values)}


@pytest.mark.parametrize("left", [b'{"step": 2, "lo', b"", b"\xff"])
def test_half_a_line_of_a_killed_writer_is_removed(left: bytes, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b'{"step": 1}\n' + left)
    assert read_lines(file) == [{"step": 1}]
    lines = NewLines(file)
    assert lines.take() == []
    log = Tracker(file)
    log.metrics(2, {})
    log.close()
    assert read_lines(file) == [{"step": 1}, {"step": 2}]
    assert lines.take() == [{"step": 2}]


def test_repeated_steps_count_once(tmp_path: Path) -> None:
    log = Tracker(tmp_path / "log.jsonl")
    for step, loss in ((1, 1.0), (3, 3.0), (4, 4.0), (2, 2.0), (3, 3.5)):
        log.metrics(step, {"loss": loss})
    assert [line["loss"] for line in read_metrics(tmp_path / "log.jsonl")] == [1.0, 2.0, 3.5, 4.0]
    log.event(1, "start")
    assert [event["event"] for event in read_events(tmp_path / "log.jsonl")] == ["start"]
    log.close()


def test_a_damaged_line_is_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    for raw in (b"[1]\n", b"{\n", b"\xff\n"):
        (tmp_path / "log.jsonl").write_bytes(b'{"step": 1}\n' + raw)
        with refuses(StoreError, "log.jsonl", 2):
            read_lines(tmp_path / "log.jsonl")
    with refuses(StoreError, tmp_path.name):
        Tracker(tmp_path)


def test_a_follower_sees_every_line_once_also_of_a_new_run(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    old = Tracker(file)
    old.metrics(0, {"text": "x" * 1000})
    lines, seen = NewLines(file), list[int]()
    for step in range(1, 50):
        if step == 20:  # a new run of the same name
            old.close()
            file.rename(tmp_path / "old.jsonl")
            old = Tracker(file)
        old.metrics(step, {})
        if step % 3:
            seen += [line["step"] for line in lines.take()]
    assert seen == list(range(1, 50))
