"""Embedding as tasks of an engine: the same bytes in whatever order tasks end, also when an embedding continues."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.latents import worker
from mm_ldlm.distributed import failure, logs, process

Files = Callable[[Path], dict[str, bytes]]


@dataclasses.dataclass
class Backwards:
    """An engine of other hosts, as far as the extraction uses one; the last task ends first."""

    kind: str = "backwards"
    here: bool = False
    gpus: int = 0
    most: int = 100
    tasks: int = 0

    def started(self) -> contextlib.AbstractContextManager[Backwards]:
        return contextlib.nullcontext(self)

    def run(self, function: Any, tasks: Iterable[Any], **_: Any) -> Iterator[tuple[int, Any]]:
        rebuild, given = function.__reduce__()
        on_the_node, waiting = rebuild(*given), list(enumerate(tasks))
        self.tasks += len(waiting)
        for position, task in waiting[::-1][: self.most]:
            yield position, on_the_node(task)
        if self.most < len(waiting):
            raise KeyboardInterrupt


def test_an_embedding_continues_with_the_missing_shards(
    data: Any, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards 0, 1 and 3 are missing, so that the position of a task is not the number of its shard."""
    expected = files(data.root / "latents")
    for number in (0, 1, 3):
        (data.root / "latents" / f"part-{number:06d}.arrow").unlink()
    rows: list[int] = []
    real = worker.atomic.write_json

    def write(path: Path, plain: Any) -> None:
        if path.name.startswith("rank-"):
            rows.append(plain["rows"])
        real(path, plain)

    monkeypatch.setattr(worker.atomic, "write_json", write)
    engine = Backwards(most=2)
    with pytest.raises(KeyboardInterrupt):
        data.extract(engine=engine, processes=0)
    again = Backwards()
    data.extract(engine=again, processes=0)
    assert (engine.tasks, again.tasks) == (3, 1), "shards that were written before are kept"
    assert rows == [50, 100, 50], "the rows that this attempt has embedded so far"
    assert files(data.root / "latents") == expected


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_that_are_not_finite_end_the_embedding(dtype: str, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (data.root / "latents").iterdir():
        path.unlink()
    real = worker.EncodeTexts.__call__

    def overflow(self: Any, texts: list[str]) -> Any:
        vectors = real(self, texts)
        vectors[len(texts) - 1, 3] = np.nan if dtype == "float32" else 70_000.0
        return vectors

    monkeypatch.setattr(worker.EncodeTexts, "__call__", overflow)
    last = json.dumps(data.records.strings("id").take([229])[0]).strip('"')
    with pytest.raises(EncoderError, match=rf"for 1 of 30 sentences of shard 4 \(ids {last}\)"):
        data.extract(engine=Backwards(), processes=0, dtype=dtype)
    assert not list((data.root / "latents").glob("*.arrow"))


def test_a_rank_that_fails_leaves_a_record_for_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[BaseException] = []
    monkeypatch.setattr(failure, "record", recorded.append)
    monkeypatch.setattr(process, "die_with_parent", lambda: None)
    monkeypatch.setattr(logs, "append_output", lambda: None)
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path / "job.json")])
    with pytest.raises(FileNotFoundError) as error:
        runpy.run_path(str(worker.__file__), run_name="__main__")
    assert recorded == [error.value]
    assert error.value.filename == str(tmp_path / "job.json")
