"""Sources of captioned images: conservation, quarantine with reasons, containment, and the split of an image."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.families.images.pictures import encoded, folder_of, ingested, picture, tar_of

from mm_ldlm.core import SourceError
from mm_ldlm.data.corpus.record import DESCRIBES, record_id
from mm_ldlm.families.images.decoding import digest, digits, read_image
from mm_ldlm.families.images.sources import CAPTIONS, NAMES


def reference(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["meta"])[DESCRIBES]
    return found


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
        "large.png",
    )
    rows: list[dict[str, Any]] = [{"image": name, "text": name, "label": "fine"} for name in names]
    rows += [{"text": "no column"}, {"image": 5, "text": "a number"}]
    files = {"good.png": encoded(picture(0)), "text.png": b"text", "large.png": encoded(picture(1, 40, 40, 3))}
    source = folder_of(tmp_path, rows, files) | {"max_pixels": 100}
    (tmp_path / "pictures/link.png").symlink_to(tmp_path / "secret.png")
    (record,), report = ingested(tmp_path, source)
    assert report["quarantined_by_reason"] == {
        "missing_file": 1, "unsafe_path": 3, "broken_file": 1, "oversized": 1, "missing_column": 2
    }  # fmt: skip
    assert json.loads(record["meta"])["label"] == "fine"
    assert np.array_equal(read_image(reference(record)), picture(0))


def test_limits_are_inclusive_and_csv_files_read_like_jsonl_files(tmp_path: Path) -> None:
    data = encoded(picture(0))
    source = folder_of(tmp_path, [], {"a.png": data})
    path = tmp_path / "pictures/captions.csv"
    path.write_text("picture,words\na.png,a caption\n")
    columns = {"columns": ["words"], "image_column": "picture", "meta_columns": [], "path": str(path)}
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
    ])  # fmt: skip
    records, report = ingested(tmp_path, source)
    assert [row["text"] for row in records] == ["first", "second", "third"]
    assert report["quarantined_by_reason"] == {
        "missing_file": 2, "broken_file": 1, "broken_json": 1, "wrong_type": 3, "encoding": 1
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
