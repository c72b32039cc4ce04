"""The bytes of a shard depend on its rows alone, not on the table that they were cut from."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from mm_ldlm.data.store.writer import encode_shard

ROWS = 200
COLUMNS = {
    "text": pa.array([f"text {n}" * (n % 4) for n in range(ROWS)]),
    "text, the last rows missing": pa.array([f"text {n}" if n < 150 else None for n in range(ROWS)]),
    "number": pa.array(range(ROWS), pa.int64()),
    "byte, some missing": pa.array([n if n % 3 else None for n in range(ROWS)], pa.uint8()),
    "yes or no": pa.array([n % 5 == 0 for n in range(ROWS)]),
    "list": pa.array([list(range(n % 4)) for n in range(ROWS)], pa.list_(pa.int32())),
    "vector": pa.array([[float(n), 0.5, -float(n)] for n in range(ROWS)], pa.list_(pa.float32(), 3)),
    "bytes": pa.array([bytes([n]) * (n % 7) for n in range(ROWS)], pa.large_binary()),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("first", "rows"), [(0, ROWS), (0, 7), (0, 64), (5, 60), (64, 64), (97, 103)])
@pytest.mark.parametrize("cuts", [[0, ROWS], [0, 1, 7, 66, 133, ROWS]], ids=["one chunk", "five chunks"])
def test_a_slice_has_the_bytes_of_a_table_with_these_rows_alone(
    name: str, first: int, rows: int, cuts: list[int]
) -> None:
    """Two runs that receive their rows in pieces of other sizes write the same shards."""
    whole = pa.table({name: COLUMNS[name]})
    pieces = pa.concat_tables([whole.slice(start, stop - start) for start, stop in itertools.pairwise(cuts)])
    alone = pa.table({name: pa.array(COLUMNS[name].to_pylist()[first : first + rows], COLUMNS[name].type)})
    assert encode_shard(pieces.slice(first, rows)).equals(encode_shard(alone))
