"""The store of images: the pixels of every record in order, resized, and refusal of images that changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.families.images.pictures import encoded, folder_of, ingested, picture

from mm_ldlm.core import StoreError, parse
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore
from mm_ldlm.families.images import store
from mm_ldlm.families.images.config import ImagesConfig


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
    monkeypatch.setattr(store, "_ROWS", rows)
    images, manifest = made(records, tmp_path)
    texts = ShardStore.open(records).strings("text").take(slice(None))
    numbers = [int(text.split()[1][0]) for text in texts]
    assert images.ids(slice(None)) == ShardStore.open(records).strings("id").take(slice(None))
    for row, number in enumerate(numbers):
        np.testing.assert_allclose(images.take([row]).reshape(4, 4, 1), picture(number, 4, 4, 1) / 255, rtol=1e-6)
    written = images.directory / "part-000000.arrow"
    before = written.stat().st_mtime_ns
    assert made(records, tmp_path)[1] == manifest
    assert written.stat().st_mtime_ns == before, "a finished store of the same records and size is kept"
    other, _ = made(records, tmp_path, channels=3)
    assert (other.dim, other.directory != images.directory) == (48, True)


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
