"""Images of records: sources, quarantine, identity and split of captioned images, and the store of their pixels."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError, StoreError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.corpus.record import record_id
from mm_ldlm.data.corpus.sources import SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore
from mm_ldlm.families.images.decoding import ImageLimits, UnusableImage, decode, digest, digest_of, digits, read_image
from mm_ldlm.families.images.digits import NAMES
from mm_ldlm.families.images.store import ImagesConfig, resize, store_images

SPLITS = {"validation": 0.2, "test": 0.2}


def encoded(pixels: Any, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, kind)
    return file.getvalue()


def picture(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape or (6, 5, 3)).astype(np.uint8)


def run(tmp_path: Path, *sources: dict[str, Any], name: str = "out", **keys: Any) -> tuple[ShardStore, dict[str, Any]]:
    config = {"sources": list(sources), "splits": SPLITS, "progress": False, "max_bad_fraction": 1.0, **keys}
    folder, quarantine = tmp_path / name, tmp_path / f"{name}_quarantine"
    records, refused, report = ingest(
        parse(IngestionConfig, config, at="ingestion"), seed=0, workspace=folder, quarantine=quarantine
    )
    records.write(folder)
    refused.write(quarantine)
    assert report["rows_in"] == report["accepted"] + report["duplicates"] + report["quarantined"]
    return ShardStore.open(folder), report


def folder_of(tmp_path: Path, rows: list[dict[str, Any]], files: dict[str, bytes]) -> dict[str, Any]:
    folder = tmp_path / "pictures"
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "image_folder", "path": str(folder / "captions.jsonl"), "meta_columns": ["label"]}


# -- decoding -----------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_pixels_and_not_of_their_encoding() -> None:
    limits, pixels = ImageLimits(), picture(0)
    found = {digest(decode(encoded(pixels, kind), limits=limits)) for kind in ("PNG", "BMP")}
    assert found == {digest(pixels)}
    assert digest(pixels) != digest(pixels.reshape(5, 6, 3))
    assert decode(encoded(picture(0, 4, 4)), limits=limits).shape == (4, 4, 1)


def test_images_at_their_limits_are_decoded_and_every_mode_is_grey_or_rgb() -> None:
    exact = ImageLimits(max_bytes=len(encoded(picture(0))), max_pixels=30)
    assert decode(encoded(picture(0)), limits=exact).shape == (6, 5, 3)
    grey = picture(3, 4, 5)
    for mode, channels in (("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)):
        sink = io.BytesIO()
        Image.fromarray(grey).convert("RGB").convert(mode).save(sink, "PNG")
        found = decode(sink.getvalue(), limits=ImageLimits())
        assert found.shape == (4, 5, channels), mode
        if mode != "1" and mode != "P":
            assert (found == grey[:, :, None]).all(), mode
    assert (ImageLimits().max_bytes, ImageLimits().max_pixels) == (20_000_000, 30_000_000)


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_images_are_turned_upright(mode: str) -> None:
    upright = picture(0, 5, 4)[..., None] if mode != "RGB" else picture(0)
    turned = np.rot90(upright)  # orientation 6: the top of the picture is on the right side
    found = Image.fromarray(turned.squeeze() if mode != "I;16" else turned[..., 0].astype(np.uint16) * 257)
    exif, sink = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    found.save(sink, "PNG", exif=exif)
    assert (decode(sink.getvalue(), limits=ImageLimits()) == upright).all()


def test_sixteen_bits_of_grey_are_scaled_and_not_cut_off() -> None:
    grey = picture(0, 5, 4)[..., None]
    sixteen = io.BytesIO()
    Image.fromarray(grey[:, :, 0].astype(np.uint16) * 257).save(sixteen, "PNG")
    assert (decode(sixteen.getvalue(), limits=ImageLimits()) == grey).all()


@pytest.mark.parametrize(
    ("data", "limits", "reason"),
    [
        (b"not an image", {}, "broken_image"),
        (encoded(picture(0))[:60], {}, "broken_image"),
        (encoded(picture(0)), {"max_bytes": 20}, "oversized"),
        (encoded(picture(0)), {"max_pixels": 29}, "oversized"),
        (encoded(picture(0), "TIFF"), {}, "broken_image"),
        (encoded(picture(0)), {"max_bytes": len(encoded(picture(0))) - 1}, "oversized"),
    ],
)
def test_unusable_images_are_refused_with_a_reason(data: bytes, limits: dict[str, int], reason: str) -> None:
    with pytest.raises(UnusableImage) as error:
        decode(data, limits=ImageLimits(**limits))
    assert error.value.reason == reason


# -- identity and splits ------------------------------------------------------------------------------------------


def test_a_caption_of_several_images_is_kept_and_a_repeated_pair_is_a_duplicate(tmp_path: Path) -> None:
    rows = [{"image": f"{i}.png", "text": "the same caption"} for i in (0, 1, 2, 2)]
    records, report = run(tmp_path, folder_of(tmp_path, rows, {f"{i}.png": encoded(picture(i)) for i in range(3)}))
    assert (report["accepted"], report["duplicates"]) == (3, 1)
    table = records.take(slice(None)).to_pylist()
    assert len({row["id"] for row in table}) == 3
    assert all(row["id"] == record_id(row["text"], image=digest_of(row["meta"])) for row in table)


def test_the_image_decides_the_split_and_no_image_is_in_two(tmp_path: Path) -> None:
    files = {f"{i}.png": encoded(picture(i)) for i in range(40)}
    rows = [{"image": f"{i}.png", "text": f"{word} caption"} for word in ("one", "two", "three") for i in range(40)]
    records, _ = run(tmp_path, folder_of(tmp_path, rows, files))
    splits: dict[Any, set[str]] = {}
    for row in records.take(slice(None)).to_pylist():
        splits.setdefault(digest_of(row["meta"]), set()).add(row["split"])
    assert len(splits) == 40
    assert all(len(found) == 1 for found in splits.values())
    assert {split for found in splits.values() for split in found} == {"train", "validation", "test"}


def test_an_image_that_sources_put_into_two_splits_stays_in_the_first(tmp_path: Path) -> None:
    rows = [
        {"image": "0.png", "text": "a caption", "part": "train"},
        {"image": "0.png", "text": "another", "part": "test"},
        {"image": "1.png", "text": "a caption", "part": "test"},
    ]
    source = folder_of(tmp_path, rows, {f"{i}.png": encoded(picture(i)) for i in range(2)})
    records, report = run(tmp_path, source | {"split_column": "part"})
    assert records.take(slice(None)).column("split").to_pylist() == ["train", "test"]
    assert report["duplicates_by_kind"] == {"image_in_train": 1}


def test_near_duplicate_removal_leaves_captions_of_images_alone(tmp_path: Path) -> None:
    rows = [{"image": f"{i}.png", "text": "a long caption that all of them share"} for i in range(3)]
    source = folder_of(tmp_path, rows, {f"{i}.png": encoded(picture(i)) for i in range(3)})
    assert run(tmp_path, source, near_duplicates={})[1]["accepted"] == 3


def test_an_interrupted_ingestion_remembers_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{i}.png": encoded(picture(i)) for i in range(12)}
    rows = [
        {"image": f"{i % 12}.png", "text": f"caption {i // 12}", "part": "train" if i < 12 else "test"}
        for i in range(24)
    ]
    source = folder_of(tmp_path, rows, files) | {"split_column": "part"}
    whole, _ = run(tmp_path, source, shard_rows=4)
    from mm_ldlm.data.corpus import ingestion

    monkeypatch.setattr(ingestion, "CHUNK_ROWS", 4)
    commits = {"left": 3}
    plain = ingestion._commit

    def failing(*arguments: Any) -> None:
        plain(*arguments)
        commits["left"] -= 1
        if not commits["left"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(ingestion, "_commit", failing)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, source, name="again", shard_rows=4)
    monkeypatch.setattr(ingestion, "_commit", plain)
    again, report = run(tmp_path, source, name="again", shard_rows=4)
    assert report["resumed_after_rows"] == 12
    assert (report["accepted"], report["duplicates_by_kind"]) == (12, {"image_in_train": 12})
    assert again.manifest.fingerprint == whole.manifest.fingerprint


# -- sources ------------------------------------------------------------------------------------------------------


def test_the_digits_have_captions_with_their_labels_and_references_to_their_pixels(tmp_path: Path) -> None:
    records, report = run(tmp_path, {"kind": "digits", "max_samples": 200})
    assert report["accepted"] == 200
    images, labels = digits()
    assert images.shape == (1797, 8, 8, 1)
    for number, row in enumerate(records.take(slice(None)).to_pylist()):
        meta = json.loads(row["meta"])
        assert meta["label"] == NAMES[labels[number]]
        assert set(meta) == {"label", "image"}, "an image is no second text of a pair"
        assert row["id"] == record_id(row["text"], image=meta["image"]["digest"])
        assert row["text"].split()[-1] == meta["label"]
        assert digest(read_image(meta["image"], limits=ImageLimits())) == meta["image"]["digest"]
    assert len(set(records.strings("text").take(slice(None)))) > 50


def test_the_captions_of_the_digits_follow_the_seed() -> None:
    config = parse(SourceConfig, {"kind": "digits"}, at="s")

    def captions(seed: int) -> list[str]:
        source = open_source(config, seed=seed, max_row_bytes=9)
        return [getattr(row, "text", "") for row in itertools.islice(source.rows(), 30)]

    assert captions(0) == captions(0) != captions(1)
    assert [open_source(config, seed=seed, max_row_bytes=9).describe()["seed"] for seed in (0, 1)] == [0, 1]


def test_bad_images_of_a_folder_are_quarantined_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encoded(picture(9)))
    rows: list[dict[str, Any]] = [
        {"image": "good.png", "text": "good", "label": "fine"},
        {"image": "missing.png", "text": "missing"},
        {"image": "../secret.png", "text": "outside"},
        {"image": str(tmp_path / "secret.png"), "text": "absolute"},
        {"image": "link.png", "text": "link"},
        {"image": "text.png", "text": "no image"},
        {"image": "large.png", "text": "large"},
        {"text": "no column"},
    ]
    files = {"good.png": encoded(picture(0)), "text.png": b"text", "large.png": encoded(picture(1, 40, 40))}
    source = folder_of(tmp_path, rows, files)
    (tmp_path / "pictures/link.png").symlink_to(tmp_path / "secret.png")
    records, report = run(tmp_path, source, images={"max_pixels": 100})
    assert report["quarantined_by_reason"] == {
        "missing_file": 1, "unsafe_path": 3, "broken_image": 1, "oversized": 1, "missing_column": 1
    }  # fmt: skip
    assert json.loads(records.strings("meta").take([0])[0])["label"] == "fine"


def test_a_csv_file_of_captions_reads_like_a_jsonl_file(tmp_path: Path) -> None:
    source = folder_of(tmp_path, [], {"a.png": encoded(picture(0))})
    path = tmp_path / "pictures/captions.csv"
    path.write_text("picture,words\na.png,a caption\n")
    columns = {"columns": ["words"], "image_column": "picture", "meta_columns": []}
    records, _ = run(tmp_path, source | {"path": str(path), **columns})
    assert records.strings("text").take([0]) == ["a caption"]


def tar_of(path: Path, members: list[tuple[str, bytes | None]]) -> dict[str, Any]:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if data is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            else:
                member.size = len(data)
            archive.addfile(member, io.BytesIO(data or b""))
    return {"kind": "webdataset", "path": str(path), "meta_columns": ["label"]}


def test_tars_are_read_at_their_offsets_and_bad_samples_are_quarantined(tmp_path: Path) -> None:
    image = encoded(picture(0))
    source = tar_of(tmp_path / "data.tar", [
        ("a.png", image), ("a.txt", b"first"),
        ("b.json", b'{"text": "second", "label": "two"}'), ("b.png", encoded(picture(1))),
        ("../../from_the_tar.png", encoded(picture(2))), ("../../from_the_tar.txt", b"third"),
        ("c.txt", b"no image"),
        ("d.png", b"broken"), ("d.txt", b"broken image"),
        ("e.png", image), ("e.json", b"{"),
        ("f.png", image), ("f.jpg", image), ("f.txt", b"two images"),
        ("g.png", None), ("g.txt", b"a link"),
        ("h.png", image), ("h.txt", b"\xff"),
        ("i.png", image), ("i.json", b"[1]"),
        ("j.png", image), ("j.png", image), ("j.txt", b"twice"),
    ])  # fmt: skip
    records, report = run(tmp_path, source)
    assert records.strings("text").take(slice(None)) == ["first", "second", "third"]
    assert report["quarantined_by_reason"] == {
        "missing_file": 2, "broken_image": 1, "broken_json": 1, "wrong_type": 3, "encoding": 1
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.parent.rglob("from_the_tar*")) == []
    for number, meta in enumerate(records.strings("meta").take(slice(None))):
        reference = json.loads(meta)["image"]
        assert np.array_equal(read_image(reference, limits=ImageLimits()), picture(number))


def test_compressed_and_truncated_tars_are_refused(tmp_path: Path) -> None:
    source = tar_of(tmp_path / "data.tar", [("a.png", encoded(picture(0, 64, 64, 3))), ("a.txt", b"first")])
    data = (tmp_path / "data.tar").read_bytes()
    import gzip

    (tmp_path / "data.tar").write_bytes(gzip.compress(data))
    with pytest.raises(SourceError, match="expected an uncompressed tar"):
        run(tmp_path, source)
    (tmp_path / "data.tar").write_bytes(data[:700])
    with pytest.raises(SourceError, match=r"data\.tar: damaged|none of the"):
        run(tmp_path, source)


# -- the store ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [2, 3, 1024])
def test_the_store_has_the_pixels_of_every_record_in_order(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.families.images.store._ROWS", at_once)
    files = {f"{i}.png": encoded(picture(i, 4, 4)) for i in range(5)}
    source = folder_of(tmp_path, [{"image": name, "text": "a caption"} for name in files], files)
    records, _ = run(tmp_path, source)
    config = ImagesConfig(height=4, width=4, channels=1)
    manifest = store_images(records, config=config, limits=ImageLimits(), workspace=tmp_path / "images")
    store = LatentStore.open(tmp_path / "images")
    assert store.ids(slice(None)) == records.strings("id").take(slice(None))
    assert (manifest.meta["dim"], manifest.meta["image_size"]) == (16, [4, 4, 1])
    for number in range(5):
        assert np.allclose(store.take([number]).reshape(4, 4), picture(number, 4, 4) / 255)
    for other in ({"height": 5}, {"width": 5}, {"channels": 3}):
        marks = dataclasses.asdict(config) | other
        made = store_images(records, config=ImagesConfig(**marks), limits=ImageLimits(), workspace=tmp_path / "images")
        assert (made.fingerprints, made.meta["image_size"]) != (manifest.fingerprints, manifest.meta["image_size"])
        assert made.fingerprints["image_size"] != manifest.fingerprints["image_size"]
        assert LatentStore.open(tmp_path / "images").dim == math.prod(made.meta["image_size"])
    assert store_images(records, config=config, limits=ImageLimits(), workspace=tmp_path / "images") == manifest
    before = (tmp_path / "images/part-000000.arrow").stat().st_mtime_ns
    assert store_images(records, config=config, limits=ImageLimits(), workspace=tmp_path / "images") == manifest
    assert (tmp_path / "images/part-000000.arrow").stat().st_mtime_ns == before
    with pytest.raises(StoreError, match=r"its image is no longer readable: .*pixels"):
        store_images(records, config=config, limits=ImageLimits(max_pixels=15), workspace=tmp_path / "other")
    (tmp_path / "pictures/3.png").write_bytes(encoded(picture(77, 4, 4)))
    with pytest.raises(StoreError, match="the image changed after ingestion"):
        store_images(records, config=config, limits=ImageLimits(), workspace=tmp_path / "other")


def test_a_record_without_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a text\n")
    records, _ = run(tmp_path, {"kind": "text", "path": str(tmp_path / "text.txt")})
    with pytest.raises(StoreError, match="has no image, but the objective reads images"):
        store_images(
            records, config=ImagesConfig(height=4, width=4, channels=1), limits=ImageLimits(), workspace=tmp_path / "i"
        )


def test_images_are_cropped_around_their_centre_and_converted() -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 255
    assert np.allclose(resize(wide, ImagesConfig(height=4, width=4, channels=1)), 1)
    assert np.allclose(resize(wide.transpose(1, 0, 2), ImagesConfig(height=4, width=4, channels=1)), 1)
    slope = np.arange(16, dtype=np.uint8).reshape(2, 8, 1) * 10
    assert (resize(slope, ImagesConfig(height=2, width=8, channels=1)) * 255 == slope).all(), "not resampled"
    two = resize(np.repeat(np.repeat(slope[:, :2], 4, 0), 4, 1), ImagesConfig(height=2, width=2, channels=1))
    assert np.allclose(two[:, :, 0] * 255, slope[:, :2, 0], atol=10), "height and width in this order"
    ramp = np.tile(np.arange(8, dtype=np.uint8) * 30, (4, 1))[:, :, None]  # twice as wide as high, like the store
    small = resize(ramp, ImagesConfig(height=2, width=4, channels=1))[:, :, 0] * 255
    assert np.allclose(small, [[15, 75, 135, 195]] * 2, atol=8), (
        "the size has the height first, that of Pillow the width"
    )
    colours = resize(np.full((3, 3, 1), 51, np.uint8), ImagesConfig(height=2, width=2, channels=3))
    assert np.allclose(colours, 0.2)
    red = resize(np.tile(np.array([255, 0, 0], np.uint8), (2, 2, 1)), ImagesConfig(height=2, width=2, channels=1))
    assert np.allclose(red, 0.299, atol=0.01), "the weights of luminance"
    assert resize(wide, ImagesConfig(height=2, width=2, channels=3)).shape == (2, 2, 3)
