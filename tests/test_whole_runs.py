"""`kedro run` of the families whose data are not the plain sentences of base, from ingestion to the report."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from PIL import Image

TINY = (
    "training.max_steps=4,training.launch.processes=1,training.optimizer.warmup_steps=1,"
    "evaluation.bootstrap.replicates=20,tracking.enabled=false"
)
SMALL = f"{TINY},training.batch.examples=8,model.dim=32,model.depth=1,model.heads=2"
IMAGES = f"{SMALL},sampling.images.joint_count=4,sampling.images.joint_steps=2"
DIGITS = [
    ("digits", IMAGES, "digits", "images"),
    ("digits+continuous_captions", IMAGES, "digits/continuous_captions", "images"),
]
OTHERS = [
    ("classification+test", TINY, "test/classification", "classification"),
    ("classification_trunk+test", TINY, "test/classification_trunk", "classification"),
    ("starter_pairs+pairwise_classification", SMALL, "starter_pairs/pairwise_classification", "classification"),
    *((f"{name}+test", TINY, f"test/{name}", "nll") for name in ("ccdd", "atat", "hdlm", "uniform")),
]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in (DIGITS[1], *OTHERS)]


@pytest.mark.parametrize(("environment", "params", "folder", "metric"), [DIGITS[0], *SLOW])
def test_a_run_goes_from_ingestion_to_the_report(
    run_kedro: Callable[..., CompletedProcess[str]],
    workshop: Path,
    environment: str,
    params: str,
    folder: str,
    metric: str,
) -> None:
    result = run_kedro("run", f"--env={environment}", f"--params={params}")
    assert result.returncode == 0, result.stderr[-3000:]
    reporting = workshop / "data" / folder / "08_reporting"
    metrics = json.loads((reporting / "metrics.json").read_text())
    assert any(name.startswith(f"{metric}.") for name in metrics), sorted(metrics)
    assert (reporting / "report.html").stat().st_size > 10_000


def captioned_digits() -> list[tuple[str, bytes, str, str]]:
    """(name, PNG, caption, label) of 200 digits of scikit-learn."""
    from sklearn.datasets import load_digits

    found = load_digits()
    pictures = []
    for number, (pixels, digit) in enumerate(zip(found.images[:200], found.target[:200], strict=True)):
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")
        pictures.append((f"{number:03}", file.getvalue(), f"the digit {digit} written by hand", str(digit)))
    return pictures


def write_image_folder(root: Path) -> dict[str, Any]:
    root.mkdir()
    lines = []
    for name, png, caption, label in captioned_digits():
        (root / f"{name}.png").write_bytes(png)
        lines.append(json.dumps({"text": caption, "image": f"{name}.png", "label": label}))
    (root / "captions.jsonl").write_text("\n".join(lines))
    return {"kind": "image_folder", "path": str(root / "captions.jsonl"), "meta_columns": ["label"]}


def write_tars(root: Path) -> dict[str, Any]:
    root.mkdir()
    with tarfile.open(root / "digits.tar", "w") as archive:
        for name, png, caption, label in captioned_digits():
            for ending, data in (("png", png), ("json", json.dumps({"text": caption, "label": label}).encode())):
                member = tarfile.TarInfo(f"{name}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return {"kind": "webdataset", "path": str(root / "digits.tar"), "meta_columns": ["label"]}


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_image_folder, write_tars])
def test_own_captioned_images_are_trained_on_and_scored_by_their_labels(
    run_kedro: Callable[..., CompletedProcess[str]],
    workshop: Path,
    tmp_path: Path,
    write: Callable[[Path], dict[str, Any]],
) -> None:
    name = f"own_{write.__name__}"
    layer = workshop / "conf" / name
    layer.mkdir()
    source = write(tmp_path / "pictures")
    (layer / "globals.yml").write_text(f"data: data/{name}\n")
    (layer / "parameters.yml").write_text(json.dumps({"ingestion": {"sources": [source]}}))
    result = run_kedro("run", f"--env=digits+{name}", f"--params={IMAGES}")
    assert result.returncode == 0, result.stderr[-3000:]
    reporting = workshop / "data" / name / "08_reporting"
    metrics = json.loads((reporting / "metrics.json").read_text())
    assert any(metric.startswith("images.") for metric in metrics), sorted(metrics)
    records = json.loads((workshop / "data" / name / "02_intermediate" / "records" / "manifest.json").read_text())
    assert sum(shard["rows"] for shard in records["shards"]) == 200
