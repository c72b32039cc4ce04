"""A tiny synthetic task for the training tests: latents that determine the text, everything in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.core.config import parse, parse_kind, to_dict
from mm_ldlm.data.dataset import Dataset, commit
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import Data
from mm_ldlm.training.plan import plan
from mm_ldlm.training.spec import TrainingSpec

VOCAB, DIM, LONGEST, STATE_DIM = 24, 8, 12, 6
IMAGE = (4, 4, 1)
SHAPE = DataShape(vocab_size=VOCAB, pad_id=0, mask_id=1, max_length=LONGEST, latent_dim=DIM, image_size=IMAGE)


class Rows:
    """Sentences over ids 3..VOCAB-1 and random latents; row r is a function of r."""

    def __init__(
        self,
        count: int = 64,
        *,
        seed: int = 0,
        poisoned: tuple[int, ...] = (),
        outliers: float = 0.0,
        scale: float = 1e4,
    ) -> None:
        draw = np.random.default_rng(seed)
        self.pad_id = 0
        self.lengths = draw.integers(2, LONGEST + 1, count)
        self._ids = draw.integers(3, VOCAB, (count, LONGEST))
        self._latents = draw.standard_normal((count, DIM)).astype(np.float32)
        self._latents[draw.random(count) < outliers] *= scale
        self._images = np.random.default_rng([seed, 1]).random((count, 16)).astype(np.float32)
        for row in poisoned:
            self._latents[row, 0] = np.nan

    def tokens(self, rows: Any, *, length: int) -> Any:
        out = np.zeros((len(rows), length), np.int64)
        used = min(length, LONGEST)
        keep = np.arange(used) < self.lengths[rows][:, None]
        out[:, :used] = np.where(keep, self._ids[rows][:, :used], 0)
        return out

    def field(self, name: str, rows: Any) -> Any:
        if name == "token_states":
            return self.states(self.tokens(rows, length=LONGEST))
        return {"latents": self._latents, "images": self._images}[name][rows]

    @staticmethod
    def states(ids: Any) -> Any:
        """The state of a token is a function of its id."""
        return np.random.default_rng(3).standard_normal((VOCAB, STATE_DIM)).astype(np.float32)[ids]


def data(count: int = 64, **more: Any) -> Data:
    return Data(train=Rows(count, **more), validation=Rows(16, seed=9), shape=SHAPE, folders={})


def spec(
    *, model: dict[str, Any] | None = None, objective: dict[str, Any] | None = None, seed: int = 7, **training: Any
) -> TrainingSpec:
    settings: dict[str, Any] = {
        "max_steps": 10, "batch": {"examples": 16, "length_multiple": 4, "prefetch": 2},
        "log_every": 1, "diagnose_every": 0,
        "optimizer": {"lr": 3e-3, "warmup_steps": 2}, "checkpoint": {"every_steps": 5, "background": False},
        "device": "cpu", "preflight": False, "run_name": "run",
        "show_every_seconds": None,
    }  # fmt: skip
    settings |= training
    shape = {"kind": "mmdit", "dim": 16, "depth": 2, "heads": 2, "latent_tokens": 2}
    if model is not None:
        shape = model if "kind" in model else {**shape, **model}
    objective = {"kind": "multimodal", **(objective or {})}
    return TrainingSpec(
        seed=seed,
        dataset="dataset",
        fingerprints={"tokenizer": "t", "normaliser": "n", "encoder": "e"},
        shape=SHAPE,
        model=parse_kind(MODELS, shape, at="model"),
        objective=parse_kind(OBJECTIVES, objective, at="objective"),
        training=parse(TrainingConfig, settings, at="training"),
    )


def tensors(directory: Path, step: int, name: str = "model") -> dict[str, Any]:
    from mm_ldlm.training.checkpoints import folder

    return folder.tensors(folder.find(directory, which=str(step)), f"{name}.safetensors")


def same_bits(a: dict[str, Any], b: dict[str, Any]) -> bool:
    import torch

    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


STORES = (
    "tokens", "latents", "index", "tokenizer", "normaliser", "token_clusters", "token_states", "state_normaliser",
    "images", "image_normaliser",
    "labels", "label_names", "pair_tokens",
)  # fmt: skip
"""Stores of the dataset; `write_stores` also writes token vectors."""
SPLITS = ("validation", *["train"] * 7)


def write_stores(directory: Path, count: int = 64, *, splits: tuple[str, ...] = SPLITS) -> None:
    """The same task as stores on disk: tokens, latents, index, tokenizer, normaliser under `directory`.

    The rows have the splits in turn.
    """
    import pyarrow as pa
    from tokenizers import Tokenizer, models, pre_tokenizers

    from mm_ldlm.data.corpus.tokenizer import TextTokenizer
    from mm_ldlm.data.latents import store as latent_store
    from mm_ldlm.data.latents.normaliser import NormaliserConfig
    from mm_ldlm.data.latents.normaliser_fit import fit
    from mm_ldlm.data.store.writer import StoreWriter

    rows = Rows(count)
    ids = [f"row{i:04d}" for i in range(count)]
    split = [splits[i % len(splits)] for i in range(count)]
    writer = StoreWriter(
        directory / "records", kind="records",
        schema=pa.schema([(name, pa.string()) for name in ("id", "text", "split", "meta")]),
    )  # fmt: skip
    answers = ("first", "second", "similar")
    meta = [json.dumps({"label": answers[i % 3], "pair": f"w{3 + i % 9} w4"}) for i in range(count)]
    writer.append({"id": ids, "text": [f"text {i}" for i in range(count)], "split": split, "meta": meta})
    records = writer.finish()
    everyone = np.arange(count)
    padded = rows.tokens(everyone, length=LONGEST)
    tokens = [padded[i, : rows.lengths[i]].tolist() for i in range(count)]
    lengths = rows.lengths.tolist()
    schema = pa.schema([("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("length", pa.int32())])
    writer = StoreWriter(directory / "tokens", kind="tokens", schema=schema)
    writer.append({"id": ids, "input_ids": tokens, "length": lengths})
    writer.finish()
    writer = StoreWriter(directory / "latents", kind="latents", schema=latent_store.schema(DIM, "float32"))
    writer.append(latent_store.table(ids, rows.field("latents", everyone), dtype="float32"))
    writer.finish(fingerprints={"records": records.fingerprint, "encoder": "e"}, meta={"dim": DIM})
    writer = StoreWriter(directory / "images", kind="latents", schema=latent_store.schema(16, "float32"))
    writer.append(latent_store.table(ids, rows.field("images", everyone), dtype="float32"))
    writer.finish(meta={"dim": 16, "image_size": list(IMAGE)})
    schema = pa.schema([("id", pa.string()), ("row", pa.int64()), ("split", pa.string()), ("length", pa.int32())])
    writer = StoreWriter(directory / "index", kind="index", schema=schema)
    writer.append({"id": ids, "row": list(range(count)), "split": split, "length": lengths})
    writer.finish()
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, **{f"w{i}": i for i in range(3, VOCAB)}}
    base = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    base.add_special_tokens(["[PAD]", "[MASK]", "[UNK]"])
    tokenizer = TextTokenizer(base, max_length=LONGEST)
    tokenizer.save(directory / "tokenizer")
    _write_clusters(directory, tokenizer)
    _write_labels(directory, tokenizer)
    _write_token_states(directory, np.concatenate([np.array(row) for row in tokens]))
    train = np.array([i for i in range(count) if split[i] == "train"])
    for name, normaliser, kind in (("latents", "normaliser", "standard"), ("images", "image_normaliser", "one_scale")):
        store = latent_store.LatentStore.open(directory / name)
        (directory / normaliser).mkdir(exist_ok=True)
        fit(store, rows=train, config=NormaliserConfig(kind=kind), unit_norm=False).save(directory / normaliser)


def _write_clusters(directory: Path, tokenizer: Any) -> None:
    """Token vectors and their clusters, for a process that is made from them."""
    from mm_ldlm.data.latents import store as latent_store
    from mm_ldlm.data.latents.config import TokenClustersConfig
    from mm_ldlm.data.store.writer import StoreWriter
    from mm_ldlm.families.hdlm.token_clusters import cluster_vocabulary

    vectors_Vd = np.random.default_rng(5).standard_normal((VOCAB, DIM)).astype(np.float32)
    writer = StoreWriter(directory / "token_vectors", kind="latents", schema=latent_store.schema(DIM, "float32"))
    writer.append(latent_store.table([str(i) for i in range(VOCAB)], vectors_Vd, dtype="float32"))
    writer.finish(fingerprints={"tokenizer": tokenizer.fingerprint}, meta={"dim": DIM})
    vectors = latent_store.LatentStore.open(directory / "token_vectors")
    folder = directory / "token_clusters"
    cluster_vocabulary(tokenizer, vectors, config=TokenClustersConfig(count=4), seed=0, workspace=folder)


def _write_token_states(directory: Path, ids: Any) -> None:
    """The state of every token of every record, and their normaliser."""
    import pyarrow as pa

    from mm_ldlm.data.latents.normaliser import NormaliserConfig
    from mm_ldlm.data.latents.normaliser_fit import fit
    from mm_ldlm.data.store import ShardStore, StoreWriter
    from mm_ldlm.families.ccdd import token_states

    schema = pa.schema([(token_states.COLUMN, pa.list_(pa.float32(), STATE_DIM))])
    writer = StoreWriter(directory / "token_states", kind=token_states.KIND, schema=schema)
    flat = pa.array(Rows.states(ids).reshape(-1))
    writer.append(pa.Table.from_arrays([pa.FixedSizeListArray.from_arrays(flat, STATE_DIM)], schema=schema))
    writer.finish(meta={"dim": STATE_DIM})
    states = ShardStore.open(directory / "token_states", token_states.KIND)
    folder = directory / "state_normaliser"
    folder.mkdir(exist_ok=True)
    config = NormaliserConfig(kind="standard")
    rows = np.arange(len(ids))
    fit(states, rows=rows, config=config, unit_norm=False, column=token_states.COLUMN).save(folder)


def _write_labels(directory: Path, tokenizer: Any) -> None:
    """The stores of labels, and of the second texts of pairs."""
    from mm_ldlm.data.store import ShardStore
    from mm_ldlm.families.classification import labels

    records = ShardStore.open(directory / "records")
    read = labels.read_labels(records, key="label")
    labels.write_labels(records, ShardStore.open(directory / "index"), read, directory / "labels", key="label")
    labels.write_label_names(read, directory / "label_names")
    labels.write_pair_tokens(records, tokenizer, directory / "pair_tokens")


def commit_dataset(directory: Path) -> Dataset:
    """The dataset of the stores that `write_stores` wrote."""
    stores = {name: directory / name for name in STORES}
    return commit(directory / "dataset", stores={"records": directory / "records", **stores})


def planned(directory: Path, **training: Any) -> TrainingSpec:
    """The spec that the pipeline would plan for `write_stores`."""
    base = spec(**training)
    return plan(
        commit_dataset(directory),
        runs=directory / "runs",
        model=to_dict(base.model),
        objective=to_dict(base.objective),
        training=to_dict(base.training),
        encoder={"name": "none"},
        seed=base.seed,
        tracking={},
    )
