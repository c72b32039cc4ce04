"""Every value that an environment of conf/ sets, and what the entries of the catalog have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mm_ldlm.app.datasets import StoreDataset

CONF, TABLE = Path(__file__).parents[1] / "conf", Path(__file__).with_name("environments.yml")
"""The table: environment → key → value. The comments in conf/ give the reasons; tests/test_decisions.py, too."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List (dotted key, value); a list is one value, as in the layers."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def set_by(environment: str) -> dict[str, Any]:
    """What the files of an environment set, also `data`, `features` and `results`."""
    found: dict[str, Any] = {}
    for file in sorted((CONF / environment).rglob("*.yml")):
        given = dict(leaves(yaml.safe_load(file.read_text(encoding="utf-8")) or {}))
        assert not set(given) & set(found), f"{file} sets a key of another file of the environment"
        found |= given
    return found


def environments() -> list[str]:
    return sorted(
        folder.name for folder in CONF.iterdir() if folder.name not in ("base", "local") and any(folder.rglob("*.yml"))
    )


def test_every_value_of_every_environment_is_that_of_the_table() -> None:
    """A value is changed in conf/ and in tests/environments.yml, so that none changes by accident."""
    table = {name: dict(leaves(given)) for name, given in yaml.safe_load(TABLE.read_text(encoding="utf-8")).items()}
    assert sorted(table) == environments()
    wrong = {
        f"{name}: {key}": (found.get(key, "not set"), table[name].get(key, "not set"))
        for name in table
        for found in [set_by(name)]
        for key in {*found, *table[name]}
        if repr(found.get(key, "not set")) != repr(table[name].get(key, "not set"))
    }
    assert not wrong, f"(in conf/, in tests/environments.yml): {wrong}"


# -- the catalog ------------------------------------------------------------------------------------------------------


def entries() -> dict[str, Any]:
    """Every entry of conf/base/catalog by its name, without the variables of paths."""
    found: dict[str, Any] = {}
    for file in sorted((CONF / "base" / "catalog").glob("*.yml")):
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert not set(given) & set(found), file
        found |= {name: entry for name, entry in given.items() if not name.startswith("_")}
    return found


ENTRIES = entries()
OTHER_NAMES = {"tokenizer_files": "tokenizer", "sanity_report": "sanity", "comparison_runs": "comparison",
               "comparison_report": "comparison"}  # fmt: skip
"""Entries whose file or folder has another name."""
WITHOUT_ONE = {
    "latents", "images", "token_vectors", "token_states", "vectors", "normaliser", "state_normaliser",
    "image_normaliser", "token_clusters", "labels", "label_names", "pair_tokens",
}  # fmt: skip
"""Stores that a dataset may lack, as its objective and its model need them or not."""
SUFFIXES = {"json.JSONDataset": ".json", "plotly.JSONDataset": ".json", "text.TextDataset": ".html",
            "pandas.CSVDataset": ".csv", "mm_ldlm.app.datasets.TableDataset": ".parquet",
            "mm_ldlm.app.datasets.SamplesDataset": ".parquet", "mm_ldlm.app.datasets.RunDataset": ".json"}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_lies_under_its_own_name(name: str) -> None:
    entry = ENTRIES[name]
    if entry["type"] == "MemoryDataset":
        assert entry["copy_mode"] == "assign", "a model is not copied for every node"
        return
    path = entry["filepath"]
    own = OTHER_NAMES.get(name, name.removesuffix("_workspace"))
    assert path.endswith("${_runs}" if name == "runs" else f"/{own}{SUFFIXES.get(entry['type'], '')}"), path


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry["type"].endswith("StoreDataset")])
def test_a_store_is_where_its_folder_is_filled_and_has_its_kind(name: str) -> None:
    entry = ENTRIES[name]
    assert entry["filepath"] == ENTRIES[f"{name}_workspace"]["filepath"], "the node fills the folder that is committed"
    kinds = {"images": "latents", "token_vectors": "latents", "quarantine_ingestion": "quarantine",
             "quarantine_validation": "quarantine"}  # fmt: skip
    assert entry["kind"] == kinds.get(name, name)
    assert StoreDataset.__name__ in entry["type"]


def test_only_what_a_dataset_may_lack_is_optional() -> None:
    assert {name for name, entry in ENTRIES.items() if entry.get("optional", False)} == WITHOUT_ONE
    assert all(entry["optional"] is True for entry in ENTRIES.values() if "optional" in entry)


def test_files_are_written_as_they_are_read() -> None:
    """Tables without a column of row numbers, texts without escapes, and JSON that a reader can follow."""
    for name, entry in ENTRIES.items():
        given = entry.get("save_args", {})
        if entry["type"] == "pandas.CSVDataset":
            assert given == {"index": False}, name
        if entry["type"] in ("json.JSONDataset", "mm_ldlm.app.datasets.RunDataset"):
            assert given["indent"] in (1, 2), name
        if given.get("ensure_ascii") is not None:
            assert given["ensure_ascii"] is False, name
    assert ENTRIES["samples_t2l"]["vectors"] == "latent", "the latents are also a file of their own"
    holders = {name: (entry["holds"], entry["marker"]) for name, entry in ENTRIES.items() if "holds" in entry}
    normaliser = ("mm_ldlm.data.latents.normaliser:Normaliser", "normaliser.json")
    assert holders == {
        "tokenizer_files": ("mm_ldlm.data.corpus.tokenizer:TextTokenizer", "vocabulary.json"),
        "normaliser": normaliser, "state_normaliser": normaliser, "image_normaliser": normaliser,
    }  # fmt: skip


def test_the_dataset_finds_what_does_not_store_itself_where_its_entry_is() -> None:
    stores = ENTRIES["dataset"]["stores"]
    named = {"tokenizer": "tokenizer_files", **{name: name for name in stores if name != "tokenizer"}}
    assert {name: place["filepath"] for name, place in stores.items()} == {
        name: ENTRIES[entry]["filepath"] for name, entry in named.items()
    }
    assert set(stores) == {"tokenizer", "normaliser", "state_normaliser", "image_normaliser"}
