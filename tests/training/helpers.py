"""A tiny synthetic task for the training tests: latents that determine the text, everything in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.config import parse
from mm_ldlm.models.parameters import ModelConfig
from mm_ldlm.objectives.multimodal import ObjectiveConfig
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import Data
from mm_ldlm.training.spec import Paths, TrainingSpec

VOCAB, WIDTH, LONGEST = 24, 8, 12


class Rows:
    """Sentences over ids 3..VOCAB-1 and random latents; row r is a function of r."""

    def __init__(self, count: int = 64, *, seed: int = 0, poisoned: tuple[int, ...] = ()) -> None:
        draw = np.random.default_rng(seed)
        self.pad_id = 0
        self.lengths = draw.integers(2, LONGEST + 1, count)
        self._ids = draw.integers(3, VOCAB, (count, LONGEST))
        self._latents = draw.standard_normal((count, WIDTH)).astype(np.float32)
        for row in poisoned:
            self._latents[row, 0] = np.nan

    def tokens(self, rows: Any, *, length: int) -> Any:
        out = np.zeros((len(rows), length), np.int64)
        width = min(length, LONGEST)
        keep = np.arange(width) < self.lengths[rows][:, None]
        out[:, :width] = np.where(keep, self._ids[rows][:, :width], 0)
        return out

    def latents(self, rows: Any) -> Any:
        return self._latents[rows]


def data(count: int = 64, **more: Any) -> Data:
    return Data(train=Rows(count, **more), validation=Rows(16, seed=9), vocab_size=VOCAB, pad_id=0, mask_id=1, folders={})


def spec(
    *, model: dict[str, Any] | None = None, objective: dict[str, Any] | None = None, seed: int = 7, **training: Any
) -> TrainingSpec:
    settings: dict[str, Any] = {
        "max_steps": 10, "batch": {"rows": 16, "length_multiple": 4, "prefetch": 2}, "log_every": 1, "diagnose_every": 0,
        "optimizer": {"lr": 3e-3, "warmup_steps": 2}, "checkpoint": {"every_steps": 5, "background": False},
        "device": "cpu", "preflight": False, "run_name": "run",
    }  # fmt: skip
    settings |= training
    shape = {"latent_dim": WIDTH, "width": 16, "depth": 2, "heads": 2, "latent_tokens": 2, "max_length": LONGEST, **(model or {})}
    return TrainingSpec(
        seed=seed,
        paths=Paths("tokens", "latents", "index", "tokenizer", "normaliser"),
        fingerprints={"tokenizer": "t", "normaliser": "n", "encoder": "e"},
        model=parse(ModelConfig, shape, at="model"),
        objective=parse(ObjectiveConfig, objective or {}, at="objective"),
        training=parse(TrainingConfig, settings, at="training"),
        encoder={},
    )


def tensors(directory: Path, step: int, name: str = "model") -> dict[str, Any]:
    from mm_ldlm.checkpoints import folder

    return folder.tensors(folder.find(directory, which=str(step)), f"{name}.safetensors")


def same_bits(a: dict[str, Any], b: dict[str, Any]) -> bool:
    import torch

    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)
