"""Numbers that are rare: vectors of length 0, equal halves of digests, one row, principal axes, exact limits."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from mm_ldlm.data.latents.alignment import check_texts, check_tokens
from mm_ldlm.data.latents.findings import Findings, enforce
from mm_ldlm.data.latents.rate import FIRST_SECONDS, Rate

from mm_ldlm.core.errors import ConfigurationError, StoreError, ValidationError
from mm_ldlm.data.latents import alignment, figures, spot_check, statistics
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import TokenClustersConfig, ValidationConfig
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig, norms
from mm_ldlm.data.latents.normaliser_fit import fit
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.families.hdlm.token_clusters import cluster, cluster_vocabulary

# -- texts and tokens --------------------------------------------------------------------------------------------------

CONTENTS = [bytes([a] * 8 + [b] * 8) for a, b in itertools.product((0, 1), (0, 1))]
"""Digests that share their first half, their second half, both or neither"""


@pytest.mark.parametrize("seed", range(12))
def test_texts_are_equal_where_both_halves_of_their_digests_are(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with every pair of rows, one by one."""
    draw = np.random.default_rng(seed)
    rows = [(int(content), ("train", "validation", "test")[split]) for content, split in
            zip(draw.integers(0, 4, 9), draw.integers(0, 3, 9), strict=True)]  # fmt: skip
    wanted = draw.choice(4, 2, replace=False).tolist()
    monkeypatch.setattr(alignment, "comparison_digest", lambda text, *, key: CONTENTS[int(text)])
    monkeypatch.setattr(alignment, "record_id", lambda text, *rest: "same")
    schema = pa.schema([(name, pa.string()) for name in ("id", "text", "split", "meta")])
    writer = StoreWriter(tmp_path, kind="records", schema=schema, shard_rows=4)
    writer.append({"id": ["same"] * 9, "text": [str(c) for c, _ in rows], "split": [s for _, s in rows],
                   "meta": [None] * 9})  # fmt: skip
    writer.finish()
    found = Findings()
    sets = {"the set": [str(content) for content in wanted]}
    check_texts(found, ShardStore.open(tmp_path), evaluation_sets=sets, on_leakage="remove")
    counts = {entry.check: entry.count for entry in found.findings}
    groups = [[split for content, split in rows if content == each] for each in range(4)]
    across = sum(len(set(group)) - 1 for group in groups if group)
    assert counts.get("split leakage", 0) == across
    assert counts.get("duplicate texts", 0) == sum(len(group) - 1 for group in groups if group) - across
    leaked = [row for row, (content, split) in enumerate(rows) if split == "train" and content in wanted]
    assert np.asarray(found.rows.get("evaluation leakage", [])).tolist() == leaked


@pytest.mark.parametrize(
    ("ids", "length", "check", "severity"),
    [([], 0, "empty", "warning"), ([9], 1, "token ids", "error"), ([7], 1, "special tokens", "error"),
     ([1], 2, "token lengths", "error"), ([1, 1, 1, 1], 4, "length", "error")],
)  # fmt: skip
def test_a_text_without_tokens_is_left_out_and_all_other_faults_of_tokens_are_errors(
    ids: list[int], length: int, check: str, severity: str, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("length", pa.int32())])
    writer = StoreWriter(tmp_path, kind="tokens", schema=schema)
    writer.append({"id": ["good", "bad"], "input_ids": [[1, 2], ids], "length": [2, length]})
    writer.finish()
    found = Findings()
    tokenizer: Any = SimpleNamespace(max_length=3, vocab_size=9, pad_id=7, mask_id=8)
    check_tokens(found, ShardStore.open(tmp_path), tokenizer=tokenizer)
    (entry,) = found.findings
    assert (entry.check, entry.severity, entry.count, entry.examples) == (check, severity, 1, ("bad",))
    remedy = "They are left out of the index." if check == "empty" else "Remove the token store and run the ingestion"
    assert entry.remedy.startswith(remedy)
    assert found.rows[check].tolist() == [1]


def test_a_contract_is_one_line_with_what_there_is() -> None:
    found = Findings()
    found.add("error", "first", "It is odd.")
    found.add("warning", "second", "It is rare.", remedy="Wait.")
    found.add("error", "third", "It is wrong.", examples=["a", 7], remedy="Correct it.")
    with pytest.raises(ValidationError) as error:
        enforce({"findings": found.plain()})
    assert str(error.value) == (
        "2 data contract(s) failed, so there is no index to train on.\n- first: It is odd.\n"
        "- third: It is wrong. For example: a, 7. Correct it."
    )


# -- vectors -----------------------------------------------------------------------------------------------------------


def store(folder: Path, vectors: Any, *, shard_rows: int = 100) -> LatentStore:
    writer = StoreWriter(
        folder, kind="latents", schema=latent_store.schema(vectors.shape[1], "float32"), shard_rows=shard_rows
    )
    writer.append(latent_store.table([f"id{row}" for row in range(len(vectors))], vectors, dtype="float32"))
    writer.finish(meta={"dim": vectors.shape[1]})
    return LatentStore.open(folder)


@pytest.mark.parametrize("dim", [2, 3, 4, 8])
def test_signs_that_change_in_several_numbers_change_the_digest(dim: int) -> None:
    """Each sign is the highest bit of its number: two of them must not cancel in the sum."""
    multipliers = np.random.default_rng(0).integers(1, 2**63, size=-(-dim // 2), dtype=np.uint64) | np.uint64(1)
    signs = np.array(list(itertools.product((1, -1), repeat=dim)), np.float32)
    rows = signs * np.arange(1, dim + 1, dtype=np.float32)
    assert len(np.unique(statistics._digests(rows, multipliers))) == 2**dim


def test_equal_vectors_have_no_drift_and_no_spectrum(tmp_path: Path) -> None:
    found = statistics.measure(store(tmp_path, np.full((6, 3), 2.0), shard_rows=2), plot_rows=10, seed=0)
    assert [distance for _, distance in found.drift] == [0.0] * 3
    assert found.std_d.tolist() == [0.0] * 3
    assert found.spectrum.tolist() == [0.0] * 3
    assert found.summary()["effective_dimensions"] == 0.0


@pytest.mark.parametrize("unit", [True, False])
def test_a_latent_that_is_inverted_to_zero_stays_zero(unit: bool) -> None:
    plain = Normaliser("standard", np.zeros(3), np.ones(3), unit_norm=unit)
    assert plain.invert(np.zeros((2, 3))).tolist() == [[0.0] * 3] * 2
    assert plain.invert(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2


def test_whole_numbers_are_standardised_to_fractions() -> None:
    plain = Normaliser("standard", np.array([1.0, 2.0]), np.array([4.0, 8.0]), unit_norm=False)
    found = plain.standardise(np.array([[2, 4]]))
    assert (found.dtype, found.tolist()) == (np.float64, [[0.25, 0.25]])
    assert plain.invert(np.array([[1, -1]])).tolist() == [[5.0, -6.0]]
    assert norms(np.array([[3, 4]])).tolist() == [pytest.approx(12.5**0.5)]


def test_the_first_axes_of_whitening_are_those_of_the_largest_variance(tmp_path: Path) -> None:
    """Dimension 1 varies most, dimension 0 least; each becomes one coordinate of variance 1."""
    spread = np.array([1.0, 100.0, 10.0])
    vectors = np.random.default_rng(0).normal(size=(500, 3)) * spread + 5
    latents = store(tmp_path, vectors.astype(np.float32))
    found = fit(latents, rows=np.arange(500), config=NormaliserConfig(kind="whitening"), unit_norm=False)
    assert found.matrix_dd is not None
    weight = np.abs(found.matrix_dd * spread[:, None])
    assert weight.argmax(0).tolist() == [1, 2, 0]
    np.testing.assert_allclose(weight.max(0), 1, rtol=0.1)
    np.testing.assert_allclose(found.scale_d, 1)


@pytest.mark.parametrize("kind", ["standard", "robust", "whitening", "one_scale"])
def test_two_rows_have_the_variance_of_a_sample(kind: Any, tmp_path: Path) -> None:
    """Of 0 and 2 the mean is 1, the variance 2 and the half between the quartiles 1; one row has no variance.

    Two rows for two dimensions are too few to whiten, so they have one scale.
    """
    latents = store(tmp_path, np.array([[0.0, 0.0], [2.0, 2.0], [7.0, 7.0]]))
    found = fit(latents, rows=np.array([1, 0]), config=NormaliserConfig(kind=kind), unit_norm=True)
    assert (found.kind, found.rows, found.unit_norm) == (kind, 2, True)
    assert found.mean_d.tolist() == [1.0, 1.0]
    z = found.standardise(np.array([[2.0, 2.0]]))
    length = {"robust": 2**0.5 * 1.3489795}.get(kind, 1.0)
    assert float(np.linalg.norm(z)) == pytest.approx(length)
    one = fit(latents, rows=np.array([2]), config=NormaliserConfig(kind=kind), unit_norm=False)
    assert one.mean_d.tolist() == [7.0, 7.0]
    assert one.scale_d.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("found", "good"),
    [([0.0, 0.0], True), ([0.0, 2.0], True), ([1.0, 1.0], True), ([-0.1, 1.0], False), ([1.0, 0.9], False)],
)
def test_a_range_of_norms_begins_at_zero_or_above_and_does_not_fall(
    found: list[float], good: bool, tmp_path: Path
) -> None:
    low, high = found
    made = Normaliser("standard", np.zeros(2), np.ones(2), unit_norm=False, typical=(low, high))
    made.save(tmp_path)
    if good:
        assert Normaliser.load(tmp_path).typical == (low, high)
        return
    with pytest.raises(StoreError, match="expected an increasing range of norms"):
        Normaliser.load(tmp_path)


def test_a_normaliser_without_its_numbers_names_the_file(tmp_path: Path) -> None:
    Normaliser("standard", np.zeros(2), np.ones(2), unit_norm=False).save(tmp_path)
    place = tmp_path / "normaliser.safetensors"
    place.unlink()
    with pytest.raises(StoreError, match=r"normaliser\.safetensors: the file does not exist\. Run the validation"):
        Normaliser.load(tmp_path)
    place.mkdir()
    with pytest.raises(StoreError, match=r"normaliser\.safetensors: expected a file, found that it"):
        Normaliser.load(tmp_path)


@pytest.mark.parametrize(("seconds", "left"), [(FIRST_SECONDS - 0.001, None), (FIRST_SECONDS, 8 * FIRST_SECONDS)])
def test_an_estimate_needs_exactly_the_first_seconds(seconds: float, left: float | None) -> None:
    """Ten rows were finished in this time, and eighty are left."""
    rate = Rate(100)
    rate.advanced(10, 2.0)
    rate.advanced(20, 2.0 + seconds)
    assert rate.left(2.0 + seconds) == (None if left is None else pytest.approx(left))


def test_the_distance_of_each_example_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.zeros((4, 2))
    vectors[:, 0] = [1.0, 2.0, 4.0, 8.0]
    stored = vectors + np.array([[0, 0.1], [0, 0], [0, 2.0], [0, 0]])
    records: Any = SimpleNamespace(
        take=lambda rows: {"meta": pa.nulls(len(rows), pa.string())},
        strings=lambda name: SimpleNamespace(take=lambda rows: rows if name == "text" else None),
    )
    monkeypatch.setattr(spot_check, "load_encoder", lambda *_, **__: SimpleNamespace(encode=lambda rows: vectors[rows]))
    found = Findings()
    spot_check.check_spots(
        found, records, store(tmp_path, stored), encoder=None, located=SimpleNamespace(dtype="float32"),  # type: ignore[arg-type]
        config=ValidationConfig(spot_rows=4), seed=0,
    )  # fmt: skip
    (entry,) = found.findings
    assert entry.examples == ("id0 (0.1)", "id2 (0.5)")
    assert entry.message == (
        "2 of 4 re-encoded rows differ from the stored vectors (relative distance up to 0.5, allowed: 0.0001)."
    )


# -- clusters and figures ----------------------------------------------------------------------------------------------


def test_words_of_one_direction_are_not_different_and_a_word_without_one_is_a_cluster() -> None:
    vectors = np.concatenate([np.eye(3) * factor for factor in (1, 2, 5)]).astype(np.float32)
    with pytest.raises(ConfigurationError, match=r"expected at most 3, .* found 4"):
        cluster(vectors, count=4, seed=0)
    found = cluster(np.concatenate([vectors, np.zeros((2, 3), np.float32)]), count=4, seed=3)
    assert found.tolist() == [0, 1, 2] * 3 + [3, 3]


def test_the_clusters_name_their_tokenizer(write_dataset: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(23, 6)).astype(np.float32)
    dataset = write_dataset(tmp_path / "data", ["w0 w1"], ["train"], token_vectors=vectors)
    given = LatentStore.open(dataset.folder("token_vectors"))
    manifest = cluster_vocabulary(
        dataset.tokenizer, given, config=TokenClustersConfig(count=2), seed=0, workspace=tmp_path / "clusters"
    )
    assert manifest.kind == "token_clusters"
    assert manifest.fingerprints.keys() == {"tokenizer", "token_vectors", "parameters"}
    assert manifest.fingerprints["tokenizer"] == dataset.tokenizer.fingerprint
    assert manifest.fingerprints["token_vectors"] == given.manifest.fingerprint


def test_no_texts_are_a_figure_without_bars_above_zero() -> None:
    (bars,) = figures.length_histogram(np.zeros(0, np.int64)).data
    assert (list(bars.x), list(bars.y)) == ([0], [0])
    (bars,) = figures.length_histogram(np.array([2])).data
    assert (list(bars.x), list(bars.y)) == ([0, 1, 2], [0, 0, 1])
