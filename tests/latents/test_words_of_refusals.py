"""Refusals of the latents in full: each value at its place, what was expected, what was found and what to do."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.plan import Plan

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, EncoderError, FingerprintError, MMLDLMError, StoreError
from mm_ldlm.data.corpus.record import DECODED, RECORD_SCHEMA
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.latents import extract as extraction
from mm_ldlm.data.latents import hosts, worker
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig
from mm_ldlm.data.latents.normaliser_fit import fit
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter, write_shard
from mm_ldlm.extras.layout import export as layout
from mm_ldlm.extras.own_vectors.latents import take_over
from mm_ldlm.extras.own_vectors.store import VectorStore, vector_table
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.ccdd.token_states import TokenStatesConfig, embed_tokens
from mm_ldlm.families.hdlm import token_clusters
from mm_ldlm.families.images import store as images


def said(kind: type[MMLDLMError], call: Any) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def latents_of(folder: Path, vectors: Any, *, ids: list[str] | None = None, **meta: Any) -> LatentStore:
    schema = latent_store.schema(vectors.shape[1], "float32")
    writer = StoreWriter(folder, kind="latents", schema=schema)
    writer.append(latent_store.table(ids or [f"r{row}" for row in range(len(vectors))], vectors, dtype="float32"))
    writer.finish(meta=meta)
    return LatentStore.open(folder)


# -- the extraction ----------------------------------------------------------------------------------------------------


def test_texts_that_were_decoded_are_counted_in_all_shards(tmp_path: Path, pristine: Any) -> None:
    table = pristine.records.take(range(7)).to_pydict()
    table["meta"] = [json.dumps({DECODED: True}), None] * 3 + [json.dumps({DECODED: True})]
    writer = StoreWriter(tmp_path / "r", kind="records", schema=RECORD_SCHEMA, shard_rows=2)
    writer.append(table)
    writer.finish()
    records = ShardStore.open(tmp_path / "r")
    text = said(StoreError, lambda: extraction.extract(
        records, encoder=pristine.encoder, config=pristine.extraction, workspace=tmp_path / "w"
    ))  # fmt: skip
    assert text == (
        "expected texts to embed, found 4 of 7 that were decoded from stored tokens: spaces and capitals of the "
        "original texts are unknown, and so are their embeddings. Use the stored latents (the source's 'latents', and "
        "encoder.kind: precomputed), or an objective without latents."
    )
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("records", "other records"), ("parameters", "other embedding parameters"),
        ("encoder", "another encoder (or other weights, tokenizer, prompt, length, dtype)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("missing", [True, False])
def test_a_store_of_other_inputs_is_refused_with_both_fingerprints(name: str, what: str, missing: bool) -> None:
    wanted = {"records": "r1", "encoder": "e1", "parameters": "p1"}
    plan: Any = SimpleNamespace(workspace=Path("/w"), fingerprints=wanted)
    extraction._refuse_other_inputs(plan, dict(wanted))
    found = {key: value for key, value in {**wanted, name: "x"}.items() if not missing or key != name}
    assert said(FingerprintError, lambda: extraction._refuse_other_inputs(plan, found)) == (
        f"/w contains latents of {what}: expected {name} {wanted[name]}, found {None if missing else 'x'}. Nothing was "
        "changed. Restore the earlier settings, or remove the directory to embed everything again."
    )


def test_a_shard_that_was_not_written_is_named(tmp_path: Path) -> None:
    plan = Plan(
        records=tmp_path, workspace=tmp_path, rows=10, shard_rows=4, dtype="float32", threads=1, non_finite="stop",
        encoder=parse_encoder({}), fingerprints={},
    )  # fmt: skip
    plan.progress_folder.mkdir()
    shard = write_shard(tmp_path, "part-000000.arrow", latent_store.table(["a"], np.ones((1, 2)), dtype="float32"))
    plan.sidecar(0).write_text(json.dumps(dataclasses.asdict(shard)))
    assert said(StoreError, lambda: extraction._commit(plan, SimpleNamespace(dim=2))) == (  # type: ignore[arg-type]
        f"{tmp_path}: shard 1 was not written although every process succeeded. Run the embedding pipeline again."
    )


def test_devices_that_tasks_cannot_have_are_refused_in_full() -> None:
    words = {
        (None, 4): "parameter 'embedding.engine': expected local, because this encoder computes elsewhere and several "
        "requests are under way already, found an engine that sends tasks to other hosts. Remove the engine.",
        ("cuda:1", 4): "parameter 'encoder.device': expected auto, cpu or cuda, because the engine assigns the GPUs, "
        "found cuda:1.",
        ("cuda", 0): "parameter 'encoder.device': expected auto or cpu, because the nodes of the engine have no GPU, "
        "found cuda. Start nodes with GPUs, or change the device.",
    }  # fmt: skip
    for (wanted, gpus), expected in words.items():
        assert said(ConfigurationError, lambda w=wanted, g=gpus: worker._device_of_tasks(w, gpus=g)) == expected
    plan: Any = SimpleNamespace(encoder=SimpleNamespace(name="e"), fingerprints={"encoder": "mine"})
    other: Any = SimpleNamespace(fingerprint="other")
    assert said(EncoderError, lambda: worker._refuse_other_encoder(plan, other)) == (
        "encoder 'e': expected fingerprint mine (the plan), found other. Its files changed since the run started, or "
        "differ between hosts: use one copy."
    )


def test_an_engine_and_hosts_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NNODES": "3", "NODE_RANK": "1", "MASTER_ADDR": "head"}.items():
        monkeypatch.setenv(name, value)
    config = parse(ExtractConfig, {"engine": {"kind": "ray"}}, at="embedding")
    assert said(ConfigurationError, lambda: hosts.launch_config(config, parse_encoder({}), workspace=tmp_path)) == (
        "parameter 'embedding.engine': expected local on 3 hosts (NNODES), found ray, which has nodes of its own. Run "
        "the command on one host: `NNODES=1 kedro run`."
    )
    monkeypatch.setenv("NNODES", "1")
    local = parse(ExtractConfig, {}, at="embedding")
    assert said(ConfigurationError, lambda: extraction.extract_with_first_host(
        encoder=parse_encoder({}), config=local, workspace=tmp_path
    )) == (
        "expected several hosts, because this one is not the first (NODE_RANK), found 1. Set NNODES on every host."
    )  # fmt: skip
    engine = {"kind": "ray"}
    for change, words in (
        ({"processes": 2}, "'embedding.processes': expected 0, because the engine ray decides how many tasks run at a "
         "time, found 2"),
        ({"launch": {"nodes": 3}}, "'embedding.launch.nodes': expected 1, because the engine ray has nodes of its own, "
         "found 3"),
    ):  # fmt: skip
        text = said(ConfigurationError, lambda c=change: parse(ExtractConfig, {"engine": engine, **c}, at="embedding"))
        assert words in text


# -- given vectors and other stores ------------------------------------------------------------------------------------


def test_given_vectors_are_refused_in_full(pristine: Any, tmp_path: Path) -> None:
    records = pristine.records
    ids = records.strings("id").take(slice(None))
    encoder = parse_encoder({"kind": "precomputed", "name": "mine", "dim": 2, "normalised": False})

    def stored(name: str, ids: list[str], vectors: Any) -> ShardStore:
        (tmp_path / name).mkdir()
        shard = write_shard(tmp_path / name, "part-000000.arrow", vector_table(ids, list(vectors), dim=2))
        VectorStore(2, tmp_path / name).commit([shard], records=records.manifest)
        return ShardStore.open(tmp_path / name, "vectors")

    def take(vectors: Any, **config: Any) -> str:
        return said(MMLDLMError, lambda: take_over(
            records, vectors, encoder=encoder, config=ExtractConfig(**config), workspace=tmp_path / "l"
        ))  # fmt: skip

    assert take(None) == (
        "expected the vectors of the 230 records, because encoder.kind is 'precomputed', found none. Run `kedro run "
        "--pipeline=ingestion` with sources that contain vectors."
    )
    large = np.ones((230, 2), np.float32)
    large[[5, 7, 100]] = 1e6
    good = stored("good", ids, large)
    assert take(good, dtype="float16") == (
        f"3 of 230 given vectors have a number beyond float16 (first record: {ids[5]}). Set embedding.dtype to "
        "float32, or embedding.non_finite to quarantine."
    )
    assert take(stored("swapped", [ids[1], ids[0], *ids[2:]], large)) == (
        f"{tmp_path / 'swapped'}: the ids of rows 0 to 229 are not those of the records. Run the ingestion pipeline "
        "again."
    )
    other = copy.copy(good)
    other.manifest = dataclasses.replace(good.manifest, fingerprints={"records": "x"})
    assert take(other) == (
        f"{tmp_path / 'good'} contains the vectors of other records (230 rows, the records have 230). Run the "
        "ingestion pipeline again."
    )
    take_over(records, good, encoder=encoder, config=ExtractConfig(), workspace=tmp_path / "l")
    assert take(good, shard_rows=7) == (
        f"{tmp_path / 'l'} contains latents of other records, another encoder or other parameters. Nothing was "
        "changed. Restore the earlier settings, or remove the directory to make the latents again."
    )


def test_a_store_of_another_dimension_is_refused_in_full(tmp_path: Path) -> None:
    latents_of(tmp_path, np.ones((2, 3)), dim=3)
    manifest = Manifest.read(tmp_path)
    dataclasses.replace(manifest, meta={"dim": 5}).write(tmp_path)
    assert said(StoreError, lambda: LatentStore.open(tmp_path)) == (
        f"{tmp_path}: expected dimension 5 (the manifest), found 3 in the shards. Run the embedding pipeline again."
    )


def test_fewer_words_than_clusters_are_refused_in_full() -> None:
    vectors = np.array([[1, 0], [2, 0], [0, 1], [0, 0]], np.float32)
    assert said(ConfigurationError, lambda: token_clusters.cluster(vectors, count=4, seed=0)) == (
        "parameter 'token_clusters.count': expected at most 3, the words with different vectors, found 4. Lower it, or "
        "use a larger vocabulary."
    )


def test_token_states_that_are_not_finite_are_refused_in_full(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second shard; the first one is kept."""
    monkeypatch.setattr(token_states, "SHARD_TOKENS", 900)

    def encode(*given: Any, name: str) -> Any:
        assert name == "minilm"
        first, last = given[4:6]
        found = np.ones((int(pristine.tokens.ints("length").take(slice(first, last)).sum()), 24))
        found[-1, 5] = 1e6 if first else 1.0
        return found

    monkeypatch.setattr(token_states, "_encode", encode)
    cuts = token_states._cuts(token_states.starts(pristine.tokens.ints("length").take(slice(None))))
    assert said(EncoderError, lambda: embed_tokens(
        pristine.records, pristine.tokens, pristine.tokenizer, encoder=pristine.encoder, config=TokenStatesConfig(),
        workspace=tmp_path,
    )) == (
        f"encoder 'minilm' returned numbers that are not finite in float16 for tokens of the records {cuts[1][0]} to "
        f"{cuts[1][1] - 1}. Check these texts, or set token_states.dtype to 'float32'."
    )  # fmt: skip
    assert sorted(path.name for path in (tmp_path / ".extract").iterdir()) == ["part-000000.json", "plan.json"]


def test_a_record_without_an_image_is_refused_in_full() -> None:
    records: Any = SimpleNamespace(directory=Path("/records"))
    size, limits = images.ImagesConfig(height=2, width=2, channels=1), images.ImageLimits()
    assert said(StoreError, lambda: images._vector(records, "r7", None, size, limits)) == (
        "/records: record r7 has no image, but the objective reads images. Choose a source with images (digits, "
        "image_folder, webdataset), or an objective without them."
    )


def test_exports_are_refused_in_full(pristine: Any, tmp_path: Path) -> None:
    records, tokenizer = pristine.records, pristine.tokenizer
    few = latents_of(tmp_path / "few", np.ones((3, 2)))
    assert said(StoreError, lambda: layout.export_latents(tmp_path / "x", records, few)) == (
        "expected as many rows of latents as records, found 3 and 230. Use the latents of these records."
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert said(
        StoreError, lambda: layout.write_layout(tmp_path / "full", records, tokenizer=tokenizer, latents=None)
    ) == (
        f"{tmp_path / 'full'}: expected a new or empty folder, or a new .zip file, for the export, found one with "
        "contents. Nothing was changed. Remove it, or choose another place: `--params export.path=PLACE`."
    )
    assert said(StoreError, lambda: layout.write_layout(tmp_path / "x", records, tokenizer=tokenizer, latents=few)) == (
        f"{tmp_path / 'few'}: the latents belong to other records than {records.directory}. Run `kedro run "
        "--pipeline=embedding` first."
    )


def test_a_normaliser_is_refused_in_full(tmp_path: Path) -> None:
    latents = latents_of(tmp_path / "l", np.ones((2, 3)))
    none = np.empty(0, np.int64)
    assert said(StoreError, lambda: fit(latents, rows=none, config=NormaliserConfig(), unit_norm=False)) == (
        "expected rows to fit the normaliser on, found none: the training split of the index is empty. Add training "
        "text."
    )
    folder = tmp_path / "n"
    folder.mkdir()
    place = folder / "normaliser.json"
    assert said(StoreError, lambda: Normaliser.load(folder)) == (
        f"{place}: the file does not exist. Run the validation pipeline, which fits the normaliser."
    )
    Normaliser("standard", np.zeros(2), np.ones(2), unit_norm=False).save(folder)
    about = json.loads(place.read_text())
    again = "Run the validation pipeline again."
    for changes, words in (
        ({"format_version": 3}, f"{folder}: expected normaliser format 1, found 3. {again}"),
        ({"rows": 5}, f"{folder}: the numbers changed after they were saved. {again}"),
        ({"typical": [2, 1]}, f"{folder}: not a readable normaliser (expected an increasing range of norms, found [2, "
         f"1]). {again}"),
    ):  # fmt: skip
        place.write_text(json.dumps(about | changes))
        assert said(StoreError, lambda: Normaliser.load(folder)) == words
