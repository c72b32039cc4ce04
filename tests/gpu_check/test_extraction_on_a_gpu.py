"""The extraction of the checks: the vectors of its encoder, and how much a GPU extracts."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.store import write_shard
from mm_ldlm.data.store.writer import shard_name
from mm_ldlm.extras.gpu_check import extraction
from mm_ldlm.extras.gpu_check.outcome import Setting


def test_the_vectors_of_the_random_encoder_are_means_of_all_bytes_at_their_places() -> None:
    before = torch.get_rng_state()
    made = extraction.RandomEncoder(dim=16, depth=1, heads=2, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert not made.model.training
    text = "a text"
    ids = torch.tensor([[byte + 1 for byte in text.encode()]])
    with torch.inference_mode():
        hidden = made.model["stack"](made.model["token"](ids) + made.model["position"](torch.arange(len(text))))
        mean = hidden[0].mean(0)
    np.testing.assert_allclose(made.encode([text])[0], (mean / mean.norm()).numpy(), atol=1e-5)
    for parameter in made.model.parameters():
        if parameter.ndim > 1:
            assert float(parameter.std()) == pytest.approx(parameter.shape[-1] ** -0.5, rel=0.25)
    count, batches = made.prepare(["é" * 60, "b", ""])
    assert count == 3
    widths = {int(row): int((ids[place] != 0).sum()) for chosen, ids in batches for place, row in enumerate(chosen)}
    assert widths == {0: 64, 1: 1, 2: 0}, "64 bytes and not letters"
    assert all(ids.max() <= 256 for _, ids in batches)


def test_a_gpu_extracts_twenty_thousand_sentences_and_half_a_thousand_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte of the last of twenty shards differs in the second extraction, and one number is NaN."""
    encoded: list[int] = []
    vectors = np.zeros((1024, 2), np.float32)

    def extract(encoder: Any, located: Any, records: Any, workspace: Path) -> float:
        workspace.mkdir()
        for number in range(20):
            write_shard(workspace, shard_name(number), latent_store.table(["x"] * 1024, vectors, dtype="float32"))
        if workspace.name == "second":
            place = workspace / shard_name(19)
            place.write_bytes(place.read_bytes()[:-1] + b"x")
        return {"first": 9.0, "second": 4.0}[workspace.name]

    def encode(texts: list[str]) -> Any:
        encoded.append(len(texts))
        return np.full((len(texts), 2), np.nan)

    devices: list[Any] = []
    monkeypatch.setattr(extraction, "extract", extract)
    monkeypatch.setattr(extraction, "sentences", lambda count: ["x"] * count)
    monkeypatch.setattr(extraction, "write_records", lambda texts, folder: encoded.append(len(texts)))
    monkeypatch.setattr(
        extraction, "encoder", lambda device, *, small: devices.append((device, small)) or (
            SimpleNamespace(name="e"), SimpleNamespace(encode=encode))
    )  # fmt: skip
    found = extraction.extraction(Setting("cuda", tmp_path))
    assert (encoded, devices) == ([20_000, 512], [("cuda", False), ("cpu", False)])
    assert math.isnan(float(found.numbers.pop("error")))  # type: ignore[arg-type]
    assert found.numbers == {
        "encoder": "e", "sentences": 20_000, "tolerance": 2e-4, "repeated bytes": False, "sentences per second": 5000.0
    }  # fmt: skip
    assert [("found a difference of nan" in fault, "found others" in fault) for fault in found.faults] == [
        (True, False), (False, True)
    ]  # fmt: skip


def test_the_store_of_the_extraction_is_that_of_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    plan = SimpleNamespace(progress_folder=tmp_path / "w" / "p", num_shards=3)
    monkeypatch.setattr(extraction, "make_plan", lambda *given, **more: asked.append((given, more)) or plan)
    monkeypatch.setattr(extraction, "encode_shards", lambda *given, **more: asked.append((given, more)))
    monkeypatch.setattr(extraction, "time", SimpleNamespace(perf_counter=iter([2.0, 4.5]).__next__))
    assert extraction.extract("encoder", "located", "records", tmp_path / "w") == 2.5  # type: ignore[arg-type]
    (planned, how), (encoded, options) = asked
    assert (planned, how["workspace"]) == (("records", "located"), tmp_path / "w")
    assert how["config"] == ExtractConfig(shard_rows=1024, progress=False)
    assert encoded == (plan, [0, 1, 2])
    assert options == {"located": "located", "rank": 0, "encoder": "encoder"}


@pytest.mark.parametrize(
    ("difference", "faults"), [(0.0, 0), (1e-4, 0), (2e-4, 0), (-2e-4, 0), (2.01e-4, 1), (-2.01e-4, 1)]
)
def test_a_small_extraction_compares_all_of_its_vectors_within_the_tolerance(
    difference: float, faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last entry of the last vector differs."""

    def extract(encoder: Any, located: Any, records: Any, workspace: Path) -> float:
        workspace.mkdir()
        table = latent_store.table(["x"] * 96, np.zeros((96, 3), np.float32), dtype="float32")
        write_shard(workspace, shard_name(0), table)
        return 0.5

    def encode(texts: list[str]) -> Any:
        reference = np.zeros((len(texts), 3))
        reference[-1, -1] = difference
        return reference

    devices: list[Any] = []
    monkeypatch.setattr(extraction, "extract", extract)
    monkeypatch.setattr(
        extraction, "encoder", lambda device, *, small: devices.append((device, small)) or (
            SimpleNamespace(name="e"), SimpleNamespace(encode=encode))
    )  # fmt: skip
    found = extraction.extraction(Setting("cpu", tmp_path))
    assert devices == [("cpu", True)] * 2
    assert found.numbers == {
        "encoder": "e", "sentences": 96, "error": abs(difference), "tolerance": 2e-4, "repeated bytes": True,
        "sentences per second": 192.0,
    }  # fmt: skip
    assert len(found.faults) == faults
    assert all("expected vectors within 0.0002 of those on the CPU" in fault for fault in found.faults)
