"""Clusters, token vectors, token states, images and exports: what is computed, what is refused, and in which words."""

from __future__ import annotations

import copy
import dataclasses
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.findings import Finding, Findings
from mm_ldlm.extras.layout.reading import LISTS, Folder
from PIL import Image

from mm_ldlm.core.errors import EncoderError, FingerprintError, StoreError
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.latents import checks, token_vectors
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig, TokenClustersConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.extras.layout.export import write_layout
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.ccdd.token_states import TokenStatesConfig, embed_tokens
from mm_ldlm.families.hdlm import token_clusters
from mm_ldlm.families.images import store as images
from mm_ldlm.families.images.decoding import ImageLimits, digest
from mm_ldlm.families.images.store import ImagesConfig

# -- clusters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "numbered"),
    [([2, 0, 1, 2], [0, 1, 2, 0]), ([1, 2, 0, 0], [0, 1, 2, 2]), ([3, 3, 1, 3], [0, 0, 1, 0]),
     ([0, 1, 2, 1], [0, 1, 2, 1])],
)  # fmt: skip
def test_clusters_are_numbered_in_the_order_of_their_first_words(
    labels: list[int], numbered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever numbers k-means gave them, and whichever were lost; it receives directions."""
    asked: list[Any] = []

    def kmeans(directions: Any, count: int, **options: Any) -> Any:
        asked.append((directions, count, options.pop("rng").integers(0, 2**40), options))
        return None, np.array(labels)

    monkeypatch.setattr(token_clusters, "kmeans2", kmeans)
    vectors = np.array([[2.0, 0], [0, 3.0], [-5.0, 0], [0, -0.5]], np.float32)
    found = token_clusters.cluster(vectors, count=4, seed=11)
    assert (found.tolist(), found.dtype) == (numbered, np.int32)
    ((directions, count, drawn, options),) = asked
    np.testing.assert_array_equal(directions, np.sign(vectors))
    assert (count, options) == (4, {"iter": 100, "minit": "++"})
    assert drawn == np.random.default_rng(11).integers(0, 2**40)


def test_the_store_of_clusters_counts_those_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clusters were asked for, and one lost all its words; [PAD] and [MASK] are the ids 1 and 3."""
    writer = StoreWriter(tmp_path / "v", kind="latents", schema=latent_store.schema(2, "float32"))
    writer.append(latent_store.table(list("abcdef"), np.arange(12.0).reshape(6, 2), dtype="float32"))
    writer.finish(fingerprints={"tokenizer": "t"}, meta={"dim": 2})
    vectors = LatentStore.open(tmp_path / "v")
    monkeypatch.setattr(token_clusters, "kmeans2", lambda *_, **__: (None, np.array([2, 0, 2, 2])))
    tokenizer: Any = SimpleNamespace(vocab_size=6, pad_id=1, mask_id=3, fingerprint="t", token=lambda i: f"w{i}")
    made = token_clusters.cluster_vocabulary(
        tokenizer, vectors, config=TokenClustersConfig(count=3), seed=0, workspace=tmp_path / "c"
    )
    assert made.meta["clusters"] == 2
    assert made.meta["sizes"] == [3, 1]
    found = ShardStore.open(tmp_path / "c", "token_clusters").table(slice(None)).to_pydict()
    assert found == {"id": [f"w{i}" for i in range(6)], "value": [[0], [-1], [1], [-1], [0], [0]]}


# -- token vectors and token states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [(), (1, 3), (2,)])
def test_token_vectors_are_those_of_plain_tokens_or_the_first_bad_one_is_named(
    bad: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, done = ["a", "##b", "▁", "▁c▁d"], list[Any]()

    def encode(texts: list[str]) -> Any:
        done.append(texts)
        found = np.arange(8.0).reshape(4, 2)
        found[list(bad), 0] = np.nan
        return found

    loaded = SimpleNamespace(encode=encode, verify=lambda: done.append("verified"))
    located = SimpleNamespace(fingerprint="f")
    monkeypatch.setattr(token_vectors, "locate_encoder", lambda config, *, expected: done.append(expected) or located)
    monkeypatch.setattr(
        token_vectors, "load_encoder", lambda config, *, located: done.append((config, located)) or loaded
    )
    tokenizer: Any = SimpleNamespace(fingerprint="t", vocab_size=4, token=tokens.__getitem__)
    if bad:
        with pytest.raises(EncoderError) as error:
            token_vectors.embed_vocabulary(tokenizer, encoder="e", workspace=tmp_path)  # type: ignore[arg-type]
        assert str(error.value) == (
            f"expected finite token vectors, found NaN or infinity for the token {tokens[bad[0]]!r}. Set "
            "model.token_vectors to 'random', or encode in float32."
        )
        return
    made = token_vectors.embed_vocabulary(tokenizer, encoder="e", workspace=tmp_path)  # type: ignore[arg-type]
    assert done == [None, ("e", located), ["a", "b", "▁", "c d"], "verified"]
    assert made == Manifest(
        kind="latents", rows=4, shards=made.shards, fingerprints={"tokenizer": "t", "encoder": "f"}, meta={"dim": 2}
    )
    made.write(tmp_path)
    found = LatentStore.open(tmp_path)
    assert (found.ids(slice(None)), found.take(slice(None)).tolist()) == (tokens, [[0, 1], [2, 3], [4, 5], [6, 7]])


def test_everything_that_changed_since_the_token_states_were_made_is_named(pristine: Any, tmp_path: Path) -> None:
    def run(records: Any, tokens: Any, **config: Any) -> Manifest:
        return embed_tokens(
            records, tokens, pristine.tokenizer, encoder=pristine.encoder, config=TokenStatesConfig(**config),
            workspace=tmp_path,
        )  # fmt: skip

    made = run(pristine.records, pristine.tokens)
    others = []
    for store in (pristine.records, pristine.tokens):
        other = copy.copy(store)
        other.manifest = dataclasses.replace(other.manifest, meta={"other": 1})
        others.append(other)
    with pytest.raises(FingerprintError) as error:
        run(*others, threads=2)
    assert str(error.value) == (
        f"{tmp_path} contains token states that were made with other records, tokens, parameters. Nothing was changed. "
        "Restore the earlier settings, or remove the directory to compute all states again."
    )
    assert Manifest.read(tmp_path) == made


def test_tokens_that_are_not_those_of_the_encoder_are_shown_side_by_side() -> None:
    text = token_states._misaligned("e", "r7", np.array([5, 6, 7, 8, 9]), np.array([1, 2]))
    assert text.startswith(
        "encoder 'e': expected one state for each token of the project's tokenizer, but in record r7 the tokenizer has "
        "5 tokens (first ids [5, 6, 7, 8]) and the encoder 2 ([1, 2]). Token states need the tokenizer of the encoder: "
        "set tokenizer.path to the encoder's "
    )


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_made_smaller_with_the_filter_of_lanczos(channels: Any) -> None:
    """An edge overshoots on both sides, which a filter without negative weights does not do."""
    pixels = np.full((24, 16, channels), 60, np.uint8)
    pixels[12:] = 190
    found = images.resize(pixels, ImagesConfig(height=12, width=8, channels=channels))
    assert (found.shape, found.dtype) == ((12, 8, channels), np.float32)
    assert found.min() < 60 / 255 < 190 / 255 < found.max()
    picture = Image.fromarray(pixels[:, :, 0])
    by_hand = np.asarray(picture.resize((8, 12), Image.Resampling.LANCZOS), np.float64) / 255
    np.testing.assert_allclose(found, np.repeat(by_hand[:, :, None], channels, 2), atol=1e-6)


def test_an_image_that_changed_is_refused_with_both_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.zeros((2, 2, 1), np.uint8)
    limits, asked = ImageLimits(max_bytes=77, max_pixels=5), list[Any]()
    monkeypatch.setattr(images, "read_image", lambda reference, *, limits: asked.append(limits) or pixels)
    meta = json.dumps({"image": {"file": "x.png", "digest": "d" * 32}})
    size = ImagesConfig(height=2, width=2, channels=1)
    with pytest.raises(StoreError) as error:
        images._vector(None, "r7", meta, size, limits)  # type: ignore[arg-type]
    assert str(error.value) == (
        f"record r7: expected an image with the digest {'d' * 32}, found {digest(pixels)}: the image changed after "
        "ingestion. Restore it, or run `kedro run --pipelines=ingestion,embedding,validation`."
    )
    assert asked == [limits]


# -- exports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["new", "new.zip"])
@pytest.mark.parametrize("empty", [True, False])
def test_an_export_without_latents_lists_none_and_takes_the_place_of_an_empty_folder(
    name: str, empty: bool, pristine: Any, tmp_path: Path
) -> None:
    if empty:
        (tmp_path / name).mkdir()
    counts = write_layout(tmp_path / name, pristine.records, tokenizer=pristine.tokenizer, latents=None)
    assert (tmp_path / name).is_file() == (name == "new.zip") == zipfile.is_zipfile(tmp_path / name)
    with Folder(tmp_path / name) as folder:
        for split, path in LISTS.items():
            listed = json.loads(folder.read(path))
            assert len(listed) == counts[split]
            assert {key for item in listed for key in item} == {"id", "text_path", "token_path", "source", "meta"}
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_export_with_latents_lists_them(pristine: Any, tmp_path: Path) -> None:
    write_layout(tmp_path / "x", pristine.records, tokenizer=pristine.tokenizer, latents=pristine.latents)
    listed = [item for path in LISTS.values() for item in json.loads((tmp_path / "x" / path).read_text())]
    ids = pristine.records.strings("id").take(slice(None))
    vectors = dict(zip(ids, pristine.latents.take(slice(None)), strict=True))
    assert len(listed) == 230
    for item in listed:
        np.testing.assert_array_equal(np.load(tmp_path / "x" / item["latent_path"]), vectors[item["id"]])


# -- the form of the latents -------------------------------------------------------------------------------------------


def test_latents_of_another_form_are_described_with_what_to_do(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "l", kind="latents", schema=latent_store.schema(3, "float16"))
    writer.append(latent_store.table(["a", "b"], np.ones((2, 3)), dtype="float16"))
    writer.finish(meta={"dim": 5})
    found, located = Findings(), SimpleNamespace(dim=4)
    store = ShardStore.open(tmp_path / "l")
    assert checks._check_shapes(found, store, located=located, extraction=ExtractConfig())  # type: ignore[arg-type]
    choose = "Choose the encoder (and encoder.truncate_dim) of the stored vectors, or embed again."
    assert found.findings == [
        Finding(severity="error", check="dimension", count=2, remedy=choose,
                message="the encoder has dimension 4, but the stored vectors have 3 dimensions."),
        Finding(severity="error", check="dimension", count=2, remedy=choose,
                message="the manifest has dimension 5, but the stored vectors have 3 dimensions."),
        Finding(severity="error", check="dtype", count=2,
                remedy="Set embedding.dtype to the stored type, or embed again.",
                message="the vectors are stored as float16, but embedding.dtype is float32."),
    ]  # fmt: skip


def test_a_damaged_store_is_described_with_what_to_do(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, kind="images", schema=pa.schema([("id", pa.string())]), shard_rows=1)
    writer.append({"id": list("abcdefg")})
    writer.finish()
    for place in sorted(tmp_path.glob("part-*.arrow"))[:6]:
        content = bytearray(place.read_bytes())
        content[-3] ^= 1
        place.write_bytes(content)
    found = Findings()
    checks._check_bytes(found, ShardStore.open(tmp_path), checksums=True)
    changed = found.findings[0]
    assert changed == Finding(
        severity="error", check="checksum", count=6, examples=tuple(f"part-{n:06d}.arrow" for n in range(5)),
        message=f"images: 6 of 7 shards in {tmp_path} changed after they were written.",
        remedy="Run the pipeline that writes this store again: it finds damaged shards by their checksum and writes "
        "them again. If the error returns, check the disk.",
    )  # fmt: skip


def test_an_encoder_without_states_is_refused_in_full(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_states, "locate_encoder", lambda config: SimpleNamespace(name="e", fingerprint="f"))
    monkeypatch.setattr(token_states, "load_encoder", lambda config, *, located: object())
    with pytest.raises(EncoderError) as error:
        embed_tokens(
            pristine.records, pristine.tokens, pristine.tokenizer, encoder=parse_encoder({}),
            config=TokenStatesConfig(), workspace=tmp_path / "s",
        )  # fmt: skip
    assert str(error.value) == (
        "encoder 'e' returns one vector for a text and no state for each token, which the objective reads. Choose an "
        "encoder of the registry (docs/encoders.md), or an objective without token states."
    )
