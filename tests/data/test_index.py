"""The index of valid examples, with and without latents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.errors import ValidationError
from mm_ldlm.data.index import split_column, splits_of, write_index, write_quarantine
from mm_ldlm.data.store import ShardStore

TEXTS = [f"w{i} w{(i * 3) % 20}" for i in range(20)]
SPLITS = ["test" if i % 5 == 0 else "train" for i in range(20)]


@pytest.mark.parametrize("with_latents", [True, False])
def test_examples_in_quarantine_are_left_out(write_dataset: Any, tmp_path: Path, with_latents: bool) -> None:
    data = write_dataset(tmp_path / "data", TEXTS, SPLITS, latents=np.ones((20, 4)) if with_latents else None)
    write_quarantine(data.records, {"zero": np.array([3, 5])}, tmp_path / "q")
    write_index(data.records, data.tokens, data.latents, ShardStore.open(tmp_path / "q"), tmp_path / "i")
    index = ShardStore.open(tmp_path / "i", "index")
    assert ("latents" in index.manifest.fingerprints) == with_latents
    assert split_column(index, "test", "row").tolist() == [0, 10, 15]
    assert splits_of(index) == {"train": 15, "test": 3}


@pytest.mark.parametrize("rows", [[], [0], [19], [0, 19]])
def test_any_number_of_examples_may_be_in_quarantine(write_dataset: Any, tmp_path: Path, rows: list[int]) -> None:
    data = write_dataset(tmp_path / "data", TEXTS, SPLITS)
    write_quarantine(data.records, {"zero": np.array(rows, np.int64)}, tmp_path / "q")
    write_index(data.records, data.tokens, None, ShardStore.open(tmp_path / "q"), tmp_path / "i")
    found = ShardStore.open(tmp_path / "i", "index").ints("row").take(slice(None)).tolist()
    assert found == [row for row in range(20) if row not in rows]


def test_an_index_without_training_examples_is_refused(write_dataset: Any, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", TEXTS, ["test"] * 20)
    write_quarantine(data.records, {}, tmp_path / "q")
    with pytest.raises(ValidationError, match=r"expected training examples, found none: 20 records, 0 in quarantine"):
        write_index(data.records, data.tokens, None, ShardStore.open(tmp_path / "q"), tmp_path / "i")
