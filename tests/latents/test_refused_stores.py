"""Stores that lack something or do not fit together are refused or made again."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mm_ldlm.core.errors import ConfigurationError, EncoderError, StoreError
from mm_ldlm.data.latents import extract, hosts, worker
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.latents.token_vectors import embed_vocabulary
from mm_ldlm.data.store import Manifest, StoreWriter
from mm_ldlm.extras.layout import export as layout
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.ccdd.token_states import TokenStatesConfig, embed_tokens
from mm_ldlm.families.images import store as images
from mm_ldlm.families.images.decoding import ImageLimits

# -- the extraction ----------------------------------------------------------------------------------------------------


def test_a_single_host_that_is_not_the_first_has_nothing_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "launch_config", lambda *_, **__: None)
    with pytest.raises(ConfigurationError, match=r"expected several hosts, .*found 1\. Set NNODES"):
        extract.extract_with_first_host(encoder=None, config=ExtractConfig(), workspace=tmp_path)  # type: ignore[arg-type]


def test_a_shard_that_nobody_wrote_is_an_error(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 3):
        (data.root / "latents" / f"part-{number:06d}.arrow").unlink()
    real = worker.encode_shards
    monkeypatch.setattr(worker, "encode_shards", lambda plan, numbers, **how: real(plan, numbers[:1], **how))
    with pytest.raises(StoreError, match="shard 3 was not written although every process succeeded"):
        data.extract()
    assert not Manifest.exists(data.root / "latents")


@pytest.mark.parametrize("change", [{"rows": 49}, {"name": "part-000001.arrow"}, {"bytes": 7}, {"sha256": "0" * 64}])
def test_a_record_of_another_shard_is_not_trusted(change: dict[str, Any], data: Any, files: Any) -> None:
    """The sidecar of shard 2 describes another file than the one beside it."""
    before = files(data.root / "latents")
    manifest = Manifest.read(data.root / "latents")
    shards = list(manifest.shards)
    shards[2] = dataclasses.replace(shards[2], **change)
    folder = data.root / "latents" / ".extract"
    folder.mkdir()
    for number, shard in enumerate(shards):
        (folder / f"part-{number:06d}.json").write_text(json.dumps(dataclasses.asdict(shard)))
    (folder / "plan.json").write_text(json.dumps({"fingerprints": manifest.fingerprints}))
    (data.root / "latents" / "manifest.json").unlink()
    made: list[int] = []
    real = worker._write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_write", lambda plan, number, *rest: made.append(number) or real(plan, number, *rest))
        data.extract()
    assert made == [2]
    assert files(data.root / "latents") == before


def test_an_encoder_that_computes_elsewhere_takes_no_engine_and_another_encoder_no_plan() -> None:
    with pytest.raises(ConfigurationError, match=r"'embedding\.engine': expected local, because this encoder computes"):
        worker._device_of_tasks(None, gpus=4)
    devices = [worker._device_of_tasks(wanted, gpus=gpus) for wanted in ("auto", "cpu") for gpus in (0, 4)]
    assert devices == ["cpu", "cuda", "cpu", "cpu"]
    assert worker._device_of_tasks("cuda", gpus=1) == "cuda"
    plan: Any = SimpleNamespace(encoder=SimpleNamespace(name="e"), fingerprints={"encoder": "mine"})
    worker._refuse_other_encoder(plan, SimpleNamespace(fingerprint="mine"))  # type: ignore[arg-type]
    with pytest.raises(EncoderError, match=r"expected fingerprint mine \(the plan\), found other"):
        worker._refuse_other_encoder(plan, SimpleNamespace(fingerprint="other"))  # type: ignore[arg-type]


# -- other stores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["missing", "changed", "intact"])
def test_a_damaged_shard_of_token_states_is_made_again(
    harm: str, pristine: Any, tmp_path: Path, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_states, "SHARD_TOKENS", 900)

    def run() -> None:
        embed_tokens(
            pristine.records, pristine.tokens, pristine.tokenizer, encoder=pristine.encoder,
            config=TokenStatesConfig(), workspace=tmp_path,
        )  # fmt: skip

    real, made = token_states._encode, []
    monkeypatch.setattr(token_states, "_encode", lambda *given, **how: made.append(given[4]) or real(*given, **how))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    before, whole = files(tmp_path), list(made)
    assert len(whole) > 2
    shard = tmp_path / "part-000001.arrow"
    if harm == "missing":
        shard.unlink()
    elif harm == "changed":
        shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    made.clear()
    run()
    assert made == ([] if harm == "intact" else whole[1:2])
    total = pristine.tokens.ints("length").take(slice(None)).sum()
    assert len(latent_store.ShardStore.open(tmp_path, token_states.KIND)) == total
    after = {name: content for name, content in files(tmp_path).items() if name.endswith(".arrow")}
    assert after == {name: content for name, content in before.items() if name.endswith(".arrow")}


def test_texts_that_the_token_store_cuts_have_the_states_of_their_first_tokens() -> None:
    """The encoder reads more of a text than the token store keeps."""
    lengths, ids = [2, 3], [np.arange(4), np.arange(3)]
    encoder: Any = SimpleNamespace(
        token_states=lambda texts: [
            token_states_of(ids[int(text)], 10.0 * (int(text) + 1)) for text in texts
        ]
    )  # fmt: skip
    tokenizer: Any = SimpleNamespace(
        encode_base=lambda texts: (
            np.concatenate([ids[int(text)] for text in texts]),
            np.cumsum([0, *(len(ids[int(text)]) for text in texts)]),
        )
    )
    records: Any = SimpleNamespace(table=lambda rows: pa.table({"id": ["a", "b"][rows], "text": ["0", "1"][rows]}))
    tokens: Any = SimpleNamespace(ints=lambda name: SimpleNamespace(take=lambda rows: np.array(lengths)[rows]))
    found = token_states._encode(encoder, records, tokens, tokenizer, 0, 2, name="e")
    assert found[:, 0].tolist() == [10, 11, 20, 21, 22]
    ids[1] = np.array([0, 1, 9])
    swapped: Any = SimpleNamespace(token_states=lambda texts: [token_states_of(np.arange(4), 0.0)] * 2)
    with pytest.raises(EncoderError, match=r"in record b the tokenizer has 3 tokens .* and the encoder 4"):
        token_states._encode(swapped, records, tokens, tokenizer, 0, 2, name="e")
    ids[0] = np.array([0, 1, 3, 2])
    with pytest.raises(EncoderError, match=r"in record a the tokenizer has 4 tokens \(first ids \[0, 1, 3, 2\]\)"):
        token_states._encode(swapped, records, tokens, tokenizer, 0, 2, name="e")


def token_states_of(ids: Any, first: float) -> Any:
    return SimpleNamespace(ids_n=ids, states_nd=np.arange(len(ids))[:, None] + np.array([[first, 0.5]]))


def test_no_records_have_no_token_states(pristine: Any, tmp_path: Path, new_records: Any) -> None:
    records, tokens = new_records(tmp_path / "r", []), copy.copy(pristine.tokens)
    tokens.ints = lambda name: SimpleNamespace(take=lambda rows: np.zeros(0, np.int64))
    with pytest.raises(EncoderError, match="expected records to compute token states of, found none"):
        embed_tokens(
            records, tokens, pristine.tokenizer, encoder=pristine.encoder, config=TokenStatesConfig(),
            workspace=tmp_path / "s",
        )  # fmt: skip


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_token_without_a_finite_vector_is_named(bad: float, tmp_path: Path) -> None:
    def encode(texts: Any) -> Any:
        found = np.ones((len(texts), 2))
        found[texts.index("dog"), 1] = bad
        return found

    encoder: Any = SimpleNamespace(
        locate=lambda expected: SimpleNamespace(fingerprint="f"),
        load=lambda located, device: SimpleNamespace(encode=encode),
    )
    tokenizer: Any = SimpleNamespace(fingerprint="t", vocab_size=3, token=["cat", "##dog", "[PAD]"].__getitem__)
    with pytest.raises(EncoderError, match="found NaN or infinity for the token '##dog'"):
        embed_vocabulary(tokenizer, encoder=encoder, workspace=tmp_path)


def test_an_image_that_is_no_longer_readable_names_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(reference: Any, *, limits: Any) -> Any:
        raise images.UnusableImage("image", "the file does not exist")

    monkeypatch.setattr(images, "reference_of", lambda meta: {"digest": "d"})
    monkeypatch.setattr(images, "read_image", read)
    size = images.ImagesConfig(height=2, width=2, channels=1)
    with pytest.raises(StoreError, match="record r7: its image is no longer readable: the file does not exist"):
        images._vector(None, "r7", "{}", size, ImageLimits())  # type: ignore[arg-type]


def test_an_export_takes_the_place_of_an_empty_folder_and_refuses_rows_of_other_records(
    pristine: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    layout.write_layout(tmp_path / "empty", pristine.records, tokenizer=pristine.tokenizer, latents=pristine.latents)
    assert len(list((tmp_path / "empty").rglob("*.npy"))) >= 230
    latents = copy.copy(pristine.latents)
    ids = latents.ids(slice(None))
    ids[100], ids[101] = ids[101], ids[100]
    latents.ids = lambda window: ids[window]
    with pytest.raises(StoreError, match=rf"the row of record {ids[101]} has id {ids[100]}\. Run the validation"):
        layout.write_layout(tmp_path / "x", pristine.records, tokenizer=pristine.tokenizer, latents=latents)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="expected a new or empty folder"):
        layout.write_layout(tmp_path / "file", pristine.records, tokenizer=pristine.tokenizer, latents=None)


@pytest.mark.parametrize(
    ("change", "message"), [("[]", "expected a mapping"), ({"format_version": 2}, "format 1, found 2")]
)
def test_a_normaliser_of_another_format_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    Normaliser("standard", np.zeros(2), np.ones(2), unit_norm=False).save(tmp_path)
    path = tmp_path / "normaliser.json"
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match=message):
        Normaliser.load(tmp_path)


def test_rows_of_a_store_are_float32_in_the_requested_order(tmp_path: Path) -> None:
    schema = latent_store.schema(2, "float16")
    vectors = np.arange(12.0).reshape(6, 2)
    writer = StoreWriter(tmp_path, kind="latents", schema=schema, shard_rows=4)
    writer.append(latent_store.table(list("abcdef"), vectors, dtype="float16"))
    writer.finish(meta={"dim": 2})
    found = LatentStore.open(tmp_path)
    for read in (found.take, found.__getitem__):
        rows = read([5, 0, 4])
        assert (rows.dtype, rows.tolist()) == (np.float32, vectors[[5, 0, 4]].tolist())
    assert (found.dtype, found.dim) == ("float16", 2)
    for row in (0, 4, -1, np.int64(5)):
        assert (found[row].dtype, found[row].tolist()) == (np.float32, vectors[row].tolist())
    assert found[1:5:2].tolist() == vectors[1:5:2].tolist()
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), again.take([3]).dtype) == (LatentStore, np.float32), "also in a worker process"
