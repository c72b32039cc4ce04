"""Stores of numbered shards: written in any order, killed anywhere, damaged anywhere, and then completed."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.latents.toy import content
from tests.kills import kills

from mm_ldlm.core import StoreError
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.writer import Parts

REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
MADE_BY = {"records": "a", "encoder": "b"}
COUNT = 3


def table(number: int) -> pa.Table:
    return pa.table({"v": [10 * number, 10 * number + 1]})


def fill(workspace: Path, order: Sequence[int] = range(COUNT), made_by: dict[str, str] = MADE_BY) -> list[int]:
    """Write what is missing, commit, and return the numbers of the written shards."""
    parts = Parts(workspace, made_by)
    done = parts.begin()
    written = [number for number in order if number not in done]
    for number in written:
        parts.write(number, table(number))
    if not Manifest.exists(workspace):
        parts.commit(parts.shards(COUNT), kind="toy", schema=table(0).schema, meta={"a": 1})
    return written


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    """The files of a store that one process wrote in order."""
    assert fill(tmp_path / "plain") == [*range(COUNT)]
    store = ShardStore.open(tmp_path / "plain", "toy")
    assert store.gather("v", slice(None)).to_numpy().tolist() == [0, 1, 10, 11, 20, 21]
    return content(tmp_path / "plain")


@REUSED
@given(st.permutations(range(COUNT)), st.sets(st.integers(0, COUNT - 1)))
def test_the_order_of_writes_and_the_damage_do_not_show(
    expected: dict[str, bytes], tmp_path: Path, order: list[int], damaged: set[int]
) -> None:
    workspace = tmp_path / "s"
    shutil.rmtree(workspace, ignore_errors=True)
    assert fill(workspace, order) == order
    assert content(workspace) == expected
    for number in damaged:
        path = workspace / f"part-{number:06d}.arrow"
        path.unlink() if number % 2 else path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    assert set(fill(workspace, order)) == damaged
    assert content(workspace) == expected
    assert fill(workspace) == []


@pytest.mark.parametrize("earlier", ["nothing", "a damaged store"])
def test_a_killed_writer_is_continued_wherever_it_ended(
    earlier: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    workspace, most = tmp_path / "s", COUNT
    start = tmp_path / "start"
    start.mkdir()
    if earlier != "nothing":
        shutil.copytree(tmp_path / "plain", start, dirs_exist_ok=True)
        (start / "part-000001.arrow").write_bytes(b"damaged")
    shutil.copytree(start, workspace)
    for _ in kills(lambda: fill(workspace)):
        other = tmp_path / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(workspace, other)
        again = len(fill(other))
        assert content(other) == expected, "a continued store has the same bytes"
        assert again <= most if earlier == "nothing" else again <= 1, "what is finished is not written again"
        most = max(again, 1)
        shutil.rmtree(workspace)
        shutil.copytree(start, workspace)
    assert content(workspace) == expected


def test_a_record_that_is_damaged_or_missing_costs_one_shard(
    tmp_path: Path, expected: dict[str, bytes], refuses: Any
) -> None:
    parts = Parts(tmp_path / "s", MADE_BY)
    parts.begin()
    for number in range(2):
        parts.write(number, table(number))
    parts.record(0).write_text("{")
    parts.record(1).write_text(json.dumps({**json.loads(parts.record(1).read_text()), "sha256": "0" * 64}))
    with refuses(StoreError, "part-000000.json", "embedding"):
        parts.shards(COUNT)
    assert parts.begin() == set()
    assert not [*parts.folder.glob("part-*.json")], "no rank takes a damaged shard for a finished one"
    assert fill(tmp_path / "s") == [0, 1, 2]
    assert content(tmp_path / "s") == expected
