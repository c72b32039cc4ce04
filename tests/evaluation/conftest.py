"""A tiny random model with its encoder, a text-only stub, and a dataset of a few hundred short sentences."""

from __future__ import annotations

import numpy as np
import pytest

DIM, LENGTH, WORDS = 6, 10, 20


class WordTokenizer:
    """One id per word, w0 … w19, as in the dataset of `write_dataset`."""

    words = tuple(f"w{i}" for i in range(WORDS))
    unk_id, pad_id, mask_id, vocab_size = WORDS, WORDS + 1, WORDS + 2, WORDS + 3
    max_length = LENGTH

    def encode(self, texts):
        return [[self.words.index(w) if w in self.words else self.unk_id for w in text.split()] for text in texts]

    def decode(self, ids):
        return " ".join(self.words[i] if i < WORDS else "[UNK]" for i in ids if i != self.pad_id)

    def decode_batch(self, batch, *, skip_special=False):
        return [self.decode(ids) for ids in batch]


class DoublingNormaliser:
    def standardise(self, x):
        return x * 2

    def invert(self, z):
        x = z / 2
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


class BagEncoder:
    """A unit vector per text: a fixed random vector per word, summed with falling weights."""

    dim = DIM
    table = np.random.default_rng(0).normal(size=(WORDS + 3, DIM))

    def encode(self, sentences):
        ids = WordTokenizer().encode(list(sentences))
        raw = np.stack([sum(self.table[i] / (1 + 0.3 * p) for p, i in enumerate(row)) for row in ids])
        return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def make_model():
    """`make_model(mode="l2t", ...)`: a random model of two blocks under an objective with these parameters."""
    import torch

    from mm_ldlm.core.config import parse_kind
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.models.base import DataShape
    from mm_ldlm.models.registry import MODELS
    from mm_ldlm.objectives.registry import OBJECTIVES

    def make(*, seed=0, **objective):
        tokenizer = WordTokenizer()
        shape = DataShape(
            vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id, mask_id=tokenizer.mask_id, max_length=LENGTH,
            latent_dim=DIM,
        )  # fmt: skip
        small = {"kind": "mmdit", "dim": 32, "depth": 2, "heads": 2, "latent_tokens": 2}
        model_config = parse_kind(MODELS, small, at="model")
        objective_config = parse_kind(OBJECTIVES, {"kind": "multimodal", **objective}, at="objective")
        generator = torch.Generator().manual_seed(seed)
        model = model_config.build(shape, generator=generator)
        with torch.no_grad():  # heads start at zero and would predict a uniform distribution
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
        generative = objective_config.build(shape).generative_model(model)
        capabilities = objective_config.capabilities(model_config)
        return MMLDLM(generative, capabilities, tokenizer, DoublingNormaliser(), BagEncoder())

    return make


class TextOnlyModel:
    """A text-only stub of `MMLDLM`: every token costs `nats`, and so does the end token where the likelihood is exact.

    It has only the attributes of `MMLDLM` that the suites of a text-only run use: no encoder and no latents.
    """

    tokenizer, max_length = WordTokenizer(), LENGTH

    def __init__(self, likelihood, *, nats=2.0, uses=("unconditional", "score")):
        from mm_ldlm.objectives.capabilities import Capabilities

        self.nats = nats
        self.capabilities = Capabilities(uses=frozenset(uses), likelihood=likelihood, trained_as="objective stub")

    def score_tokens(self, ids, texts, *, latents=None, draws=16, seed=0):
        from mm_ldlm.inference.results import Scores

        assert latents is None, "a text-only model has no latents"
        exact = self.capabilities.likelihood == "exact"
        length_N = np.array([len(row) for row in ids])
        token_nll = self.nats * (length_N + (1.0 if exact else 0.0))
        draws = 1 if exact else draws
        masking = {
            "draw_mask_ratio": np.full((draws, len(ids)), 0.5),
            "draw_masked": np.tile(length_N / 2, (draws, 1)),
            "draw_correct": np.zeros((draws, len(ids))),
            "draw_cross_entropy": np.tile(self.nats * length_N / 2, (draws, 1)),
        }
        return Scores(
            texts=tuple(texts),
            tokens=length_N,
            likelihood=self.capabilities.likelihood,
            length_nll=np.zeros(len(ids)) if exact else np.full(len(ids), self.nats),
            token_nll=token_nll,
            standard_errors=np.zeros(len(ids)),
            draw_nll=np.tile(token_nll, (draws, 1)),
            **({} if exact else masking),
        )


@pytest.fixture
def text_only():
    return TextOnlyModel


@pytest.fixture(scope="session")
def model(make_model):
    return make_model()


@pytest.fixture(scope="session")
def dataset(write_dataset, tmp_path_factory):
    """300 sentences with their latents, a sixth of them test."""
    generator = np.random.default_rng(1)
    texts = list(
        dict.fromkeys(
            " ".join(f"w{k}" for k in generator.integers(0, WORDS, size=generator.integers(2, LENGTH + 1)))
            for _ in range(300)
        )
    )
    splits = ["test" if i % 6 == 0 else "train" for i in range(len(texts))]
    ids = [f"id{i:04d}" for i in range(len(texts))]
    latents = BagEncoder().encode(texts)
    root = tmp_path_factory.mktemp("dataset")
    return write_dataset(root, texts, splits, latents=latents, max_length=LENGTH, ids=ids)


@pytest.fixture(scope="session")
def samples(model, dataset):
    """The output of the sampling pipeline: tables of 40 held-out sentences, and 20 unconditional texts."""
    from mm_ldlm.data.sentences import held_out

    sentences = held_out(dataset, count=40, seed=0)
    inverted = model.invert(sentences.latents_nd, steps=2, reembed=True).to_frame()
    inverted["id"] = list(sentences.ids)
    drawn = model.embed(list(sentences.texts), steps=2).to_frame()
    drawn["id"] = list(sentences.ids)
    return {"l2t": inverted, "t2l": drawn, "unconditional": model.generate(20, steps=2).to_frame()}
