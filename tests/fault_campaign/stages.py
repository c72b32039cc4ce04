"""Stages that faults are tried on: ingestion, tokens, latents and training, each with the files that it promises."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers
from mm_ldlm.data.store.verified import RECORD

TESTS = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage that can be interrupted and started again: `run(inputs, folder)` writes into an empty or older folder."""

    name: str
    run: Callable[[Path, Path], Any]
    products: Callable[[Path], dict[str, str]]
    """Digests of the files that are promised to be the same after any interruption"""


def prepare(root: Path) -> Path:
    """Write the inputs of all stages; they are not changed afterwards."""
    inputs = root / "inputs"
    inputs.mkdir(parents=True)
    lines = [f"line {i} of the corpus, word {i * 7919 % 104729}" if i % 11 else f"line {i // 2}" for i in range(1500)]
    raw = "\n".join(lines).encode() + b"\nbad \xff byte\nnul \x00 byte\n" + b"x" * 3000 + b"\n"
    (inputs / "corpus.txt").write_bytes(raw)
    latents = _module("latents/conftest.py")
    _encoder(inputs / "encoder")
    latents.write_records(inputs / "records", latents.sentences(160))
    helpers.write_stores(inputs / "data")
    helpers.commit_dataset(inputs / "data")
    for path in (inputs, *inputs.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return inputs


def ingestion(inputs: Path, folder: Path) -> Any:
    from mm_ldlm.core.config import parse
    from mm_ldlm.data.corpus.config import IngestionConfig
    from mm_ldlm.data.corpus.ingestion import ingest

    source = {"kind": "text", "path": str(inputs / "corpus.txt")}
    keys = {"sources": [source], "shard_rows": 60, "max_row_bytes": 1000, "progress": False}
    config = parse(IngestionConfig, keys, at="ingestion")
    records, quarantine, report = ingest(config, seed=0, workspace=folder / "records", quarantine=folder / "quarantine")
    records.write(folder / "records")
    quarantine.write(folder / "quarantine")
    return report["accepted"] + report["duplicates"] + report["quarantined"]


def tokens(inputs: Path, folder: Path) -> Any:
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
    from mm_ldlm.data.corpus.tokens import tokenize_records
    from mm_ldlm.data.store import ShardStore

    limits = TokenizerConfig(max_length=32, reduce_vocabulary=False)
    tokenizer = load_tokenizer(limits)
    manifest = tokenize_records(ShardStore.open(inputs / "records", "records"), tokenizer, limits, folder / "tokens")
    manifest.write(folder / "tokens")
    tokenizer.save(folder / "tokenizer")
    return manifest.rows


def extraction(inputs: Path, folder: Path) -> Any:
    from mm_ldlm.data.encoders import LocalEncoderConfig
    from mm_ldlm.data.latents.config import ExtractConfig
    from mm_ldlm.data.latents.extract import extract
    from mm_ldlm.data.store import ShardStore

    encoder = LocalEncoderConfig(
        name="minilm", path=str(inputs / "encoder"), device="cpu", batch_tokens=256, max_length=64
    )
    config = ExtractConfig(shard_rows=16, processes=1, progress=False)
    records = ShardStore.open(inputs / "records", "records")
    return extract(records, encoder=encoder, config=config, workspace=folder / "latents").rows


def training(inputs: Path, folder: Path) -> Any:
    from mm_ldlm.training.worker import train

    spec = helpers.spec(
        max_steps=14, batch={"examples": 8, "length_multiple": 4, "prefetch": 2}, checkpoint={"every_steps": 2,
        "background": True},
        objective={"mode": "mixed"},
    )  # fmt: skip
    return train(spec, root=folder / "runs", data=helpers.data(32)).ending


def _files(folder: Path, *, skip: tuple[str, ...] = ()) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (*skip, RECORD)
    }


def _last_checkpoint(folder: Path) -> dict[str, str]:
    found = _files(folder / "runs" / "run" / "checkpoints" / "step-00000014")
    return {name: digest for name, digest in found.items() if name.endswith(".safetensors")}


STAGES = {
    stage.name: stage
    for stage in (
        Stage("ingestion", ingestion, lambda folder: _files(folder, skip=("progress.json",))),
        Stage("tokens", tokens, _files),
        Stage("extraction", extraction, _files),
        Stage("training", training, _last_checkpoint),
    )
}


def _encoder(folder: Path) -> None:
    """A BERT of two layers with random weights and the tokenizer of the default encoder."""
    import shutil

    import torch
    from transformers import BertConfig, BertModel

    from mm_ldlm.data.encoders import LocalEncoderConfig, locate_encoder

    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = BertConfig(
            vocab_size=30522,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=64,
        )
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    real = locate_encoder(LocalEncoderConfig()).folder
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(real / name, folder / name)


def _module(relative: str) -> Any:
    spec = importlib.util.spec_from_file_location("latents_helpers", TESTS / relative)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found
