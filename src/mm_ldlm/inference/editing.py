"""Requests that write a part of a text: infilling and editing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch

from mm_ldlm.core.config import Fraction, Seed, bounded, check
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.core.messages import show
from mm_ldlm.inference.arguments import check_lengths, texts_of
from mm_ldlm.inference.batches import Batches, Values
from mm_ldlm.inference.conversion import KEPT, Latents
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.verbatim import rewritten, with_masks
from mm_ldlm.sampling.orders import top_by_row

if TYPE_CHECKING:
    from mm_ldlm.inference.model import LoadedModel

Which = Literal["least_likely", "random"]
Mark = Annotated[str, bounded(min_length=1)]


def infill(
    model: LoadedModel,
    texts: Sequence[str] | str,
    *,
    latents: Latents | None = None,
    sampler: Any = None,
    steps: int | None = None,
    mask: str = "[MASK]",
    seed: int = 0,
) -> Texts:
    """Infill texts: replace every `mask` by one token, given a latent or unconditionally.

    Everything else in a text stays verbatim, also words that are [UNK] to the model.

    Raises:
        SamplingError: a text has no `mask`, is empty, or is too long.
    """
    model.capabilities.require("infill" if latents is None else "infill_given_latent")
    seed, mask, converter = check(seed, Seed, name="seed"), check(mask, Mark, name="mask"), model.converter
    listed = texts_of(texts)
    if without := [text for text in listed if mask not in text]:
        raise SamplingError(
            f"infill: expected at least one {show(mask, 60)} in each text, found none in {show(without[0], 60)}."
        )
    templates, canvases = zip(*(with_masks(text, mask, model.tokenizer) for text in listed), strict=True)
    check_lengths(canvases, listed, max_length=model.max_length)
    converter.warn_of_unknown(canvases, listed, effect=KEPT)
    raw_nd = None if latents is None else converter.one_for_each(latents, listed)
    latents_nd = None if raw_nd is None else converter.standardised(raw_nd)
    config = model.text_sampler(sampler, steps)
    written = model.writer.write(canvases, latents_nd=latents_nd, sampler=config, seed=seed)
    made = model.texts(written, listed, raw_nd, templates=templates)
    return replace(made, unknown=converter.unknown(canvases))  # the marks of the gaps are not words of the text


def edit(
    model: LoadedModel,
    sources: Sequence[str] | str,
    *,
    targets: Latents | Sequence[str] | str,
    strength: float = 0.5,
    which: Which = "least_likely",
    sampler: Any = None,
    steps: int | None = None,
    reembed: bool = False,
    seed: int = 0,
) -> Texts:
    """Edit texts: rewrite a fraction `strength` of the tokens of each source, given a target latent.

    `which` chooses the tokens: those that are least likely given the target latent (four more model calls), or
    random ones. The number of tokens does not change; strength 0 returns the source, 1 keeps only its length.
    The tokens that are not rewritten stay verbatim.
    """
    model.capabilities.require("edit")
    seed, reembed = check(seed, Seed, name="seed"), check(reembed, bool, name="reembed")
    strength, which = check(strength, Fraction, name="strength"), check(which, Which, name="which")
    listed, config = texts_of(sources, name="sources"), model.text_sampler(sampler, steps)
    _, raw_nd = model.converter.targets(targets)
    raw_nd = np.repeat(raw_nd, len(listed), axis=0) if len(raw_nd) == 1 else raw_nd
    latents_nd = model.converter.standardised(model.converter.one_for_each(raw_nd, listed))
    ids = model.converter.ids(listed, effect=KEPT)
    canvases, calls = remask(model.writer, ids, latents_nd=latents_nd, strength=strength, which=which, seed=seed)
    written = model.writer.write(canvases, latents_nd=latents_nd, sampler=config, seed=seed)
    written = replace(written, model_calls=written.model_calls + calls)
    templates = [rewritten(*pair, model.tokenizer) for pair in zip(listed, canvases, strict=True)]
    return model.texts(written, listed, raw_nd, reembed=reembed, templates=templates)


def remask(
    requests: Batches,
    ids: Sequence[Sequence[int]],
    *,
    latents_nd: torch.Tensor,
    strength: float,
    which: Which,
    seed: int,
) -> tuple[list[list[int]], np.ndarray]:
    """Mask a fraction `strength` (rounded) of each text's tokens; return the canvases and the model calls per text.

    For `least_likely`, the tokens that are least probable given the target latent are masked.
    """
    model, informed = requests.model, which == "least_likely" and 0 < strength < 1

    def work(batch: list[int]) -> Values:
        tokens_BL = requests.padded([ids[row] for row in batch])
        valid_BL = tokens_BL != model.shape.pad_id
        stream = requests.generator(batch, seed).fork("edit")
        priority_BL, calls = stream.fork("order").uniform(tokens_BL.shape[1]), 0
        if informed:
            log_probs_BL, calls = model.token_log_probs(tokens_BL, latents_Bd=latents_nd[batch], generator=stream)
            priority_BL = -log_probs_BL
        count_B = (valid_BL.sum(dim=1) * strength).round().long()
        open_BL = top_by_row(priority_BL.masked_fill(~valid_BL, -torch.inf), count_B) & valid_BL
        masked_BL = tokens_BL.masked_fill(open_BL, model.shape.mask_id).tolist()
        return {
            "canvases": [canvas[: len(ids[row])] for row, canvas in zip(batch, masked_BL, strict=True)],
            "log_probabilities_of_the_source": priority_BL.double().sum(dim=1),
            "calls": torch.full((len(batch),), calls),
        }

    batches = requests.divide([len(row) for row in ids])
    with model.evaluating():
        found = requests.joined(batches, [*requests.results(work, batches, "choosing")])
    return found["canvases"], found["calls"]
