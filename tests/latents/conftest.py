"""A tiny encoder, and records, tokens and latents made by the production code."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mm_ldlm.data.store.verified import RECORD

from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.splits import SplitConfig, split_of
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.data.corpus.tokens import tokenize_records
from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore, StoreWriter

ENCODERS = str(Path(__file__).parents[1] / "encoders")
if ENCODERS not in sys.path:  # `embedding_service` is imported by name
    sys.path.insert(0, ENCODERS)

from tests.extras.http_encoder.embedding_service import service  # noqa: E402, F401

NOUNS = ("cat", "dog", "teacher", "sailor", "river", "house", "bird", "baker", "train", "king", "garden", "letter")
VERBS = ("sees", "likes", "finds", "follows", "paints", "forgets", "remembers", "carries")


def sentences(count: int) -> list[str]:
    """Distinct sentences of various lengths."""
    random = np.random.default_rng(5)
    found: dict[str, None] = {}
    while len(found) < count:
        a, b, c = (NOUNS[i] for i in random.integers(0, len(NOUNS), 3))
        text = f"the {a} {VERBS[random.integers(0, len(VERBS))]} the {b}"
        text += f" and the {c} {VERBS[random.integers(0, len(VERBS))]} it" * int(random.integers(0, 3))
        found[text + "."] = None
    return list(found)


def write_records(folder: Path, texts: list[str], *, shard_rows: int = 1000) -> ShardStore:
    splits = SplitConfig(validation=0.1, test=0.1)
    writer = StoreWriter(folder, kind="records", schema=RECORD_SCHEMA, shard_rows=shard_rows)
    writer.append(
        {
            "id": [record_id(text) for text in texts],
            "text": texts,
            "source": ["toy"] * len(texts),
            "split": [split_of(text, splits) for text in texts],
            "meta": [None] * len(texts),
        }
    )
    writer.finish()
    return ShardStore.open(folder, "records")


@pytest.fixture
def new_records() -> Callable[..., ShardStore]:
    """Return `write_records`; `from conftest import` could find the one of another folder."""
    return write_records


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers and dimension 24 with the real bert-base-uncased tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    from mm_ldlm.data.encoders import locate_encoder

    folder = tmp_path_factory.mktemp("encoder")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = BertConfig(
            vocab_size=30522, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
            max_position_embeddings=64,
        )  # fmt: skip
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    real = locate_encoder(LocalEncoderConfig()).folder
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(real / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> LocalEncoderConfig:
    return LocalEncoderConfig(name="minilm", path=str(encoder_folder), device="cpu", batch_tokens=256, max_length=64)


@dataclasses.dataclass(frozen=True)
class Data:
    """Stores that belong together, and what made them."""

    root: Path
    encoder: LocalEncoderConfig
    extraction: ExtractConfig
    tokenizer: TextTokenizer

    @property
    def records(self) -> ShardStore:
        return ShardStore.open(self.root / "records", "records")

    @property
    def tokens(self) -> ShardStore:
        return ShardStore.open(self.root / "tokens", "tokens")

    @property
    def latents(self) -> LatentStore:
        return LatentStore.open(self.root / "latents")

    def extract(self, **changes: object) -> None:
        config = dataclasses.replace(self.extraction, **changes)
        extract(self.records, encoder=self.encoder, config=config, workspace=self.root / "latents")


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too, but for the record of verified files, which has their times."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RECORD)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def make(root: Path, encoder: LocalEncoderConfig, *, rows: int = 230, shard_rows: int = 50) -> Data:
    records = write_records(root / "records", sentences(rows))
    limits = TokenizerConfig(max_length=32, reduce_vocabulary=False)
    tokenizer = load_tokenizer(limits)
    tokenize_records(records, tokenizer, limits, root / "tokens").write(root / "tokens")
    extraction = ExtractConfig(shard_rows=shard_rows, processes=1, progress=False)
    data = Data(root, encoder, extraction, tokenizer)
    data.extract()
    return data


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory, encoder: LocalEncoderConfig) -> Data:
    """Do not write into it."""
    return make(tmp_path_factory.mktemp("pristine"), encoder)


@pytest.fixture
def data(pristine: Data, tmp_path: Path) -> Data:
    """A copy to break."""
    shutil.copytree(pristine.root, tmp_path / "data")
    return dataclasses.replace(pristine, root=tmp_path / "data")


@pytest.fixture
def new_data(encoder: LocalEncoderConfig, tmp_path: Path) -> Callable[..., Data]:
    def build(**options: int) -> Data:
        return make(tmp_path / "made", encoder, **options)

    return build


@pytest.fixture
def files() -> Callable[[Path], dict[str, bytes]]:
    return bytes_of
