"""Vectors that come with the texts: they are stored bit for bit next to their records, or refused by row with a reason."""

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.corpus.examples import ingested, jsonl
from tests.data.latents.toy import DIM, TEXTS, ToyEncoderConfig, content, records
from tests.kills import kills

from mm_ldlm.core import ConfigurationError, EncoderError, FingerprintError, SourceError, StoreError
from mm_ldlm.data.corpus.quarantine import Unusable
from mm_ldlm.data.encoders import load_encoder, no_encoder, parse_encoder
from mm_ldlm.data.encoders.base import side_folder
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, write_shard
from mm_ldlm.extras.own_vectors.checks import problems
from mm_ldlm.extras.own_vectors.store import VectorStore

DECLARED = {"kind": "precomputed", "name": "mine", "dim": DIM, "normalised": False}
TOY = "tests.data.latents.toy:ToyEncoderConfig"
NUMBER = st.floats(-(2.0**100), 2.0**100, width=32)


# -- one row -----------------------------------------------------------------------------------------------------------


@given(
    st.lists(NUMBER, min_size=3, max_size=3),
    st.sampled_from(["[{}]", " ({}) ", "{{{}}}"]),
    st.sampled_from([", ", " ", "\n  "]),
)
def test_a_list_an_array_and_a_text_are_the_same_vector(values: list[float], brackets: str, separator: str) -> None:
    store = VectorStore(3, Path())
    text = brackets.format(separator.join(map(repr, values)))
    for cell in (values, np.array(values), np.array(values, np.float32), text):
        found = store.accept(cell)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.array(values, np.float32))


@given(st.none() | st.booleans() | st.text() | st.binary() | st.lists(st.floats() | st.text(max_size=2) | st.none())
       | st.lists(st.lists(NUMBER, max_size=3)) | st.dictionaries(st.text(), NUMBER) | st.integers())  # fmt: skip
def test_any_other_cell_is_refused_or_is_a_finite_vector(cell: Any) -> None:
    with contextlib.suppress(Unusable):
        found = VectorStore(3, Path()).accept(cell)
        assert found.shape == (3,)
        assert np.isfinite(found).all()
    with pytest.raises(Unusable):
        VectorStore(3, Path()).accept("[1_0, 2, 3]")


# -- latents -----------------------------------------------------------------------------------------------------------


def stored_vectors(stored: ShardStore, vectors_nd: Any, *, ids: list[str] | None = None) -> None:
    """Write the store of vectors that ingestion writes next to records."""
    folder = side_folder(stored.directory)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    store = VectorStore(vectors_nd.shape[1], folder)
    table = store.table(ids or stored.gather("id", slice(None)).to_pylist(), list(vectors_nd))
    parts = [write_shard(folder, f"part-{n:06d}.arrow", table.slice(3 * n, 3)) for n in range(-(-len(table) // 3))]
    store.commit(parts, records=stored.manifest)


def taken(stored: ShardStore, workspace: Path, *, declared: Any = None, **options: Any) -> LatentStore:
    encoder: Any = parse_encoder({**DECLARED, **(declared or {})})
    encoder.take_over(stored, config=ExtractConfig(**{"shard_rows": 4, **options}), workspace=workspace)
    return LatentStore.open(workspace)


@pytest.fixture
def stored(tmp_path: Path) -> ShardStore:
    found = records(tmp_path / "records")
    stored_vectors(found, np.random.default_rng(0).normal(size=(len(TEXTS), DIM)).astype(np.float32))
    return found


def test_vectors_become_latents_bit_for_bit_whatever_is_killed_or_damaged(
    stored: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    found = taken(stored, tmp_path / "plain")
    expected = content(tmp_path / "plain")
    given_nd = ShardStore.open(side_folder(stored.directory)).fixed("vector").take(slice(None))
    assert found.take(slice(None)).tobytes() == given_nd.tobytes()
    assert found.gather("id", slice(None)).to_pylist() == stored.gather("id", slice(None)).to_pylist()
    for _ in kills(lambda: taken(stored, tmp_path / "killed")):
        assert not Manifest.exists(tmp_path / "killed") or content(tmp_path / "killed").items() >= expected.items()
    assert content(tmp_path / "killed") == expected
    (tmp_path / "plain" / "part-000002.arrow").write_bytes(b"damaged")
    taken(stored, tmp_path / "plain")
    assert content(tmp_path / "plain") == expected
    for other in ({"shard_rows": 5}, {"dtype": "float16"}, {"declared": {"name": "yours"}}):
        with pytest.raises(FingerprintError):
            taken(stored, tmp_path / "plain", **other)
    stored_vectors(stored, given_nd + 1)
    with pytest.raises(FingerprintError):
        taken(stored, tmp_path / "plain")
    assert content(tmp_path / "plain") == expected


def test_vectors_of_other_records_are_refused(stored: ShardStore, tmp_path: Path, refuses: Any) -> None:
    stored_vectors(stored, np.ones((len(TEXTS), DIM), np.float32))
    other = records(tmp_path / "other", TEXTS[:5])
    shutil.copytree(side_folder(stored.directory), side_folder(other.directory))
    with refuses(FingerprintError, "records"):
        taken(other, tmp_path / "b")
    shutil.rmtree(side_folder(stored.directory))
    with pytest.raises(StoreError, match="vectors"):
        taken(stored, tmp_path / "c")


def test_the_vectors_of_a_file_become_latents_and_bad_rows_are_quarantined_with_a_reason(
    tmp_path: Path, refuses: Any
) -> None:
    values = np.random.default_rng(0).normal(size=(6, DIM)).astype(np.float32)
    values[2, 1] = np.nan
    rows = [{"text": f"a text number {number}", "v": each.tolist()} for number, each in enumerate(values)]
    source = {"kind": "table", **jsonl(tmp_path, rows), "vector_column": "v"}
    with refuses(SourceError, f"dimension {DIM}", f"`--params encoder.dim={DIM}`"):
        ingested(tmp_path / "other", source, side=VectorStore(DIM + 1, tmp_path / "vectors"), max_bad_fraction=0.0)
    side = VectorStore(DIM, side_folder(tmp_path / "made" / "records"))
    made = ingested(tmp_path / "made", source, side=side)
    assert [row["reason"] for row in made.refused] == ["not_finite"]
    found = taken(made.records, tmp_path / "latents")
    kept = [int(text[-1]) for text in made.texts]
    assert sorted(kept) == [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(found.take(slice(None)), values[kept])


# -- the declaration ---------------------------------------------------------------------------------------------------


def test_the_encoder_for_new_texts_embeds_under_the_declared_fingerprint(
    tmp_path: Path, refuses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = parse_encoder(DECLARED)
    assert "for_new_texts" in str(no_encoder(bare))
    with refuses(EncoderError, "'mine'", "encoder.for_new_texts"):
        load_encoder(bare)
    marker = tmp_path / "changed"
    named = parse_encoder({**DECLARED, "for_new_texts": {"kind": TOY, "changes": str(marker)}})
    assert no_encoder(named) is None
    loaded = load_encoder(named)
    assert loaded.fingerprint == bare.locate().fingerprint
    expected = load_encoder(ToyEncoderConfig()).encode(TEXTS)
    np.testing.assert_array_equal(loaded.encode(TEXTS), expected)
    np.testing.assert_array_equal(loaded.run(loaded.prepare(TEXTS)), expected)
    assert named.portable() == bare.portable()
    assert str(marker) not in json.dumps(loaded.located.describe())
    marker.touch()
    with pytest.raises(EncoderError, match="Restore it"):
        loaded.verify()
    wide = {"cuda:7": SimpleNamespace(dim=DIM + 1)}
    monkeypatch.setattr("mm_ldlm.extras.own_vectors.encoder.load_encoder", lambda config, *, device: wide[device])
    with pytest.raises(EncoderError, match=f"dimension {DIM + 1}"):
        named.load(named.locate(), device="cuda:7")
    remote = {"kind": "http", "url": "https://host/v1", "name": "m", "key_variable": "NO_SUCH_KEY"}
    assert "'encoder.for_new_texts.key" in str(parse_encoder({**DECLARED, "for_new_texts": remote}).missing())
    assert VectorStore(1 << 20, tmp_path).most_rows == 64, "of 4 MiB each"
    marks = {parse_encoder({**DECLARED, **other}).locate().fingerprint
             for other in ({}, {"name": "x"}, {"dim": 3}, {"normalised": True})}  # fmt: skip
    assert len(marks) == 4


@pytest.mark.parametrize(
    "change",
    [{"dim": 0}, {"name": " "}, {"for_new_texts": DECLARED}, {"for_new_texts": {"kind": "local", "name": "minilm"}}],
    ids=str,
)
def test_a_declaration_that_cannot_be_right_is_refused(change: dict[str, Any], refuses: Any) -> None:
    with refuses(ConfigurationError, f"encoder.{next(iter(change))}"):
        parse_encoder({**DECLARED, **change})


@pytest.mark.parametrize("has_vectors", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_sources_and_encoder_agree_about_vectors(has_vectors: bool, declared: bool) -> None:
    source = SimpleNamespace(has_vectors=has_vectors, label="mine.parquet")
    encoder = parse_encoder(DECLARED if declared else {"kind": TOY})
    good = SimpleNamespace(has_vectors=declared, label="right")
    found = problems({"encoder": encoder, "ingestion": SimpleNamespace(sources=[good, source])})
    assert bool(found) == (has_vectors != declared)
    assert all("ingestion.sources[1]" in each and "mine.parquet" in each for each in found)
