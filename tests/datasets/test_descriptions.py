"""How the entries of the catalog describe themselves, in messages of Kedro and in kedro-viz."""

from __future__ import annotations

from typing import Any

import pytest

from mm_ldlm.app.datasets import FolderDataset, RunDataset, StoreDataset, ValidatedDataset, WorkspaceDataset

NAMED: dict[str, Any] = {"holds": "mm_ldlm.data.corpus.tokenizer:TextTokenizer", "marker": "tokenizer.json"}


@pytest.mark.parametrize(
    ("dataset", "options", "described"),
    [
        (FolderDataset, NAMED, {"holds": NAMED["holds"]}),
        (StoreDataset, {"kind": "tokens"}, {"kind": "tokens"}),
        (ValidatedDataset, {"stores": {"index": {"filepath": "i"}}}, {}),
        (WorkspaceDataset, {}, {}),
    ],
)
def test_an_entry_is_described_by_its_path_and_what_it_holds(dataset: Any, options: Any, described: Any) -> None:
    made = dataset(filepath="a/b", metadata={"kedro-viz": {"layer": "raw"}}, **options)
    assert made._describe() == {"filepath": "a/b", **described}
    assert made.metadata == {"kedro-viz": {"layer": "raw"}}


@pytest.mark.parametrize("chosen", [None, "runs/one"])
def test_the_entry_of_a_run_is_described_by_the_run_that_is_chosen(chosen: str | None) -> None:
    found = RunDataset(filepath="a/run.json", chosen=chosen)._describe()
    assert found["chosen"] == chosen
    assert str(found["filepath"]).endswith("a/run.json")
