"""Every finding in full: severity, message with its numbers, count, examples, and the rows that are left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.alignment import check_ids
from mm_ldlm.data.latents.checks import check_vectors, validate
from mm_ldlm.data.latents.findings import Findings
from mm_ldlm.data.latents.statistics import Statistics

from mm_ldlm.data.latents import checks
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig, ValidationConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter


def short(found: Findings) -> list[tuple[Any, ...]]:
    return [(f.severity, f.check, f.message, f.count, f.examples) for f in found.findings]


def named() -> Any:
    return SimpleNamespace(strings=lambda name: SimpleNamespace(take=lambda rows: [f"{name}{row}" for row in rows]))


def test_every_finding_of_vectors_has_its_own_numbers() -> None:
    """Of twelve rows two are not finite, three zero; of the others one is long, and four share two vectors."""
    finite = np.ones(12, bool)
    finite[[2, 9]] = False
    norms = np.array([0.0, 1.0, np.nan, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, np.nan, 1.3, 1.0])
    digests = np.array([1, 5, 2, 6, 1, 5, 1, 6, 7, 2, 8, 9], np.uint64)
    measured = Statistics(
        finite, norms, digests, np.array([0, 2, 0, 1, 0]), np.zeros(5), np.array([1e-6, 1.0, 0.0, 1.0, 2e-6]),
        [("one", 0.25), ("two", 0.75)], np.zeros(5), np.zeros(5),
    )  # fmt: skip
    held, limits = Findings(), ValidationConfig(on_duplicate_vector="quarantine", max_duplicate_fraction=0.5)
    check_vectors(held, named(), measured, config=limits, normalised=True)
    assert short(held) == [
        ("warning", "finite", "2 rows contain NaN or infinity.", 2, ("id2", "id9")),
        ("warning", "finite dimensions", "2 dimensions contain NaN or infinity.", 2,
         ("dimension 1: 2 rows", "dimension 3: 1 rows")),
        ("warning", "zero", "3 rows are zero vectors.", 3, ("id0", "id4", "id6")),
        ("warning", "norm", "1 rows have a norm that differs from 1 by more than 0.001, but the encoder normalises.", 1,
         ("id10",)),
        ("error", "duplicate vectors",
         "4 rows (57.14 %) share their vector with a different text; at most 50.00 % may do so.", 4, ("id5", "id7")),
        ("error", "collapsed dimensions",
         "2 of 5 dimensions do not vary (standard deviation at most 1e-06); at most 5.00 % may be collapsed.", 2,
         ("0", "2")),
        ("warning", "drift",
         "the mean of shard two lies 0.75 standard deviations from the others', more than 0.5.", 1, ("two",)),
    ]  # fmt: skip
    assert {check: rows.tolist() for check, rows in held.rows.items()} == {
        "finite": [2, 9], "zero": [0, 4, 6], "norm": [10], "duplicate vectors": [5, 7]
    }  # fmt: skip
    held = Findings()
    config = ValidationConfig(max_duplicate_fraction=4 / 7, max_collapsed_fraction=0.4, max_drift=0.75)
    check_vectors(held, named(), measured, config=config, normalised=True)
    assert {f.severity for f in held.findings} == {"warning"}
    assert "drift" not in {f.check for f in held.findings}
    assert "duplicate vectors" not in held.rows


def test_norms_of_an_encoder_that_does_not_normalise_are_shown_with_their_middle_half() -> None:
    """Of the norms 1 to 5 the middle half is 2 … 4, so that 2 of its widths around it are −2 … 8."""
    norms = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    measured = Statistics(np.ones(5, bool), norms, np.arange(5, dtype=np.uint64), np.zeros(2, np.int64), np.zeros(2),
                          np.ones(2), [], np.zeros(2), np.zeros(5))  # fmt: skip
    held = Findings()
    check_vectors(held, named(), measured, config=ValidationConfig(norm_outlier_iqrs=0.25), normalised=False)
    assert short(held) == [
        ("warning", "norm", "2 rows have a norm outside 1.5 … 4.5 (middle half 2 … 4).", 2, ("id0", "id4"))
    ]
    assert held.rows == {}
    for reach, rows in ((0.49, [0, 4]), (0.5, []), (2.0, [])):
        held = Findings()
        config = ValidationConfig(norm_outlier_iqrs=reach, on_norm_outlier="quarantine")
        check_vectors(held, named(), measured, config=config, normalised=False)
        assert {check: found.tolist() for check, found in held.rows.items()} == ({"norm": rows} if rows else {})


@pytest.mark.parametrize(("kind", "pipeline"), [("tokens", "ingestion"), ("latents", "embedding")])
def test_rows_that_lack_and_rows_of_others_name_the_store_and_its_pipeline(
    kind: str, pipeline: str, tmp_path: Path
) -> None:
    stores = []
    for name, ids in (("records", ["a", "b", "c", "d", "e"]), (kind, ["a", "c", "x"])):
        writer = StoreWriter(tmp_path / name, kind=name, schema=pa.schema([("id", pa.string())]), shard_rows=2)
        writer.append({"id": ids})
        writer.finish()
        stores.append(ShardStore.open(tmp_path / name))
    found = Findings()
    check_ids(found, *stores)
    assert short(found) == [
        ("error", "alignment", f"there are 5 records, but 3 rows of {kind}: 2 are missing.", 2, ()),
        ("error", "alignment",
         f"2 rows of {kind} have another id than the record in the same row (1 of them belong to other records nearby: "
         "rows were swapped or shifted).", 2, (f"row 1: record b, {kind} c", f"row 2: record c, {kind} x")),
    ]  # fmt: skip
    again = f"Remove {tmp_path / kind} and run the {pipeline} pipeline again."
    assert [f.remedy for f in found.findings] == [again, f"The pairs cannot be trusted. {again}"]
    assert {check: rows.tolist() for check, rows in found.rows.items()} == {"alignment": [1, 2]}


@pytest.mark.parametrize(
    ("encoder", "manifest", "wanted", "expected"),
    [
        (3, 3, "float16", []), (None, None, "float16", []),
        (4, 3, "float16", ["the encoder has dimension 4, but the stored vectors have 3 dimensions."]),
        (3, 5, "float16", ["the manifest has dimension 5, but the stored vectors have 3 dimensions."]),
        (3, 3, "float32", ["the vectors are stored as float16, but embedding.dtype is float32."]),
    ],
)  # fmt: skip
def test_the_form_of_the_vectors_is_compared_with_encoder_manifest_and_parameters(
    encoder: int | None, manifest: int | None, wanted: Any, expected: list[str], tmp_path: Path
) -> None:
    writer = StoreWriter(tmp_path, kind="latents", schema=latent_store.schema(3, "float16"))
    writer.append(latent_store.table(["a", "b"], np.ones((2, 3)), dtype="float16"))
    writer.finish(meta={} if manifest is None else {"dim": manifest})
    found, located = Findings(), SimpleNamespace(dim=encoder)
    store = ShardStore.open(tmp_path)
    assert checks._check_shapes(found, store, located=located, extraction=ExtractConfig(dtype=wanted))  # type: ignore[arg-type]
    assert [(f.severity, f.message, f.count) for f in found.findings] == [("error", text, 2) for text in expected]
    assert [f.check for f in found.findings] == ["dtype" if "stored as" in text else "dimension" for text in expected]


def test_damage_is_counted_and_the_first_damage_does_not_hide_the_next(data: Any) -> None:
    """A byte of two shards of the latents, and a shard of the tokens that is missing."""
    stores = data.records, data.tokens, ShardStore.open(data.root / "latents")
    for number in (1, 3):
        path = data.root / "latents" / f"part-{number:06d}.arrow"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    next(iter((data.root / "tokens").glob("*.arrow"))).unlink()
    found = Findings()
    assert checks._check_bytes(found, *stores, checksums=True) is False
    missing, changed, *unread = found.findings
    assert (missing.severity, missing.check, missing.count) == ("error", "missing shard", 1)
    assert missing.message.startswith("tokens: ")
    assert (changed.severity, changed.check, changed.count) == ("error", "checksum", 2)
    assert changed.message == f"latents: 2 of 5 shards in {data.root / 'latents'} changed after they were written."
    assert changed.examples == ("part-000001.arrow", "part-000003.arrow")
    assert [(f.severity, f.check, f.count) for f in unread] == [("error", "unreadable shard", 50)] * 2
    assert all(f"part-{number:06d}.arrow" in f.message for number, f in zip((1, 3), unread, strict=True))
    found = Findings()
    assert checks._check_bytes(found, data.records, checksums=True) is True
    assert found.findings == []


def test_a_store_of_another_encoder_is_described(data: Any) -> None:
    manifest = Manifest.read(data.root / "latents")
    about = {**manifest.meta["encoder"], "name": "other", "revision": "r7", "dim": 9}
    dataclasses.replace(
        manifest, fingerprints={**manifest.fingerprints, "encoder": "0" * 32}, meta={**manifest.meta, "encoder": about}
    ).write(data.root / "latents")
    located = data.encoder.locate()
    found = Findings()
    checks._check_fingerprints(
        found, data.records, data.tokens, data.latents, None, tokenizer=data.tokenizer, located=located
    )
    (entry,) = found.findings
    assert entry.message == (
        f"the latents in {data.root / 'latents'} were made with encoder {'0' * 32} (other, revision r7, dimension 9), "
        f"but encoder 'minilm' as configured has fingerprint {located.fingerprint}."
    )
    assert (entry.severity, entry.check, entry.count) == ("error", "encoder", 230)


def test_the_report_counts_every_row_that_is_left_out_once(data: Any) -> None:
    """Row 4 fails twice, the rows 7 and 9 once."""
    old: LatentStore = data.latents
    vectors = old.take(slice(None)).copy()
    vectors[[4, 7]] = np.nan
    vectors[9] = 0
    writer = StoreWriter(data.root / "latents", kind="latents", schema=old.schema, shard_rows=50)
    writer.append(latent_store.table(old.ids(slice(None)), vectors, dtype="float32"))
    writer.finish(fingerprints=old.manifest.fingerprints, meta=old.manifest.meta)
    texts = data.records.strings("text").take([4])
    rows = data.records.table(slice(None)).to_pydict()
    rows["split"][4] = "train"
    records = data.records
    writer = StoreWriter(data.root / "records", kind="records", schema=records.schema)
    writer.append(rows)
    writer.finish(fingerprints=records.manifest.fingerprints, meta=records.manifest.meta)
    outcome = validate(
        records=data.records, tokens=data.tokens, latents=data.latents, tokenizer=data.tokenizer, encoder=data.encoder,
        extraction=data.extraction, config=ValidationConfig(max_quarantine_fraction=0.01, spot_rows=0),
        evaluation_sets={"s": texts}, seed=0,
    )  # fmt: skip
    report = outcome.report
    assert (report["rows"], report["valid"], report["quarantined"]) == (230, 227, 3)
    assert report["quarantine"] == {"evaluation leakage": 1, "finite": 2, "zero": 1}
    assert list(report["quarantine"]) == sorted(report["quarantine"])
    (entry,) = [f for f in report["findings"] if f["check"] == "quarantine"]
    assert (entry["severity"], entry["count"]) == ("error", 3)
    assert entry["message"] == "3 of 230 rows (1.30 %) failed; at most 1.00 % may fail."
    assert report["statistics"]["finite_rows"] == 228
    assert report["passed"] is False


@pytest.mark.parametrize("normalised", [True, False])
def test_the_vectors_are_checked_as_those_of_the_encoder_that_was_located(
    normalised: bool, pristine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pristine.encoder.locate()
    located = dataclasses.replace(found, spec=dataclasses.replace(found.spec, normalised=normalised))
    asked: list[Any] = []
    config = ValidationConfig(spot_rows=3, plot_rows=5, norm_tolerance=0.5)
    monkeypatch.setattr(checks, "locate_encoder", lambda *given, **named: asked.append((given, named)) or located)
    monkeypatch.setattr(checks, "check_vectors", lambda *_, **named: asked.append(named))
    monkeypatch.setattr(checks, "check_spots", lambda *_, **named: asked.append(named))
    validate(
        records=pristine.records, tokens=pristine.tokens, latents=pristine.latents, tokenizer=pristine.tokenizer,
        encoder=pristine.encoder, extraction=pristine.extraction, config=config, evaluation_sets={}, seed=6,
    )  # fmt: skip
    assert asked == [
        ((pristine.encoder,), {"expected": pristine.latents.manifest.fingerprints["encoder"]}),
        {"config": config, "normalised": normalised},
        {"encoder": pristine.encoder, "located": located, "config": config, "seed": 6},
    ]
