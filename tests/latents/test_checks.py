"""Validation checks: each kind of damage is found with its own message, and intact data pass without findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.checks import Outcome, validate
from mm_ldlm.data.latents.findings import Findings, enforce

from mm_ldlm.core.errors import StoreError, ValidationError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.index import split_column, write_index, write_quarantine
from mm_ldlm.data.latents import alignment, checks
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter, write_shard

Edit = Callable[[list[str], np.ndarray], tuple[list[str], np.ndarray]]


def opened(data: Any) -> dict[str, ShardStore]:
    return {"records": data.records, "tokens": data.tokens, "latents": data.latents}


def check(
    data: Any, *, stores: dict[str, ShardStore] | None = None, limits: dict[str, Any] | None = None, **changes: Any
) -> Outcome:
    given: dict[str, Any] = {
        **(stores or opened(data)),
        "tokenizer": data.tokenizer,
        "encoder": data.encoder,
        "extraction": data.extraction,
        "evaluation_sets": {},
        "seed": 0,
        "config": ValidationConfig(**{"max_quarantine_fraction": 0.2, **(limits or {})}),
    }
    return validate(**{**given, **changes})


def rewrite(data: Any, edit: Edit, *, dtype: Any = "float32") -> None:
    """Change the latents and vouch for them again, as a faulty program would: checksums and fingerprints are right."""
    old = data.latents
    ids, vectors = edit(old.ids(slice(None)), old.take(slice(None)).copy())
    writer = StoreWriter(
        data.root / "latents", kind="latents", schema=latent_store.schema(vectors.shape[1], dtype), shard_rows=50
    )
    writer.append(latent_store.table(ids, vectors, dtype=dtype))
    meta = {**old.manifest.meta, "dim": vectors.shape[1]}
    writer.finish(fingerprints=old.manifest.fingerprints, meta=meta)


def only(outcome: Outcome, check: str) -> dict[str, Any]:
    found = [finding for finding in outcome.report["findings"] if finding["check"] == check]
    assert len(found) == 1, outcome.report["findings"]
    return found[0]


def failed(outcome: Outcome) -> set[str]:
    return {finding["check"] for finding in outcome.report["findings"] if finding["severity"] == "error"}


def test_sound_data_pass(pristine: Any) -> None:
    outcome = check(pristine)
    assert outcome.report["passed"], outcome.report
    assert outcome.report["valid"] == 230
    assert {f["check"] for f in outcome.report["findings"]} == {"spot re-encoding"}
    assert only(outcome, "spot re-encoding")["severity"] == "info"
    assert outcome.report["encoder"] == pristine.encoder.locate().describe()
    assert outcome.report["statistics"] == outcome.statistics.summary()  # type: ignore[union-attr]
    assert set(only(outcome, "spot re-encoding")) == {"severity", "check", "message", "count", "examples", "remedy"}
    enforce(outcome.report)


@pytest.mark.parametrize("other", [None, "encoder", "alignment"])
def test_vectors_are_measured_and_encoded_again_with_the_limits_and_the_seed(
    other: str | None, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of another encoder or of other rows are not encoded again: they would only differ once more."""
    called: list[Any] = []
    real = checks.statistics.measure
    monkeypatch.setattr(
        checks.statistics, "measure", lambda latents, **options: called.append(options) or real(latents, **options)
    )
    monkeypatch.setattr(checks, "check_spots", lambda *given, **options: called.append((given, options)))
    if other == "encoder":
        manifest = data.latents.manifest
        changed = dataclasses.replace(manifest, fingerprints={**manifest.fingerprints, "encoder": "0" * 32})
        changed.write(data.root / "latents")
    if other == "alignment":
        rewrite(data, lambda ids, vectors: (ids[:200], vectors[:200]))
    limits = {"plot_rows": 77, "spot_rows": 5}
    outcome = check(data, seed=9, limits=limits)
    assert called[0] == {"plot_rows": 77, "seed": 9}
    assert len(called) == (1 if other else 2)
    assert other is None or other in failed(outcome)
    if other is None:
        (_, records, latents), options = called[1]
        assert (records.manifest.kind, latents.manifest.kind) == ("records", "latents")
        assert options["config"] == ValidationConfig(max_quarantine_fraction=0.2, **limits)
        assert (options["seed"], options["encoder"]) == (9, data.encoder)
        called.clear()
        check(data, limits={"spot_rows": 0})
        assert len(called) == 1


def test_damage_a_flipped_byte(data: Any) -> None:
    path = data.root / "latents" / "part-000002.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    finding = only(check(data), "checksum")
    assert finding["examples"] == ["part-000002.arrow"]
    with pytest.raises(ValidationError, match=r"1 of 5 shards .*changed after they were written"):
        enforce(check(data).report)
    assert "checksum" not in failed(check(data, limits={"verify_checksums": False}))


@pytest.mark.parametrize("kind", ["latents", "tokens", "records"])
def test_damage_a_truncated_shard(data: Any, kind: str) -> None:
    stores = opened(data)
    path = next((data.root / kind).glob("part-*.arrow"))
    path.write_bytes(path.read_bytes()[:-100])
    outcome = check(data, stores=stores)
    assert "truncated shard" in only(outcome, "truncated shard")["message"]
    with pytest.raises(StoreError, match="truncated shard"):
        ShardStore.open(data.root / kind)


def test_damage_a_missing_shard(data: Any) -> None:
    stores = opened(data)
    (data.root / "latents" / "part-000001.arrow").unlink()
    outcome = check(data, stores=stores)
    assert failed(outcome) == {"missing shard"}
    assert "part-000001.arrow: this shard is missing (50 rows)" in only(outcome, "missing shard")["message"]


def test_damage_a_manifest_of_another_encoder(data: Any) -> None:
    manifest = data.latents.manifest
    dataclasses.replace(manifest, fingerprints={**manifest.fingerprints, "encoder": "0" * 32}).write(
        data.root / "latents"
    )
    outcome = check(data)
    message = only(outcome, "encoder")["message"]
    assert "were made with encoder 00000000" in message
    assert "(minilm, revision None, dimension 24)" in message


def test_damage_records_that_changed_since(data: Any) -> None:
    manifest = data.records.manifest
    dataclasses.replace(manifest, meta={"changed": True}).write(data.root / "records")
    assert [f["check"] for f in check(data).report["findings"] if f["severity"] == "error"] == ["records", "records"]


MADE_FROM = [
    ("tokens", "records", "ingestion"), ("tokens", "tokenizer", "ingestion"), ("latents", "records", "embedding"),
    ("latents", "encoder", "embedding"), ("images", "records", "embedding"),
]  # fmt: skip


@pytest.mark.parametrize("recorded", ["other", "", None])
@pytest.mark.parametrize(("store", "name", "pipeline"), MADE_FROM)
def test_every_store_is_compared_with_each_of_its_ingredients(
    store: str, name: str, pipeline: str, recorded: str | None
) -> None:
    """A store whose manifest does not name an ingredient fails like one with another ingredient."""

    class Store:
        directory = Path("/folder")

        def __init__(self, kind: str, **made_from: str) -> None:
            about = {"name": "e", "revision": "r", "dim": 3}
            self.manifest = SimpleNamespace(
                kind=kind, fingerprint=f"of {kind}", fingerprints=made_from, meta={"encoder": about}
            )

        def __len__(self) -> int:
            return 7

    made: dict[str, Any] = {
        "records": Store("records"), "tokens": Store("tokens", records="of records", tokenizer="t"),
        "latents": Store("latents", records="of records", encoder="f"), "images": Store("images", records="of records"),
    }  # fmt: skip
    with_them: Any = {
        "tokenizer": SimpleNamespace(fingerprint="t"),
        "located": SimpleNamespace(fingerprint="f", name="n"),
    }
    found = Findings()
    checks._check_fingerprints(found, *made.values(), **with_them)
    assert found.findings == []
    made[store].manifest.fingerprints[name] = recorded
    if recorded is None:
        del made[store].manifest.fingerprints[name]
    checks._check_fingerprints(found, *made.values(), **with_them)
    (entry,) = found.findings
    assert (entry.severity, entry.check, entry.count) == ("error", name, 7)
    assert f"the {store} in /folder were made with {name} {recorded}" in entry.message
    assert ("(e, revision r, dimension 3)" in entry.message) == (name == "encoder")
    assert f"run the {pipeline} pipeline again" in entry.remedy
    checks._check_fingerprints(found, made["records"], made["tokens"], None, None, **with_them)
    assert len(found.findings) == 1 + (store == "tokens")


def test_damage_a_row_of_nan(data: Any) -> None:
    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors[17] = np.nan
        vectors[120, 3] = np.inf
        return ids, vectors

    rewrite(data, edit)
    outcome = check(data)
    assert only(outcome, "finite")["count"] == 2
    assert outcome.failing["finite"].tolist() == [17, 120]
    assert only(outcome, "finite dimensions")["count"] == 24
    assert outcome.report["passed"]
    assert outcome.report["valid"] == 228


def test_damage_a_row_of_zeros(data: Any) -> None:
    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors[40] = 0
        return ids, vectors

    rewrite(data, edit)
    outcome = check(data)
    assert outcome.failing["zero"].tolist() == [40]
    assert only(outcome, "zero")["message"] == "1 rows are zero vectors."
    assert only(outcome, "zero")["examples"] == [data.latents.ids([40])[0]]


def test_damage_a_vector_of_the_wrong_dimension(data: Any) -> None:
    """Arrow cannot hold one odd row in a column of dimension 24, but a shard may have another dimension."""
    manifest = data.latents.manifest
    shard = manifest.shards[3]
    ids = data.latents.ids(slice(150, 200))
    other = write_shard(data.root / "latents", shard.name, latent_store.table(ids, np.ones((50, 23)), dtype="float32"))
    shards = [other if s.name == shard.name else s for s in manifest.shards]
    dataclasses.replace(manifest, shards=tuple(shards)).write(data.root / "latents")
    finding = only(check(data), "dimension")
    assert "part-000003.arrow" in finding["message"]
    assert "[23]" in finding["message"]
    with pytest.raises(pa.ArrowInvalid):
        pa.array([[1.0, 2.0], [1.0]], pa.list_(pa.float32(), 2))


def test_a_shard_with_other_columns_is_a_dimension_of_latents_alone(data: Any) -> None:
    manifest = data.tokens.manifest
    table = data.tokens.table([0, 1]).drop(["length"])
    other = write_shard(data.root / "tokens", "part-000009.arrow", table)
    dataclasses.replace(manifest, shards=(*manifest.shards, other), rows=manifest.rows + 2).write(data.root / "tokens")
    outcome = check(data)
    assert "unreadable shard" in failed(outcome)
    assert "dimension" not in failed(outcome)
    assert only(outcome, "unreadable shard")["message"].startswith("tokens: ")


def test_damage_latents_that_are_no_vectors(data: Any) -> None:
    """Lists of any length under the name of the latents: the report says so, and nothing tries to measure them."""
    old = data.latents
    schema = pa.schema([("id", pa.string()), ("latent", pa.list_(pa.float32()))])
    table = pa.table({"id": old.ids(slice(None)), "latent": old.take(slice(None)).tolist()}, schema=schema)
    writer = StoreWriter(data.root / "latents", kind="latents", schema=schema, shard_rows=50)
    writer.append(table)
    writer.finish(fingerprints=old.manifest.fingerprints, meta=old.manifest.meta)
    stores = {"records": data.records, "tokens": data.tokens, "latents": ShardStore.open(data.root / "latents")}
    outcome = check(data, stores=stores)
    assert failed(outcome) == {"columns"}
    assert "expected a fixed-size list in column 'latent'" in only(outcome, "columns")["message"]
    assert outcome.report["statistics"] == {}


def test_damage_ids_swapped_between_texts_and_latents(data: Any) -> None:
    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        ids[10], ids[11] = ids[11], ids[10]
        return ids, vectors

    rewrite(data, edit)
    outcome = check(data)
    assert failed(outcome) == {"alignment"}
    assert "2 rows of latents have another id" in only(outcome, "alignment")["message"]
    assert "rows were swapped or shifted" in only(outcome, "alignment")["message"]
    assert outcome.failing["alignment"].tolist() == [10, 11]


def test_rows_of_later_windows_have_their_own_numbers(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores are compared in windows; rows 10 and 75 are in different ones."""
    monkeypatch.setattr(alignment, "_ROWS", 32)

    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        ids[10], ids[75] = ids[75], ids[10]
        return ids, vectors

    rewrite(data, edit)
    outcome = check(data)
    assert outcome.failing["alignment"].tolist() == [10, 75]
    assert [text.split(":")[0] for text in only(outcome, "alignment")["examples"]] == ["row 10", "row 75"]


def test_texts_and_tokens_of_later_windows_have_their_own_numbers(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is in another window of 16 rows, and the two texts of a pair are in different ones."""
    monkeypatch.setattr(alignment, "_ROWS", 16)
    table = data.records.table(slice(None)).to_pydict()
    table["text"][5], table["split"][5], table["split"][75] = table["text"][75].upper(), "train", "test"
    table["text"][150], table["split"][150] = table["text"][40].upper(), table["split"][40]
    table["split"][220] = "dev"
    writer = StoreWriter(data.root / "records", kind="records", schema=data.records.schema)
    writer.append(table)
    writer.finish()
    rows = data.tokens.table(slice(None)).to_pydict()
    rows["input_ids"][20][0], rows["input_ids"][100][0] = data.tokenizer.vocab_size, data.tokenizer.mask_id
    rows["input_ids"][60][0], rows["input_ids"][180][0] = -1, data.tokenizer.pad_id
    rows["length"][130] -= 1
    rows["input_ids"][190], rows["length"][190] = [], 0
    writer = StoreWriter(data.root / "tokens", kind="tokens", schema=data.tokens.schema)
    writer.append(rows)
    writer.finish()
    train = table["text"][next(row for row in range(200, 230) if table["split"][row] == "train")]
    outcome = check(data, evaluation_sets={"some": [train]}, limits={"spot_rows": 0})
    failing = {name: found.tolist() for name, found in outcome.failing.items()}
    assert failing == {
        "ids": [5, 150], "token ids": [20, 60], "special tokens": [100, 180], "token lengths": [130], "empty": [190],
        "evaluation leakage": [table["text"].index(train)],
    }  # fmt: skip
    assert only(outcome, "split leakage")["count"] == only(outcome, "duplicate texts")["count"] == 1
    assert "texts are compared without case" in only(outcome, "split leakage")["message"]
    assert only(outcome, "splits")["examples"] == [table["id"][220]]
    assert (only(outcome, "ids")["examples"], only(outcome, "ids")["count"]) == ([table["id"][5], table["id"][150]], 2)


@pytest.mark.parametrize(("rows", "words"), [(229, "1 are missing"), (231, "1 are too many")])
def test_stores_of_more_or_fewer_rows_are_counted(rows: int, words: str, data: Any) -> None:
    table = data.tokens.table([*range(min(rows, 230)), *[0] * (rows - 230)])
    writer = StoreWriter(data.root / "tokens", kind="tokens", schema=data.tokens.schema)
    writer.append(table)
    writer.finish()
    found = only(check(data, stores={**opened(data), "latents": None}), "alignment")
    assert (found["count"], found["severity"]) == (1, "error")
    assert f"there are 230 records, but {rows} rows of tokens: {words}." in found["message"]
    assert "run the ingestion pipeline again" in found["remedy"]


def test_damage_vectors_swapped_under_the_right_ids(data: Any) -> None:
    """Only encoding again can see this."""

    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors[[30, 90]] = vectors[[90, 30]]
        return ids, vectors

    rewrite(data, edit)
    outcome = check(data)
    finding = only(outcome, "spot re-encoding")
    assert finding["count"] == 2
    assert "2 of them are vectors of other rows" in finding["message"]
    assert failed(outcome) == {"spot re-encoding"}
    assert not failed(check(data, limits={"spot_rows": 0}))


def test_damage_a_whole_shard_of_another_encoder_is_always_in_the_sample(data: Any) -> None:
    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors[100:150] = np.roll(vectors[100:150], 1, axis=1)
        return ids, vectors

    rewrite(data, edit)
    for seed in range(5):
        assert "spot re-encoding" in failed(check(data, limits={"spot_rows": 10}, seed=seed))
    assert only(check(data), "drift")["examples"] == ["part-000002.arrow"]


def test_pitfall_14_missing_latents_stop_the_run(data: Any) -> None:
    rewrite(data, lambda ids, vectors: (ids[:200], vectors[:200]))
    outcome = check(data)
    assert "230 records, but 200 rows of latents: 30 are missing" in only(outcome, "alignment")["message"]
    with pytest.raises(ValidationError, match="30 are missing"):
        enforce(outcome.report)


def test_pitfall_14_a_text_in_two_splits_stops_the_run(data: Any) -> None:
    table = data.records.table(slice(None)).to_pydict()
    table["text"][5] = table["text"][6].upper()
    table["split"][5], table["split"][6] = "train", "test"
    writer = StoreWriter(data.root / "records", kind="records", schema=data.records.schema)
    writer.append(table)
    writer.finish()
    outcome = check(data)
    leak = only(outcome, "split leakage")
    assert (leak["count"], [text.lower() for text in leak["examples"]]) == (1, [table["text"][6].lower()])
    assert only(outcome, "ids")["count"] == 1  # the text was exchanged, the id was not


def test_a_corpus_without_held_out_rows_is_a_warning(data: Any) -> None:
    table = data.records.table(slice(None)).to_pydict()
    table["split"] = ["train" if split == "test" else split for split in table["split"]]
    writer = StoreWriter(data.root / "records", kind="records", schema=data.records.schema)
    writer.append(table)
    writer.finish()
    found = only(check(data), "held-out rows")
    assert found["severity"] == "warning"
    assert "none of 230 records is in the split 'test'" in found["message"]


def test_a_dimension_that_is_not_the_encoders_is_named(data: Any) -> None:
    rewrite(data, lambda ids, vectors: (ids, vectors[:, :20]))
    message = only(check(data), "dimension")["message"]
    assert "24" in message
    assert "20 dimensions" in message


def test_texts_alone_are_checked_without_an_encoder(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An objective without latents: what an earlier run embedded is neither read nor compared."""
    rewrite(data, lambda ids, vectors: (ids[::-1], vectors * np.nan))
    monkeypatch.setattr(
        "mm_ldlm.data.latents.checks.locate_encoder", lambda encoder: pytest.fail("an encoder was located")
    )
    outcome = check(data, stores={**opened(data), "latents": None})
    assert outcome.report["passed"]
    assert outcome.failing == {}
    assert outcome.statistics is None
    assert outcome.report["encoder"] is None
    assert set(outcome.report["fingerprints"]) == {"records", "tokens"}
    tokens = data.tokens
    rows = tokens.table(slice(None)).to_pydict()
    rows["input_ids"][1][0] = data.tokenizer.vocab_size
    writer = StoreWriter(data.root / "tokens", kind="tokens", schema=tokens.schema)
    writer.append(rows)
    writer.finish(fingerprints=tokens.manifest.fingerprints)
    assert failed(check(data, stores={**opened(data), "latents": None})) == {"token ids"}


def test_a_type_that_is_not_the_parameters_is_named(pristine: Any) -> None:
    extraction = dataclasses.replace(pristine.extraction, dtype="float16")
    assert (
        "stored as float32, but embedding.dtype is float16"
        in only(check(pristine, extraction=extraction), "dtype")["message"]
    )


def test_norms_of_a_normalising_encoder(data: Any) -> None:
    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors[7] *= 1.01
        return ids, vectors

    rewrite(data, edit)
    loose = {"spot_tolerance": 0.1}
    assert check(data, limits=loose).failing["norm"].tolist() == [7]
    assert "norm" not in check(data, limits={**loose, "norm_tolerance": 0.05}).failing


@pytest.mark.parametrize("choice", ["warn", "quarantine"])
def test_norms_of_other_encoders_are_compared_with_their_quartiles(data: Any, choice: str) -> None:
    from mm_ldlm.data.latents.checks import check_vectors

    from mm_ldlm.data.latents import statistics

    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors *= np.random.default_rng(0).uniform(1, 1.5, (len(vectors), 1)).astype(np.float32)
        vectors[9] *= 50
        return ids, vectors

    rewrite(data, edit)
    measured = statistics.measure(data.latents, plot_rows=100, seed=0)
    for reach, expected in ((8.0, 1), (1000.0, 0)):
        found = Findings()
        limits = ValidationConfig(norm_outlier_iqrs=reach, on_norm_outlier=choice)  # type: ignore[arg-type]
        check_vectors(found, data.latents, measured, config=limits, normalised=False)
        assert len([f for f in found.findings if f.check == "norm"]) == expected
        assert found.failing.tolist() == ([9] if expected and choice == "quarantine" else [])


def test_duplicated_vectors(data: Any) -> None:
    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors[50:60] = vectors[3]
        return ids, vectors

    rewrite(data, edit)
    limits = {"spot_rows": 0, "max_duplicate_fraction": 0.1}
    assert only(check(data, limits=limits), "duplicate vectors")["count"] == 11
    assert not check(data, limits=limits).failing
    assert failed(check(data, limits={**limits, "max_duplicate_fraction": 0.01})) == {"duplicate vectors"}
    kept_first = check(data, limits={**limits, "on_duplicate_vector": "quarantine"})
    assert kept_first.failing["duplicate vectors"].tolist() == list(range(50, 60))


def test_collapsed_dimensions(data: Any) -> None:
    def edit(ids: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
        vectors[:, [2, 5]] = 0.1
        return ids, vectors

    rewrite(data, edit)
    limits = {"spot_rows": 0, "norm_tolerance": 10.0}
    finding = only(check(data, limits=limits), "collapsed dimensions")
    assert (finding["count"], finding["examples"], finding["severity"]) == (2, ["2", "5"], "error")
    assert not failed(check(data, limits={**limits, "max_collapsed_fraction": 0.1}))
    # The two are constant up to the rounding of their mean: a limit of 0 still sees them, one above all sees 24.
    assert only(check(data, limits={**limits, "collapsed_std": 1.0}), "collapsed dimensions")["count"] == 24


def test_token_faults(data: Any) -> None:
    tokens = data.tokens
    columns = tokens.table(slice(None)).to_pydict()
    columns["input_ids"][1][0] = data.tokenizer.vocab_size
    columns["input_ids"][2][0] = data.tokenizer.mask_id
    columns["length"][3] += 1
    columns["input_ids"][4], columns["length"][4] = [], 0
    writer = StoreWriter(data.root / "tokens", kind="tokens", schema=tokens.schema)
    writer.append(columns)
    writer.finish(fingerprints=tokens.manifest.fingerprints)
    short = TextTokenizer(data.tokenizer.base, max_length=10)
    outcome = check(data, tokenizer=short)
    assert {"token ids", "special tokens", "token lengths", "length"} <= failed(outcome)
    rows = {name: found.tolist() for name, found in outcome.failing.items()}
    assert (rows["token ids"], rows["special tokens"], rows["token lengths"], rows["empty"]) == ([1], [2], [3], [4])
    assert f"outside 0..{data.tokenizer.vocab_size - 1}" in only(outcome, "token ids")["message"]


def test_evaluation_sentences_are_taken_out_of_training_or_reported(pristine: Any) -> None:
    table = pristine.records.table(slice(None)).to_pydict()
    train = [row for row, split in enumerate(table["split"]) if split == "train"][:3]
    test = table["split"].index("test")
    wanted = [table["text"][row].upper() for row in train] + [table["text"][test], "Never seen."]
    sets = {"stsb": wanted}
    outcome = check(pristine, evaluation_sets=sets)
    assert only(outcome, "evaluation leakage")["count"] == 3
    assert outcome.failing["evaluation leakage"].tolist() == train
    reported = check(pristine, evaluation_sets=sets, limits={"on_leakage": "report"})
    assert only(reported, "evaluation leakage")["count"] == 3
    assert not reported.failing


def test_too_much_quarantine_stops_the_run(pristine: Any) -> None:
    texts = pristine.records.strings("text").take(slice(None))
    outcome = check(pristine, evaluation_sets={"all": texts}, limits={})
    assert failed(outcome) == {"quarantine"}
    splits = pristine.records.strings("split").take(slice(None))
    train = [text for text, split in zip(texts, splits, strict=True) if split == "train"][:3]
    for most, fails in ((3 / 230, set()), (2.9 / 230, {"quarantine"})):
        limits = {"max_quarantine_fraction": most, "spot_rows": 0}
        outcome = check(pristine, evaluation_sets={"some": train}, limits=limits)
        assert failed(outcome) == fails
        assert (outcome.report["valid"], outcome.report["quarantined"], outcome.report["rows"]) == (227, 3, 230)
    assert only(outcome, "quarantine")["message"] == "3 of 230 rows (1.30 %) failed; at most 1.26 % may fail."


def test_failed_rows_go_to_quarantine_and_the_rest_is_indexed(pristine: Any, tmp_path: Path) -> None:
    failing = {"zero": np.array([3, 200]), "norm": np.array([3])}
    write_quarantine(pristine.records, failing, tmp_path / "q")
    quarantine = ShardStore.open(tmp_path / "q", "quarantine")
    rows = quarantine.table(slice(None)).to_pylist()
    assert [(row["row"], row["reason"]) for row in rows] == [(3, "norm"), (3, "zero"), (200, "zero")]
    assert rows[2]["id"] == pristine.records.strings("id").take([200])[0]
    stores = (pristine.records, pristine.tokens, pristine.latents)
    manifest = write_index(*stores, quarantine, tmp_path / "i")
    index = ShardStore.open(tmp_path / "i", "index")
    expected = [row for row in range(230) if row not in (3, 200)]
    assert index.ints("row").take(slice(None)).tolist() == expected
    assert index.strings("id").take(slice(None)) == pristine.records.strings("id").take(expected)
    lengths = pristine.tokens.lists("input_ids").lengths(expected)
    assert index.ints("length").take(slice(None)).tolist() == lengths.tolist()
    assert sum(manifest.meta["splits"].values()) == 228
    train = split_column(index, "train", "row")
    assert set(pristine.records.strings("split").take(train)) == {"train"}
    assert len(train) == manifest.meta["splits"]["train"]


def test_an_index_without_training_rows_is_refused(pristine: Any, tmp_path: Path) -> None:
    write_quarantine(pristine.records, {"zero": np.arange(230)}, tmp_path / "q")
    with pytest.raises(ValidationError, match="expected training examples, found none: 230 records, 230 in quarantine"):
        write_index(
            pristine.records, pristine.tokens, pristine.latents, ShardStore.open(tmp_path / "q"), tmp_path / "i"
        )


def test_plots_hold_what_was_measured(pristine: Any) -> None:
    from mm_ldlm.data.latents import figures

    measured = check(pristine).statistics
    assert measured is not None
    assert sum(figures.norm_histogram(measured).data[0].y) == 230
    spectrum = np.array(figures.spectrum(measured).data[0].y)
    np.testing.assert_allclose(spectrum.sum(), 1)
    assert (np.diff(spectrum) <= 1e-12).all()
    assert sum(figures.neighbour_cosine(measured).data[0].y) == 230
    assert sum(figures.length_histogram(np.array([1, 1, 4])).data[0].y) == 3
    for figure in (figures.norm_histogram(None), figures.spectrum(None), figures.neighbour_cosine(None)):
        assert figure.to_json()
        assert not figure.data, "the report leaves out a figure without data"


def test_statistics_are_those_of_numpy(pristine: Any) -> None:
    from mm_ldlm.data.latents import statistics

    vectors = pristine.latents.take(slice(None)).astype(np.float64)
    found = statistics.measure(pristine.latents, plot_rows=1000, seed=0)
    np.testing.assert_allclose(found.mean_d, vectors.mean(0), atol=1e-12)
    np.testing.assert_allclose(found.std_d, vectors.std(0), rtol=1e-9)
    cosine = vectors @ vectors.T
    np.fill_diagonal(cosine, -1)
    np.testing.assert_allclose(found.neighbour_cosine, cosine.max(1), atol=1e-6)
    assert len(np.unique(found.digest_n)) == len(np.unique(vectors, axis=0))


@pytest.mark.parametrize(("queries", "step"), [(2000, 1), (40, 15)])
def test_no_row_is_its_own_neighbour(queries: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 rows are compared in parts of 256 queries; of too many rows, every 15th is a query."""
    from mm_ldlm.data.latents import statistics

    monkeypatch.setattr(statistics, "_NEIGHBOUR_QUERIES", queries)
    sample = np.random.default_rng(0).normal(size=(600, 8))
    unit = sample / np.linalg.norm(sample, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -1)
    np.testing.assert_allclose(statistics._neighbours(sample), cosine.max(1)[::step], atol=1e-6)


def test_manifest_and_shards_of_another_dimension_do_not_open(data: Any) -> None:
    manifest = Manifest.read(data.root / "latents")
    dataclasses.replace(manifest, meta={**manifest.meta, "dim": 99}).write(data.root / "latents")
    with pytest.raises(StoreError, match=r"expected dimension 99 .*found 24"):
        LatentStore.open(data.root / "latents")
