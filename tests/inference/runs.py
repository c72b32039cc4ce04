"""Small runs with everything that a run has: model, tokenizer, normaliser and encoder; in memory or in a folder."""

import functools
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tests.data.corpus.examples import word_tokenizer

from mm_ldlm.core import parse_kind, to_dict
from mm_ldlm.core.files import write_json
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.base import MODELS, DataShape, init_weights
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.weights import identity_of

DIM, LENGTH, WORDS = 6, 12, 20
MMDIT = {"kind": "mmdit", "dim": 32, "depth": 2, "heads": 2, "latent_tokens": 2}
DIT = {"kind": "dit", "dim": 32, "depth": 2, "heads": 2}
MULTIMODAL, TEXT = {"kind": "multimodal"}, {"kind": "text_diffusion"}
WORD_TABLE, EXACT = ({"kind": f"tests.toy.toy_component:Toy{what}Config"} for what in ("Model", "Objective"))
"""Independent words, whose likelihood is exact"""
LATENTS = np.eye(4, DIM, dtype=np.float32)


@functools.cache
def tokenizer(words: int = WORDS, length: int = LENGTH) -> TextTokenizer:
    """Make the tokenizer of the words w0, w1 …; every other word is [UNK]."""
    return word_tokenizer(*(f"w{i}" for i in range(words)), max_length=length)


def normaliser(*, typical: tuple[float, float] | None = None) -> Normaliser:
    """Make the normaliser of vectors of norm 1."""
    return Normaliser("standard", np.full(DIM, 0.1), np.full(DIM, 0.5), True, rows=10, typical=typical)


class BagEncoder:
    """A unit vector for each text: the sum of a fixed random vector for each word and position."""

    dim = DIM

    def __init__(self) -> None:
        self.calls = 0
        self.table = np.random.default_rng(0).normal(size=(WORDS + 3, LENGTH * 4, DIM))

    def encode(self, sentences: Any) -> npt.NDArray[np.float32]:
        self.calls += len(sentences)
        ids = tokenizer().encode(list(sentences))
        raw_nd = np.stack([sum((self.table[i, p] for p, i in enumerate(row)), np.zeros(DIM)) + 1e-3 for row in ids])
        return (raw_nd / np.linalg.norm(raw_nd, axis=1, keepdims=True)).astype(np.float32)


def root_of(model: dict[str, Any], objective: dict[str, Any], *, spread: float = 0.15) -> TrainableRoot:
    """Build a model and its objective; the weights are moved at random, so that heads that start at 0 predict."""
    made_model, made_objective = parse_kind(MODELS, model, at=""), parse_kind(OBJECTIVES, objective, at="")
    sizes = {"latents": (DIM,)} if "latents" in made_objective.fields else {}
    words = tokenizer()
    shape = DataShape(
        vocab_size=words.vocab_size, pad_id=words.pad_id, mask_id=words.mask_id, max_length=LENGTH, fields=sizes
    )
    generator = torch.Generator().manual_seed(0)
    built, module = made_objective.build(shape), made_model.build(shape, generator=generator)
    init_weights(built, generator)
    built.attach(module)
    root = TrainableRoot(module, built)
    with torch.no_grad():
        for parameter in root.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    return root.requires_grad_(False)


def make(
    model: dict[str, Any] | None = None,
    objective: dict[str, Any] | None = None,
    *,
    typical: tuple[float, float] | None = None,
    **options: Any,
) -> MMLDLM:
    """Make a run in memory, of texts and latents or of another objective; `options` are those of `MMLDLM`."""
    root = root_of(model or MMDIT, objective or MULTIMODAL)
    capabilities = parse_kind(OBJECTIVES, objective or MULTIMODAL, at="").capabilities(
        parse_kind(MODELS, model or MMDIT, at="")
    )
    latents = "latents" in root.objective.fields
    made = Parts(
        root.objective.generative_model(root.model), capabilities, tokenizer(),
        {"normaliser": normaliser(typical=typical)} if latents else {},
    )  # fmt: skip
    return MMLDLM(made, **{**({"encoder": BagEncoder()} if latents else {}), **options})


def text_run(**options: Any) -> MMLDLM:
    """Make a run of text diffusion, without latents."""
    return make(DIT, TEXT, **options)


def write_run(
    directory: Path,
    *,
    model: dict[str, Any] | None = None,
    objective: dict[str, Any] | None = None,
    encoder: dict[str, Any] | None = None,
    fingerprints: dict[str, str] | None = None,
) -> Path:
    """Write a run folder as training leaves it; the last weights are all 0, the averaged ones are not."""
    model, objective = model or MMDIT, objective or MULTIMODAL
    root = root_of(model, objective)
    parts = directory.parent / f"{directory.name}-parts"
    carried: dict[str, Any] = {"tokenizer": tokenizer()}
    if "latents" in root.objective.fields:
        carried["normaliser"] = normaliser()
    for name, part in carried.items():
        (parts / name).mkdir(parents=True)
        part.save(parts / name)
    values = {name: parameter.detach() for name, parameter in root.named_parameters()}
    tensors = {"model.safetensors": {name: value * 0 for name, value in values.items()}, "ema.safetensors": values}
    fingerprints = {"encoder": "0" * 32} if fingerprints is None else fingerprints
    made_model, made_objective = parse_kind(MODELS, model, at=""), parse_kind(OBJECTIVES, objective, at="")
    shape = root.objective.shape
    identity = identity_of(model=made_model, shape=shape, objective=made_objective, fingerprints=fingerprints)
    document = {"metrics": {}, "identity": identity}
    folder.write(
        directory / "checkpoints", 3, tensors=tensors, documents={"training_state.json": document},
        folders={name: parts / name for name in carried},
    )  # fmt: skip
    config = {"model": to_dict(made_model), "objective": to_dict(made_objective), "shape": to_dict(shape)}
    write_json(directory / "config.json", {**config, "encoder": encoder or {}, "fingerprints": fingerprints})
    return directory


def compute_forked(own: int | None) -> None:
    """Score texts with two threads, then in a forked process that may set its own number of them; then exit with 0."""
    model, texts = text_run(), ["w1 w2 w3 w4 w5 w6 w7 w8"] * 300
    torch.set_num_threads(2)
    expected = model.score(texts, draws=2).nll
    assert torch.get_num_threads() == 2, "the first process keeps its threads"

    def again() -> None:
        if own is not None:
            torch.set_num_threads(own)
        np.testing.assert_allclose(model.score(texts, draws=2).nll, expected, rtol=1e-4)

    process = multiprocessing.get_context("fork").Process(target=again)
    process.start()
    process.join(60)  # a hang, not slowness
    process.kill()
    sys.exit(process.exitcode != 0)
