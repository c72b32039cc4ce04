"""A tiny model with all of its inputs in memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.families.autoregressive.model import CausalConfig
from mm_ldlm.families.autoregressive.objective import AutoregressiveConfig
from mm_ldlm.inference import MMLDLM
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.models.mmdit import MMDiTConfig
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig

HERE = str(Path(__file__).parent)
if HERE not in sys.path:  # `scripted` is imported by name
    sys.path.insert(0, HERE)

DIM, LENGTH = 6, 12
SHAPE = DataShape(vocab_size=23, pad_id=20, mask_id=21, max_length=LENGTH, latent_dim=DIM)
TEXT_SHAPE = DataShape(vocab_size=23, pad_id=20, mask_id=21, max_length=LENGTH)


class WordTokenizer:
    """One id per word: w0 … w19."""

    words = tuple(f"w{i}" for i in range(20))
    vocab_size, pad_id, mask_id, unk_id = 23, 20, 21, 22
    max_length = LENGTH

    def encode(self, texts):
        return [[self.words.index(w) if w in self.words else self.unk_id for w in text.split()] for text in texts]

    def spans(self, text):
        return [match.span() for match in re.finditer(r"\S+", text)]

    def decode(self, ids):
        return " ".join(self.words[i] if i < 20 else f"[{i}]" for i in ids if i != self.pad_id)

    def decode_batch(self, batch, *, skip_special=False):
        return [self.decode(ids) for ids in batch]


class UnitNormaliser:
    """Standardised = raw·2; unit vectors."""

    def standardise(self, x):
        return x.astype(np.float64) * 2

    def invert(self, z):
        x = z / 2
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


class BagEncoder:
    """A unit vector per text: a fixed random vector per (word, position), summed."""

    dim = DIM

    def __init__(self):
        self.calls = 0
        self.table = np.random.default_rng(0).normal(size=(23, LENGTH * 4, DIM))

    def encode(self, sentences):
        self.calls += len(sentences)
        ids = WordTokenizer().encode(list(sentences))
        raw = np.stack([sum(self.table[i, p] for p, i in enumerate(row)) for row in ids])
        return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


def built(config, shape, *, seed=0):
    """A model whose heads, which start at 0, predict something."""
    generator = torch.Generator().manual_seed(seed)
    module = config.build(shape, generator=generator)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return module


def make(*, seed=0, objective=None, encoder=None, config=None, **options):
    config = config or MMDiTConfig(**{"dim": 32, "depth": 2, "heads": 2, "latent_tokens": 2} | options)
    objective = objective or MultimodalConfig()
    generative = objective.build(SHAPE).generative_model(built(config, SHAPE, seed=seed))
    return MMLDLM(
        generative, objective.capabilities(config), WordTokenizer(), UnitNormaliser(), encoder or BagEncoder()
    )


@pytest.fixture
def model():
    return make()


@pytest.fixture
def build():
    return make


def make_text_model(*, objective=None, config=None):
    config, objective = config or DiTConfig(dim=32, depth=2, heads=2), objective or TextDiffusionConfig()
    generative = objective.build(TEXT_SHAPE).generative_model(built(config, TEXT_SHAPE))
    return MMLDLM(generative, objective.capabilities(config), WordTokenizer())


@pytest.fixture
def build_text():
    return make_text_model


@pytest.fixture
def text_model():
    """A run without latents: text diffusion alone."""
    return make_text_model()


def make_causal():
    return make_text_model(objective=AutoregressiveConfig(), config=CausalConfig(dim=16, depth=1, heads=2))


@pytest.fixture
def causal_model():
    return make_causal()


def make_images():
    shape = DataShape(vocab_size=23, pad_id=20, mask_id=21, max_length=LENGTH, image_size=(4, 4, 1))
    config = parse_kind(MODELS, {"kind": "image_mmdit", "dim": 16, "depth": 1, "heads": 2}, at="model")
    objective = parse_kind(OBJECTIVES, {"kind": "image_text"}, at="objective")
    generative = objective.build(shape).generative_model(built(config, shape))
    normaliser = Normaliser("one_scale", np.full(16, 0.5), np.full(16, 0.25), False)
    return MMLDLM(generative, objective.capabilities(config), WordTokenizer(), image_normaliser=normaliser)


def make_classifier(*, pairs):
    kind = {"kind": "pairwise_classification"} if pairs else {"kind": "classification", "features": "trunk"}
    names = [b"first\0\0", b"second\0", b"similar"]
    config, objective = DiTConfig(dim=32, depth=1, heads=2), parse_kind(OBJECTIVES, kind, at="objective")
    module = built(config, TEXT_SHAPE)
    made = objective.build(TEXT_SHAPE, label_names=torch.tensor([list(name) for name in names], dtype=torch.uint8))
    made.attach(module)
    init_weights(made, torch.Generator().manual_seed(1))
    return MMLDLM(made.generative_model(module), objective.capabilities(config), WordTokenizer())


@pytest.fixture
def unit_latents():
    def draw(n, seed=5):
        raw = np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)
        return raw / np.linalg.norm(raw, axis=1, keepdims=True)

    return draw


def write_run(directory, *, seed=0, objective=None, config=None, encoder=None, fingerprints=None):
    """A run folder as training leaves it, with a tiny untrained model; returns the folder.

    The last weights are all 0, the averaged ones are not. A run whose objective reads no latents has no normaliser of
    latents, and one that reads no images none of images.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    from mm_ldlm.core import files as atomic
    from mm_ldlm.core.config import to_dict
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer, complete_specials
    from mm_ldlm.objectives.root import TrainableRoot
    from mm_ldlm.training.checkpoints import folder
    from mm_ldlm.training.checkpoints.identity import identity_of

    objective = objective or MultimodalConfig()
    config = config or MMDiTConfig(dim=32, depth=2, heads=2, latent_tokens=2)
    base = Tokenizer(models.WordLevel({f"w{i}": i for i in range(20)} | {"[UNK]": 20}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = TextTokenizer(complete_specials(base), max_length=LENGTH)
    carried = {"tokenizer": tokenizer}
    if "latents" in objective.fields:
        carried["normaliser"] = Normaliser("standard", np.full(DIM, 0.1), np.full(DIM, 0.5), True, rows=10)
    if "images" in objective.fields:
        carried["image_normaliser"] = Normaliser("one_scale", np.full(16, 0.3), np.full(16, 0.75), False, rows=10)
    parts = directory.parent / f"{directory.name}-parts"
    for name, part in carried.items():
        (parts / name).mkdir(parents=True)
        part.save(parts / name)
    shape = DataShape(
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        mask_id=tokenizer.mask_id,
        max_length=LENGTH,
        latent_dim=DIM if "latents" in objective.fields else None,
        image_size=(4, 4, 1) if "images" in objective.fields else None,
    )
    root = TrainableRoot(built(config, shape, seed=seed), objective.build(shape))
    values = {name: parameter.detach() for name, parameter in root.named_parameters()}
    tensors = {"model.safetensors": {k: v * 0 for k, v in values.items()}, "ema.safetensors": values}
    fingerprints = {"encoder": "0" * 32} if fingerprints is None else fingerprints
    identity = identity_of(model=config, shape=shape, objective=objective, fingerprints=fingerprints)
    folder.write(
        directory / "checkpoints",
        3,
        folder.Contents(
            tensors, {"training_state.json": {"metrics": {}, "identity": identity}}, {n: parts / n for n in carried}
        ),
    )
    atomic.write_json(
        directory / "config.json",
        {
            "model": to_dict(config),
            "objective": to_dict(objective),
            "shape": to_dict(shape),
            "encoder": encoder or {},
            "fingerprints": fingerprints,
        },
    )
    return directory


@pytest.fixture(scope="session")
def parts():
    """What fixtures of other scopes build their models from."""
    return SimpleNamespace(
        make=make, make_text_model=make_text_model, make_causal=make_causal, make_images=make_images,
        make_classifier=make_classifier, write_run=write_run, BagEncoder=BagEncoder,
    )  # fmt: skip


@pytest.fixture
def run_folder(tmp_path):
    return write_run(tmp_path / "run-1")


@pytest.fixture
def text_run_folder(tmp_path):
    return write_run(tmp_path / "run-1", objective=TextDiffusionConfig(), config=DiTConfig(dim=32, depth=2, heads=2))


@pytest.fixture
def bag_encoder():
    return BagEncoder()
