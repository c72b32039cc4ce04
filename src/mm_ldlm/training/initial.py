"""Initial weights from a checkpoint (`training.init_from`): its vocabulary is compared, and remapped where requested.

The rows of an embedding table and of the output layer belong to tokens. A checkpoint with another vocabulary has them
in another order: `training.init_vocabulary: by_token` moves each row to the id that its token has in this run. Which
dimensions of which parameters are indexed by tokens is measured: they are those that grow with the vocabulary of the
`DataShape`, whatever the model and the objective.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.core import CheckpointError, ConfigurationError, nearest, parse, show, to_dict
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.weights import differences, load_tensors, persistent_buffers, refuse_non_finite
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.spec import TrainingSpec

Build = Callable[[DataShape], TrainableRoot]
"""Builds the trainable root of a run for data of another shape"""
TOKENIZER = "tokenizer"


def refuse_missing_origin(training: TrainingConfig, *, runs: Path) -> None:
    """Refuse a `training.resume` or `training.init_from` that names no checkpoint, before the first node of a run.

    Raises:
        ConfigurationError: there is none; the message names the nearest folder.
        CheckpointError: it is not complete.
    """
    for key, named in (("resume", training.resume), ("init_from", training.init_from)):
        if named in ("auto", "never", None):
            continue
        path = runs / named
        if not os.path.isdir(path):  # `Path.is_dir` raises for a name that is too long
            near = nearest(path.name, sorted(entry.name for entry in path.parent.glob("*")))
            raise ConfigurationError(
                f"parameter 'training.{key}': expected the folder of a run or a checkpoint, found none at "
                f"{show(named)} (relative to {runs}).{near} Correct the name, or set an absolute path."
            )
        folder.find(path)


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """The ids of the tokens that a checkpoint and this run share.

    Attributes:
        theirs, ours: (n,) int64; token `theirs[i]` of the checkpoint is token `ours[i]` of this run.
        their_shape, our_shape: data that the two models were built for.
    """

    theirs: Tensor
    ours: Tensor
    their_shape: DataShape
    our_shape: DataShape


def refuse_other_vocabulary(source: Path, tokenizer: TextTokenizer) -> None:
    """Raise CheckpointError unless the checkpoint's rows belong to the same tokens as those of this run."""
    if _identity(source).get(TOKENIZER) == tokenizer.fingerprint:
        return
    raise CheckpointError(
        f"{source}: expected the vocabulary of this run ({tokenizer.vocab_size} tokens) for the weights of "
        "training.init_from, found another one. Set training.init_vocabulary to by_token, which moves the rows of the "
        "embeddings and of the output to the ids of this run, or use the tokenizer of that run."
    )


def common_tokens(theirs: TextTokenizer, ours: TextTokenizer) -> tuple[Tensor, Tensor]:
    """Return the ids (n,) of the tokens that both vocabularies contain, in theirs and in ours.

    Tokens are compared by their spelling; pad, mask and unknown tokens by their role.
    """
    specials = [(getattr(theirs, name), getattr(ours, name)) for name in ("pad_id", "mask_id", "unk_id")]
    special_here = {our for _, our in specials}
    special_there = {their for their, _ in specials}
    there = {theirs.token(i): i for i in range(theirs.vocab_size) if i not in special_there}
    pairs = specials + [
        (there[word], i) for i in range(ours.vocab_size) if i not in special_here and (word := ours.token(i)) in there
    ]
    return torch.tensor([pair[0] for pair in pairs]), torch.tensor([pair[1] for pair in pairs])


def initialise(
    root: TrainableRoot, path: Path, *, spec: TrainingSpec, tokenizer: Path | None, build: Build, tracker: Tracker
) -> None:
    """Initialise the root with the weights of a checkpoint (the EMA weights if it has them).

    Parameters of the objective keep their initial values if the checkpoint has none of them. Its buffers are not taken
    from the checkpoint: they depend on the data and the steps of this run.

    Args:
        tokenizer: folder of this run's tokenizer; None (data in memory) compares nothing.

    Raises:
        CheckpointError: the checkpoint belongs to another model or vocabulary, or contains values that are not finite.
    """
    source = folder.find(path)
    name = "ema.safetensors" if (source / "ema.safetensors").is_file() else "model.safetensors"
    values = folder.tensors(source, name)
    theirs = _identity(source).get("model")
    if isinstance(theirs, dict) and (differing := differences(theirs, to_dict(spec.model))):
        tracker.event(0, "init_differs", fields=differing)
    own = {name for name in values if name.startswith("objective.")} & dict(root.named_parameters()).keys()
    targets = {name: p for name, p in root.named_parameters() if own or not name.startswith("objective.")}
    buffers = persistent_buffers(root).keys()
    values = {
        name: value for name, value in values.items()
        if name not in buffers and (own or not name.startswith("objective."))
    }  # fmt: skip
    refuse_non_finite(values, source, remedy="Name another checkpoint in training.init_from.")
    if tokenizer is not None:
        mine = TextTokenizer.load(tokenizer)
        if spec.training.init_vocabulary == "same":
            refuse_other_vocabulary(source, mine)
        else:
            both = _vocabularies(source, mine, spec.shape)
            values = remap(values, targets, both, build=build, source=source)
            tracker.event(
                0, "init_vocabulary", kept=len(both.ours), new=mine.vocab_size - len(both.ours), source=str(source)
            )
    load_tensors(targets, values, source)


def remap(
    values: Mapping[str, Tensor], targets: Mapping[str, Tensor], both: Vocabularies, *, build: Build, source: Path
) -> dict[str, Tensor]:
    """Move the rows of all parameters that are indexed by tokens to the ids of this run.

    Rows of tokens that the checkpoint lacks, and of the ids of the noise, keep the initial values of `targets`.
    """
    larger = dict(
        build(dataclasses.replace(both.our_shape, vocab_size=both.our_shape.vocab_size + 1)).named_parameters()
    )
    made = dict(values)
    for name, target in targets.items():
        theirs = values.get(name)
        grown = [d for d in range(target.ndim) if larger[name].shape[d] != target.shape[d]]
        if theirs is None or theirs.ndim != target.ndim or not grown:
            continue  # `load_tensors` names what is missing or of another shape
        if len(grown) > 1:
            raise CheckpointError(
                f"{source}: {name} is indexed by tokens in {len(grown)} dimensions, which by_token cannot remap. Set "
                "training.init_vocabulary to same."
            )
        made[name] = _moved(theirs, target.detach().to("cpu"), both, dim=grown[0])
    return made


def _moved(theirs: Tensor, ours: Tensor, both: Vocabularies, *, dim: int) -> Tensor:
    """Copy the rows of common tokens, and the rows behind all ids (a begin token), into a copy of `ours`."""
    expected, found = list(ours.shape), list(theirs.shape)
    if expected[:dim] + expected[dim + 1 :] != found[:dim] + found[dim + 1 :]:
        return theirs  # of another model: `load_tensors` refuses it
    known = (both.theirs < found[dim]) & (both.ours < expected[dim])
    behind_theirs, behind_ours = found[dim] - both.their_shape.num_ids, expected[dim] - both.our_shape.num_ids
    behind = torch.arange(behind_ours) if behind_theirs == behind_ours and behind_ours > 0 else torch.arange(0)
    from_ids = torch.cat([both.theirs[known], both.their_shape.num_ids + behind])
    to_ids = torch.cat([both.ours[known], both.our_shape.num_ids + behind])
    return ours.clone().index_copy_(dim, to_ids, theirs.to(ours.dtype).index_select(dim, from_ids))


def _vocabularies(source: Path, tokenizer: TextTokenizer, shape: DataShape) -> Vocabularies:
    theirs, ours = common_tokens(TextTokenizer.load(source / TOKENIZER), tokenizer)
    if len(ours) <= 3:
        raise CheckpointError(
            f"{source}: expected tokens that this run also has, found none besides pad, mask and unknown. Choose a "
            "checkpoint with a tokenizer of the same kind."
        )
    their_shape = parse(DataShape, _identity(source).get("shape"), at="shape")
    return Vocabularies(theirs, ours, their_shape, shape)


def _identity(source: Path) -> dict[str, Any]:
    found = folder.document(source, "training_state.json").get("identity")
    return found if isinstance(found, dict) else {}
