"""Images from outside: decoding, sources (conservation, quarantine, containment, the split of an image), and their store."""

import gzip
import io
import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.corpus.examples import described, written
from tests.families.images.pictures import encoded, folder_of, ingested, picture, tar_of

from mm_ldlm.core import SourceError, StoreError, parse
from mm_ldlm.data.corpus.record import DESCRIBES, record_id
from mm_ldlm.data.corpus.sources import SOURCES
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore
from mm_ldlm.families.images import store
from mm_ldlm.families.images.config import ImagesConfig
from mm_ldlm.families.images.decoding import decode, digest, digits, read_image
from mm_ldlm.families.images.sources import CAPTIONS, NAMES


def reference(row: dict[str, Any]) -> dict[str, Any]:
    return json.loads(row["meta"])[DESCRIBES]


# -- identity and split ---------------------------------------------------------------------------------------------


def test_a_caption_of_several_images_is_kept_and_a_repeated_pair_is_a_duplicate(tmp_path: Path) -> None:
    rows = [{"image": f"{i}.png", "text": "the same long caption of all of them"} for i in (0, 1, 2, 2)]
    source = folder_of(tmp_path, rows, {f"{i}.png": encoded(picture(i)) for i in range(3)})
    records, report = ingested(tmp_path, source)
    assert (report["accepted"], report["duplicates"]) == (3, 1)
    assert len({row["id"] for row in records}) == 3
    assert all(row["id"] == record_id(row["text"], describes=reference(row)["digest"]) for row in records)


def test_pitfall_14_the_image_decides_the_split_and_no_image_is_in_two(tmp_path: Path) -> None:
    rows = [{"image": f"{i}.png", "text": f"{word} caption"} for word in ("one", "two", "three") for i in range(40)]
    records, _ = ingested(tmp_path, folder_of(tmp_path, rows, {f"{i}.png": encoded(picture(i)) for i in range(40)}))
    splits: dict[str, set[str]] = {}
    for row in records:
        splits.setdefault(reference(row)["digest"], set()).add(row["split"])
    assert len(splits) == 40
    assert sorted(set.union(*splits.values())) == ["test", "train", "validation"]
    assert all(len(found) == 1 for found in splits.values())


def test_an_image_that_sources_put_into_two_splits_stays_in_the_first(tmp_path: Path) -> None:
    rows = [
        {"image": "0.png", "text": "a caption", "part": "train"},
        {"image": "0.png", "text": "another", "part": "test"},
        {"image": "1.png", "text": "a caption", "part": "test"},
    ]
    source = folder_of(tmp_path, rows, {f"{i}.png": encoded(picture(i)) for i in range(2)})
    records, report = ingested(tmp_path, source | {"split_column": "part"})
    assert [row["split"] for row in records] == ["train", "test"]
    assert (report["accepted"], report["duplicates"]) == (2, 1)


# -- the kinds ------------------------------------------------------------------------------------------------------


def test_the_digits_have_captions_with_their_labels_and_references_to_their_pixels(tmp_path: Path) -> None:
    records, report = ingested(tmp_path, {"kind": "digits", "max_samples": 200})
    assert report["accepted"] == 200
    images, labels = digits()
    for row in records:
        meta, found = json.loads(row["meta"]), read_image(reference(row))
        assert digest(found) == reference(row)["digest"]
        assert meta["label"] == NAMES[labels[reference(row)["digits"]]]
        assert row["text"] in {form.format(meta["label"]) for form in CAPTIONS}
    assert images.shape == (1797, 8, 8, 1)
    assert len({row["text"] for row in records}) > 50
    other, _ = ingested(tmp_path, {"kind": "digits", "max_samples": 200}, name="other", seed=1)
    assert [row["text"] for row in other] != [row["text"] for row in records]


def test_bad_images_of_a_folder_are_quarantined_with_their_reasons(tmp_path: Path) -> None:
    """Pitfall 29: no path reaches outside the folder, symbolic links included."""
    (tmp_path / "secret.png").write_bytes(encoded(picture(9)))
    names = (
        "good.png",
        "missing.png",
        "../secret.png",
        str(tmp_path / "secret.png"),
        "link.png",
        "text.png",
        "cut.png",
        "other.tiff",
        "large.png",
    )
    rows: list[dict[str, Any]] = [{"image": name, "text": name, "label": "fine"} for name in names]
    rows += [{"text": "no column"}, {"image": 5, "text": "a number"}, {"image": "good.png", "text": None}]
    files = {
        "good.png": encoded(picture(0)), "text.png": b"text", "cut.png": encoded(picture(0))[:60],
        "other.tiff": encoded(picture(0), "TIFF"), "large.png": encoded(picture(1, 40, 40, 3)),
    }  # fmt: skip
    source = folder_of(tmp_path, rows, files) | {"max_pixels": 100}
    (tmp_path / "pictures/link.png").symlink_to(tmp_path / "secret.png")
    (record,), report = ingested(tmp_path, source)
    assert report["quarantined_by_reason"] == {
        "missing_file": 1, "unsafe_path": 3, "broken_file": 3, "oversized": 1, "missing_column": 2, "empty": 1
    }  # fmt: skip
    assert {**json.loads(record["meta"]), DESCRIBES: ""} == {"label": "fine", DESCRIBES: ""}
    before = described(source)
    os.utime(tmp_path / "pictures/good.png", (1, 1))
    assert described(source) != before, "an image that changes in place is another one"
    assert np.array_equal(read_image(reference(record)), picture(0))


@pytest.mark.parametrize("kind", [kind for kind in ("jsonl", "csv") if kind in SOURCES])
def test_limits_are_inclusive_in_caption_files_of_both_kinds(tmp_path: Path, kind: str) -> None:
    data = encoded(picture(0))
    source = folder_of(tmp_path, [], {"a.png": data})
    captions = written(kind, tmp_path / "pictures", [{"picture": "a.png", "words": "a caption"}])["path"]
    columns = {"columns": ["words"], "image_column": "picture", "meta_columns": [], "path": captions}
    for name, limits, accepted in (
        ("at", {"max_bytes": len(data), "max_pixels": 30}, 1), ("bytes", {"max_bytes": len(data) - 1}, 0),
        ("pixels", {"max_pixels": 29}, 0),
    ):  # fmt: skip
        if accepted:
            assert [row["text"] for row in ingested(tmp_path, source | columns | limits, name=name)[0]] == ["a caption"]
        else:
            with pytest.raises(SourceError):
                ingested(tmp_path, source | columns | limits, name=name)


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
        ("k.png", image), ("k.json", b'{"text": "both"}'), ("k.txt", b"both"),
    ])  # fmt: skip
    records, report = ingested(tmp_path, source)
    assert [row["text"] for row in records] == ["first", "second", "third"]
    assert report["quarantined_by_reason"] == {
        "missing_file": 2, "broken_file": 1, "broken_json": 1, "wrong_type": 4, "encoding": 1
    }  # fmt: skip
    assert not list(tmp_path.parent.rglob("from_the_tar*")), "nothing is extracted"
    for number, row in enumerate(records):
        assert np.array_equal(read_image(reference(row)), picture(number))


@pytest.mark.parametrize("damage", ["compressed", "cut in an image", "without an end", "with bytes after the end"])
def test_pitfall_30_a_damaged_archive_is_refused(damage: str, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    source = tar_of(tmp_path / "data.tar", [("a.png", encoded(picture(0, 64, 64, 3))), ("a.txt", b"first")])
    path = tmp_path / "data.tar"
    data = path.read_bytes()
    end = 1024 * (len(data.rstrip(b"\0")) // 1024 + 1)
    path.write_bytes({
        "compressed": gzip.compress(data), "cut in an image": data[:700], "without an end": data.rstrip(b"\0"),
        "with bytes after the end": data[:end] + b"\1" * 512 + data[end:],
    }[damage])  # fmt: skip
    with refuses(SourceError, "data.tar"):
        ingested(tmp_path, source)


# -- decoding of images from outside -----------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_pixels_and_not_of_their_encoding() -> None:
    pixels = picture(0)
    assert {digest(decode(encoded(pixels, kind), max_pixels=30)) for kind in ("PNG", "BMP")} == {digest(pixels)}
    assert digest(pixels) != digest(pixels.reshape(5, 6, 3))


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)])
def test_every_mode_is_grey_or_rgb(mode: str, channels: int) -> None:
    grey, file = picture(3, 4, 5), io.BytesIO()
    Image.fromarray(grey).convert("RGB").convert(mode).save(file, "PNG")
    found = decode(file.getvalue(), max_pixels=20)
    assert found.shape == (4, 5, channels)
    if mode not in ("1", "P"):
        assert (found == grey[:, :, None]).all()


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_images_are_turned_upright_and_sixteen_bits_are_scaled(mode: str) -> None:
    upright = picture(0, 5, 4, 3 if mode == "RGB" else 1)
    turned = np.rot90(upright)  # orientation 6: the top of the picture is on the right side
    turned = turned.astype(np.uint16) * 257 if mode == "I;16" else turned
    exif = Image.Exif()
    exif[0x0112] = 6
    assert (decode(encoded(np.ascontiguousarray(turned), exif=exif), max_pixels=20) == upright).all()


# -- the store of images -----------------------------------------------------------------------------------------------


def made(records: Path, workspace: Path, **size: Any) -> Any:
    """The store of the images of records, and its manifest."""
    none: Any = None
    feature = store.Images(parse(ImagesConfig, {"height": 4, "width": 4, "channels": 1, **size}, at="images"))
    manifest = feature.make(Inputs(ShardStore.open(records), none, none, {}), workspace / feature.folder)
    return LatentStore.open(workspace / feature.folder), manifest


@pytest.fixture
def records(tmp_path: Path) -> Path:
    files = {f"{i}.png": encoded(picture(i, 4, 4, 1)) for i in range(5)}
    ingested(tmp_path, folder_of(tmp_path, [{"image": name, "text": f"caption {name}"} for name in files], files))
    return tmp_path / "records"


@pytest.mark.parametrize("rows", [2, 1024])
def test_the_store_has_the_pixels_of_every_record_in_order(
    rows: int, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [dict(zip(("height", "width", "channels"), size, strict=True)) for size in product((2, 4), (2, 4), (1, 3))]
    assert len({store.Images(parse(ImagesConfig, size, at="images")).variant for size in sizes}) == len(sizes)
    monkeypatch.setattr(store, "_ROWS", rows)
    images, manifest = made(records, tmp_path)
    numbers = [int(text.split()[1][0]) for text in ShardStore.open(records).gather("text", slice(None)).to_pylist()]
    assert (
        images.gather("id", slice(None)).to_pylist() == ShardStore.open(records).gather("id", slice(None)).to_pylist()
    )
    for row, number in enumerate(numbers):
        np.testing.assert_allclose(images.take([row]).reshape(4, 4, 1), picture(number, 4, 4, 1) / 255, rtol=1e-6)
    written = images.directory / "part-000000.arrow"
    before = written.stat().st_mtime_ns
    assert made(records, tmp_path)[1] == manifest
    assert written.stat().st_mtime_ns == before, "a finished store of the same records and size is kept"
    other, _ = made(records, tmp_path, channels=3)
    assert (other.fixed("latent").dim, other.directory != images.directory) == (48, True)


@pytest.mark.parametrize("change", ["other pixels", "more pixels", "removed"])
def test_an_image_that_changed_after_ingestion_is_refused(
    change: str, records: Path, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    path = tmp_path / "pictures/3.png"
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(encoded(picture(77, 4, 4, 1) if change == "other pixels" else picture(77, 40, 40, 1)))
    with refuses(StoreError):
        made(records, tmp_path)


def test_pitfall_14_a_record_without_an_image_is_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    (tmp_path / "text.txt").write_text("a text\n")
    ingested(tmp_path, {"kind": "text", "path": str(tmp_path / "text.txt")})
    with refuses(StoreError):
        made(tmp_path / "records", tmp_path)


def test_images_are_cropped_around_their_centre_and_converted() -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 255
    assert np.allclose(store.resize(wide, (4, 4, 1)), 1)
    assert np.allclose(store.resize(wide.transpose(1, 0, 2), (4, 4, 1)), 1)
    slope = np.arange(16, dtype=np.uint8).reshape(2, 8, 1) * 10
    assert (store.resize(slope, (2, 8, 1)) * 255 == slope).all(), "not resampled"
    ramp = np.tile(np.arange(8, dtype=np.uint8) * 30, (4, 1))[:, :, None]
    small = store.resize(ramp, (2, 4, 1))[:, :, 0] * 255
    assert np.allclose(small, [[15, 75, 135, 195]] * 2, atol=8), "the height is the first size"
    assert np.allclose(store.resize(np.full((3, 3, 1), 51, np.uint8), (2, 2, 3)), 0.2)
    red = np.tile(np.array([255, 0, 0], np.uint8), (2, 2, 1))
    assert np.allclose(store.resize(red, (2, 2, 1)), 0.299, atol=0.01), "the weights of luminance"
