"""Refusals of a dataset, of its index and of its sentences to the letter: which folder, which store, which number."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.checks import Outcome

from mm_ldlm.core.errors import FingerprintError, MMLDLMError, StoreError, ValidationError
from mm_ldlm.data import Dataset, commit
from mm_ldlm.data.dataset import NAME
from mm_ldlm.data.index import split_column, splits_of, write_index, write_quarantine
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.sentences import read_sentences, rows_of_ids, split_rows
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.families.ccdd import token_identity
from mm_ldlm.families.classification import labels

TEXTS = ["w1", "w2 w3", "w4 w5 w6", "w7"]
SPLITS = ["train", "test", "train", "validation"]
AGAIN = "Run the pipelines that make it again: `kedro run --pipelines=ingestion,embedding,validation`."


@pytest.fixture
def made(write_dataset: Any, tmp_path: Path) -> Dataset:
    found: Dataset = write_dataset(tmp_path / "data", TEXTS, SPLITS, latents=np.arange(12.0).reshape(4, 3))
    return found


def refusal(kind: type[MMLDLMError], call: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(kind) as error:
        call(*given, **named)
    assert type(error.value) is kind
    return str(error.value)


# -- the manifest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["records", "tokenizer", "normaliser"])
@pytest.mark.parametrize("key", ["path", "kind", "fingerprint"])
def test_an_entry_of_any_store_has_three_texts(name: str, key: str, made: Dataset) -> None:
    path = made.directory / NAME
    document = json.loads(path.read_text())
    wanted = f"{path}: 'stores' must map each name to its path, kind and fingerprint. Validate again."
    for wrong in (None, 7, ["x"]):
        document["stores"][name][key] = wrong
        path.write_text(json.dumps(document))
        assert refusal(StoreError, Dataset.open, made.directory) == wanted
    del document["stores"][name][key]
    path.write_text(json.dumps(document))
    assert refusal(StoreError, Dataset.open, made.directory) == wanted
    document["stores"][name] = "folder"
    path.write_text(json.dumps(document))
    assert refusal(StoreError, Dataset.open, made.directory) == wanted


def test_a_manifest_that_lacks_stores_or_was_edited_says_what_it_has(made: Dataset) -> None:
    path = made.directory / NAME
    document = json.loads(path.read_text())
    stores = document["stores"]
    lacking = {name: about for name, about in stores.items() if name not in ("tokens", "index")}
    path.write_text(json.dumps({**document, "stores": lacking}))
    assert refusal(StoreError, Dataset.open, made.directory) == (
        f"{path}: names no tokens (it has {', '.join(lacking)}). Validate again."
    )
    path.write_text(json.dumps({**document, "fingerprint": "of another"}))
    assert refusal(StoreError, Dataset.open, made.directory) == (
        f"{path}: expected the fingerprint {made.fingerprint} of its stores, found of another: the file was edited. "
        "Validate again."
    )
    path.write_text(json.dumps({**document, "format_version": 0}))
    assert refusal(StoreError, Dataset.open, made.directory) == (
        f"{path}: expected format version 1, found 0. Validate again."
    )


def test_a_manifest_that_cannot_be_read_is_named_with_the_reason(
    made: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_ldlm.data.store import atomic

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(atomic, "read_json", refuse)
    path = made.directory / NAME
    assert refusal(StoreError, Dataset.open, made.directory) == (
        f"{path}: not readable as JSON ([Errno 13] Permission denied: '{path}'). Remove it and validate again."
    )


def test_a_store_that_changed_is_named_with_both_fingerprints(
    made: Dataset, write_dataset: Any, tmp_path: Path
) -> None:
    other = write_dataset(tmp_path / "other", TEXTS[::-1], SPLITS)
    shutil.rmtree(made.folder("tokens"))
    shutil.copytree(other.folder("tokens"), made.folder("tokens"))
    found, committed = other.fingerprints["tokens"], made.fingerprints["tokens"]
    assert refusal(FingerprintError, Dataset.open(made.directory).require, "tokens") == (
        f"{made.folder('tokens')}: its fingerprint is {found}, but {made.directory / NAME} was committed with "
        f"{committed}: the tokens changed after validation. Run `kedro run --pipeline=validation`, or restore the "
        "validated store."
    )
    assert refusal(StoreError, made.folder, "images") == (
        f"{made.directory / NAME}: this dataset has no images (it has {', '.join(made.names)}). It was validated for "
        "an objective and a model that do not use images; with the parameters of one that does, run "
        "`kedro run --pipelines=embedding,validation`."
    )


# -- commit ------------------------------------------------------------------------------------------------------------


def test_stores_of_different_makings_are_named_with_their_folders_and_fingerprints(
    made: Dataset, write_dataset: Any, tmp_path: Path
) -> None:
    other = write_dataset(tmp_path / "other", TEXTS[::-1], SPLITS)
    stores = {name: made.folder(name) for name in made.names} | {"records": other.folder("records")}
    assert refusal(FingerprintError, commit, tmp_path / "t", stores=stores) == (
        f"{stores['tokens']}: the tokens were made with records {made.fingerprints['records']}, but the records in "
        f"{other.folder('records')} have fingerprint {other.fingerprints['records']}. {AGAIN}"
    )
    Normaliser("standard", np.zeros(5), np.ones(5), False).save(tmp_path / "five")
    stores = {name: made.folder(name) for name in made.names} | {"normaliser": tmp_path / "five"}
    assert refusal(StoreError, commit, tmp_path / "t", stores=stores) == (
        f"{tmp_path / 'five'}: expected a normaliser of dim 3, found 5. {AGAIN}"
    )
    del stores["normaliser"]
    assert refusal(StoreError, commit, tmp_path / "t", stores=stores) == (
        f"{tmp_path / 't'}: a dataset with latents needs their normaliser. {AGAIN}"
    )
    del stores["tokens"], stores["index"]
    assert refusal(StoreError, commit, tmp_path / "t", stores=stores) == (
        f"{tmp_path / 't'}: expected the stores records, tokens, index, tokenizer, found no tokens among "
        f"{list(stores)}."
    )


@pytest.mark.parametrize(
    ("name", "source"),
    [("tokens", "records"), ("tokens", "tokenizer"), ("index", "records"), ("index", "tokens"), ("latents", "records"),
     ("token_vectors", "tokenizer")],
)  # fmt: skip
def test_every_store_that_another_was_made_from_is_compared(
    name: str, source: str, write_dataset: Any, tmp_path: Path
) -> None:
    own = write_dataset(
        tmp_path / "own", TEXTS, SPLITS, latents=np.arange(12.0).reshape(4, 3), token_vectors=np.ones((23, 3))
    )
    shutil.copytree(own.folder(name), tmp_path / "changed")
    manifest = Manifest.read(tmp_path / "changed")
    assert manifest.fingerprints[source] == own.fingerprints[source]
    dataclasses.replace(manifest, fingerprints={**manifest.fingerprints, source: "of another"}).write(
        tmp_path / "changed"
    )
    stores = {each: own.folder(each) for each in own.names} | {name: tmp_path / "changed"}
    assert refusal(FingerprintError, commit, tmp_path / "t", stores=stores) == (
        f"{tmp_path / 'changed'}: the {name} were made with {source} of another, but the {source} in "
        f"{own.folder(source)} have fingerprint {own.fingerprints[source]}. {AGAIN}"
    )


@pytest.mark.parametrize(
    ("name", "kind", "made_from", "words"),
    [
        ("token_clusters", "token_clusters", {}, "made from token_vectors, found one made from nothing"),
        ("token_clusters", "token_clusters", {"a": "1", "b": "2"}, "made from token_vectors, found one made from a, b"),
        ("latents", "latents", {"tokenizer": "1"}, "made from records, found one made from tokenizer"),
        ("token_vectors", "latents", {"records": "1"}, "made from tokenizer, found one made from records"),
        ("index", "labels", {"records": "1"}, "of kind 'index', found one of kind 'labels'"),
    ],
)
def test_the_store_of_another_making_is_named_with_what_it_was_made_from(
    name: str, kind: str, made_from: dict[str, str], words: str, made: Dataset, tmp_path: Path
) -> None:
    StoreWriter(tmp_path / "x", kind=kind, schema=pa.schema([("a", pa.int64())])).finish(fingerprints=made_from)
    stores = {each: made.folder(each) for each in made.names} | {name: tmp_path / "x"}
    assert refusal(StoreError, commit, tmp_path / "t", stores=stores) == (
        f"{tmp_path / 'x'}: expected the store of the {name}, {words}. Name its folder."
    )


# -- index, sentences, labels ------------------------------------------------------------------------------------------


def test_an_index_without_training_examples_counts_each_row_once(write_dataset: Any, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", TEXTS, SPLITS)
    write_quarantine(data.records, {"a": np.array([0, 2, 3]), "b": np.array([0, 2])}, tmp_path / "q")
    quarantine = ShardStore.open(tmp_path / "q")
    assert len(quarantine) == 5
    assert refusal(
        ValidationError, write_index, data.records, data.tokens, None, quarantine, tmp_path / "i"
    ) == (
        "expected training examples, found none: 4 records, 3 in quarantine, splits {'train': 0, 'validation': 0, "
        "'test': 1}. See validation_report for the reasons, and check ingestion.splits."
    )  # fmt: skip
    assert not Manifest.exists(tmp_path / "i")


@pytest.mark.parametrize("column", ["row", "length"])
@pytest.mark.parametrize("split", ["train", "test", "nothing"])
def test_a_column_of_a_split_is_of_64_bits(column: str, split: str, made: Dataset) -> None:
    assert split_column(made.index, split, column).dtype == np.int64


def test_sentences_that_are_not_there_are_refused_with_what_is(
    made: Dataset, write_dataset: Any, tmp_path: Path
) -> None:
    assert refusal(StoreError, split_rows, made, "dev") == (
        f"expected examples of split 'dev', found {splits_of(made.index)} in the index. Add the split to the sources "
        "(ingestion.splits, or the split of a source), or choose another one (sampling.split)."
    )
    other = write_dataset(tmp_path / "other", TEXTS[::-1], SPLITS)
    mixed: Any = SimpleNamespace(records=made.records, tokens=other.tokens)
    assert refusal(StoreError, read_sentences, mixed, np.array([0])) == (
        f"{other.folder('tokens')}: the ids of the tokens differ from those of the records in "
        f"{made.folder('records')}. Run `kedro run --pipelines=ingestion,validation`."
    )
    known = read_sentences(made, np.array([2, 0])).ids
    assert refusal(StoreError, rows_of_ids, made, ["x", *known, "y", "x"]) == (
        "3 of 5 samples have ids that the index does not contain (first: x): the samples were made from another "
        "dataset. Run the sampling pipeline again."
    )


def test_a_record_without_a_label_is_of_no_class_whatever_the_classes_are_called() -> None:
    """The class of a record with the label None, written out, is no class of those without one."""
    metas = ['{"k": "None"}', None, '{"k": "nan"}', '{"k": ""}']
    column = {"text": list("abcd"), "split": ["train"] * 4, "meta": metas}
    table = SimpleNamespace(column=lambda name: SimpleNamespace(to_pylist=lambda: column[name]))
    records: Any = SimpleNamespace(iter_tables=lambda rows, *, columns: [table])
    found = labels.read_labels(records, key="k")
    assert (found.names, found.number_n.tolist()) == (("None", "nan"), [0, -1, 1, -1])
    assert {reason: rows.tolist() for reason, rows in found.failing.items()} == {"no_label": [1, 3]}


def test_findings_are_in_the_order_of_their_severity() -> None:
    severities = ("info", "warning", "error", "info", "warning", "error")
    findings = [{"severity": severity, "check": str(place)} for place, severity in enumerate(severities)]
    report = {"rows": 3, "passed": True, "findings": findings, "quarantine": {}, "valid": 3, "quarantined": 0}
    read = labels.Labels(("a",), np.array([0, 0, -1]), {"no_label": np.array([2])})
    found = labels.with_labels(Outcome(report, {}, None), read, key="k").report["findings"]
    assert [finding["check"] for finding in found] == ["2", "5", "classes", "1", "4", "no_label", "0", "3"]


def test_tokens_are_drawn_by_the_lengths_of_the_drawn_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of the split have fifty tokens, all others one: a hundred tokens are two records."""
    lengths = np.array([1] * 30 + [50] * 10)
    column = SimpleNamespace(take=lambda rows: lengths[rows] if not isinstance(rows, slice) else lengths)
    tokens = SimpleNamespace(
        ints=lambda name: column,
        lists=lambda name: SimpleNamespace(take=lambda rows: (np.repeat(rows, lengths[rows]), None)),
    )
    states = SimpleNamespace(fixed=lambda name: SimpleNamespace(take=lambda rows: np.asarray(rows)[:, None]))
    given = {"token_states": states, "state_normaliser": SimpleNamespace(standardise=lambda raw: raw)}
    data: Any = SimpleNamespace(rows=lambda split: np.arange(30, 40), tokens=tokens, require=given.__getitem__)
    for count, records in ((1, 1), (50, 1), (51, 2), (100, 2), (101, 3), (10**6, 10)):
        states_nd, ids = token_identity._draw(data, "train", count, 3)
        assert (len(states_nd), len(ids)) == (50 * records, 50 * records)
        assert len(set(ids.tolist())) == records
        assert sorted(set(ids.tolist())) == list(dict.fromkeys(ids.tolist())), "in the order of the store"
        assert states_nd[:, 0].tolist() == [30 + 50 * (row - 30) + place for row in dict.fromkeys(ids.tolist())
                                            for place in range(50)]  # fmt: skip
        assert (states_nd.dtype, ids.dtype) == (np.float64, np.int64)
