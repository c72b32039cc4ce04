"""Extraction of latents on the device: the vectors of the CPU, equal bytes when repeated, and its speed."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.encoders import LocalEncoderConfig, load_encoder
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.store import ShardStore, write_store

pytestmark = pytest.mark.gpu
TOLERANCE = 2e-4
"""Largest difference of an entry of a vector of norm 1 from that on the CPU, in float32"""
WORDS = ["the", "a", "river", "bicycle", "rode", "green", "along", "quietly", "of", "and", "Tuesday", "seven"]


def encoder(folder: Path, *, small: bool) -> str:
    """Save a BERT of MiniLM's shape with random weights and a vocabulary of a few words; return its folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    dim, depth, heads = (32, 2, 2) if small else (384, 6, 12)
    sizes = {"hidden_size": dim, "num_hidden_layers": depth, "num_attention_heads": heads, "intermediate_size": 4 * dim}
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes), add_pooling_layer=False).save_pretrained(folder)
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)
    return str(folder)


def records(folder: Path, count: int) -> ShardStore:
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 13))) for _ in range(count)]
    columns: dict[str, list[Any]] = {name: [None] * count for name in RECORD_SCHEMA.names}
    names = [f"{i:06d}" for i in range(count)]
    columns |= {"id": names, "text": texts, "split": ["train"] * count, "source": ["s"] * count}
    write_store(folder, [columns], kind="records", schema=RECORD_SCHEMA)
    return ShardStore.open(folder, "records")


@pytest.mark.filterwarnings("default")
def test_latents_of_a_device_are_those_of_the_cpu_and_repeat(device: str, tmp_path: Path, measured: Any) -> None:
    count = 96 if device == "cpu" else 20_000
    store = records(tmp_path / "records", count)
    config = LocalEncoderConfig(path=encoder(tmp_path / "encoder", small=device == "cpu"), device=device, max_length=32)
    extraction = ExtractConfig(shard_rows=1024, processes=1)
    for name in ("first", "second"):
        started = time.perf_counter()
        extract(store, encoder=config, config=extraction, workspace=tmp_path / name)
        seconds = time.perf_counter() - started
    shards = [sorted((tmp_path / name).glob("part-*")) for name in ("first", "second")]
    assert shards[0]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*shards, strict=True))
    found = np.stack(pa.ipc.open_file(shards[0][0]).read_all()["latent"].to_numpy(zero_copy_only=False)[:512])
    texts = store.gather("text", slice(0, len(found))).to_pylist()
    error = float(np.abs(found - load_encoder(config, device="cpu").encode(texts)).max())
    measured(error=error, sentences_per_second=count / seconds)
    assert error <= TOLERANCE
