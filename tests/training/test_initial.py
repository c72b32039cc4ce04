"""Initial weights of another run: only with the same vocabulary and normaliser."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.corpus.examples import word_tokenizer
from tests.training import task
from tests.training.checkpoints.test_folder import run_of
from tests.training.test_checkpointer import rewrite

from mm_ldlm.core import CheckpointError, ConfigurationError, FreezingError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.models.parts import freeze, tagged_parameters
from mm_ldlm.training import loop
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import MARKER, name_of
from mm_ldlm.training.initial import refuse_missing_origin

WORDS = [f"word{i}" for i in range(20)]


def run_on(words: list[str], root: Path, name: str, kind: str = "text_diffusion", **training: Any) -> loop.Run:
    """Build a run whose tokenizer has these words in this order."""
    made = word_tokenizer(*words, max_length=12)
    made.save(place := root / f"tokenizer-{name}")
    sizes = {"vocab_size": made.vocab_size, "pad_id": made.pad_id, "mask_id": made.mask_id}
    spec = task.spec(kind, shape=dataclasses.replace(task.SHAPE, **sizes, max_length=12), run_name=name, **training)
    spec.fingerprints["tokenizer"] = TextTokenizer.load(place).fingerprint
    return task.built(spec, root, data=task.data(spec, tokenizer=place))


def test_pitfall_28_another_vocabulary_is_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    loop.train(run_on(WORDS, tmp_path, "first", max_steps=2))
    same = run_on(WORDS, tmp_path, "same", init_from="first")
    averages = task.saved(tmp_path, 2, name="first")["ema.safetensors/model.text_embedding.weight"]
    assert torch.equal(same.learner.root.model.text_embedding.weight, averages)
    with refuses(CheckpointError, "first", "tokenizer.path"):
        run_on(WORDS[::-1], tmp_path, "other", init_from="first")


def test_weights_belong_to_the_normaliser_of_their_latents(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    for name, normaliser in (("first", "a"), ("second", "a"), ("third", "b")):
        spec = task.spec({"kind": "multimodal", "mode": "l2t"}, run_name=name, max_steps=2,
                         **({} if name == "first" else {"init_from": "first"}))  # fmt: skip
        spec.fingerprints["normaliser"] = normaliser
        if name == "third":
            with refuses(CheckpointError, "first", "normaliser.path"):
                task.built(spec, tmp_path)
        else:
            loop.train(task.built(spec, tmp_path))


def test_pitfall_10_an_untrained_input_is_not_frozen_and_a_trained_one_is(tmp_path: Path) -> None:
    l2t = {"kind": "multimodal", "mode": "l2t"}
    run = task.built(task.spec(l2t, run_name="first", max_steps=2), tmp_path)
    frozen = run.stepper.objective.frozen_parts(trained=True) - run.stepper.objective.frozen_parts(trained=False)
    loop.train(run)
    again = task.built(task.spec(l2t, init_from="first"), tmp_path)
    assert frozen
    assert not any(p.requires_grad for _, part, p in tagged_parameters(again.learner.root) if part.name in frozen)
    with pytest.raises(FreezingError):
        freeze(run.learner.root, frozen, trained=False)


@pytest.mark.parametrize("key", ["resume", "init_from"])
def test_an_origin_that_is_missing_or_not_whole_is_refused_before_the_run(
    key: str, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    directory = run_of(tmp_path, 2)
    there, missing = (task.spec(**{key: name}).training for name in ("run", "rum"))
    refuse_missing_origin(there, runs=tmp_path)
    with refuses(ConfigurationError, f"training.{key}", "rum"):
        refuse_missing_origin(missing, runs=tmp_path)
    (directory / name_of(2) / MARKER).unlink()
    with pytest.raises(CheckpointError, match=name_of(2)):
        refuse_missing_origin(there, runs=tmp_path)


@pytest.mark.parametrize("case", ["nothing", "another model", "no tokenizer", "poison"])
def test_a_checkpoint_that_does_not_fit_is_refused(case: str, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    loop.train(run_on(WORDS, tmp_path, "first", max_steps=2))
    path = folder.find(tmp_path / "first")
    more: dict[str, Any] = {}
    if case == "nothing":
        path = tmp_path / "nowhere"
    elif case == "no tokenizer":
        rewrite(path / "training_state.json", lambda state: state["identity"].pop("tokenizer"))
    elif case == "another model":
        more = {"model": {"kind": "dit", "dim": 32, "depth": 3, "time_conditioning": False}}
    else:
        rewrite(path / "ema.safetensors", lambda tensors: next(iter(tensors.values())).fill_(torch.nan))
    with refuses(CheckpointError, path.name):
        run_on(WORDS, tmp_path, "other", init_from=str(path), **more)
