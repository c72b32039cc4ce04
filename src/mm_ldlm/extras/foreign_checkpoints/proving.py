"""Comparison of an imported model with outputs of the original code, which are stored next to its weights.

B examples, L positions, R ids of the checkpoint, M scored positions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mm_ldlm.core import CheckpointError
from mm_ldlm.extras.foreign_checkpoints.reading import load

FILES = ("reference.safetensors", "reference.pt")
_EXPECTED = (
    "tensors tokens (B, L), clean (B, L), t or sigma (B,) or (B, L), logits (B, L, R) and loss (B,) or (B, L), states "
    "(B, L, d) or latents (B, d) if the model reads them, with ids of the tokenizer and texts that are not longer "
    "than the model's"
)


class Differences(NamedTuple):
    """Largest differences from a reference."""

    file: str
    predictions: float
    """Of the logits, and of what else the model predicts and the reference has"""
    largest: float
    """Largest absolute logit of the reference"""
    bound: float
    """In nats per token, of the bound's integrand at the times of the reference"""


def compare(root: Any, reads: Mapping[str, str], predicts: Mapping[str, str], folder: Path) -> Differences | None:
    """Run the batch of `folder/reference.pt` or `.safetensors` through a model; None if there is no such file.

    Args:
        root: model and objective, whose process has a schedule.
        reads: arguments of the model besides the noisy tokens, by their names in the reference.
        predicts: outputs of the model besides the logits, likewise; the reference may lack them.

    Raises:
        CheckpointError: the file is damaged, or lacks a part.
    """
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        return None
    found, process = load(file), root.objective.process
    try:
        noisy_BL, clean_BL, logits_BLR = found["tokens"].long(), found["clean"].long(), found["logits"]
        t = process.schedule.inverse((-found["sigma"].double()).exp()) if "sigma" in found else found["t"].double()
        given = {**found, "t": t.reshape(len(t), -1)[:, 0], "clean": clean_BL}
        with torch.no_grad():
            out = root.eval().model(noisy_BL, valid_BL=None, **{k: given[v] for k, v in reads.items()})
        ours_BLV = out.logits
        words_W = torch.tensor([word for word in process.vocabulary.word_ids if word < logits_BLR.shape[-1]])
        theirs_BLW = logits_BLR[..., words_W]
        apart_BLW = (ours_BLV[..., words_W] - theirs_BLW).abs()
        if process.traits.predicts_scores:  # the score of the token itself is a constant
            apart_BLW = apart_BLW.masked_fill(noisy_BL[..., None] == words_W, 0.0)
        pairs = [(getattr(out, ours), found[theirs]) for ours, theirs in predicts.items() if theirs in found]
        apart = torch.stack([apart_BLW.max(), *((one - other).abs().max() for one, other in pairs)]).max().item()
        scored_BL = process.scored(noisy_BL, torch.ones_like(noisy_BL, dtype=torch.bool))
        t_M = t.reshape(len(t), -1).expand_as(noisy_BL)[scored_BL]
        losses = process.elbo_losses(ours_BLV[scored_BL], clean_BL[scored_BL], noisy_BL[scored_BL], t_M)
        ours_B = torch.zeros(noisy_BL.shape).masked_scatter(scored_BL, losses.weighted_M.float()).sum(dim=1)
        bound_B = (ours_B - found["loss"].reshape(len(t), -1).sum(dim=1)).abs() / noisy_BL.shape[1]
        return Differences(file.name, apart, theirs_BLW.abs().max().item(), bound_B.max().item())
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{file}: expected {_EXPECTED}, found a file that cannot be compared ({error}). Write it again, or remove "
            "it."
        ) from None
