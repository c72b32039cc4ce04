"""Infilling and editing of given texts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch

from mm_ldlm.core import Fraction, SamplingError, Seed, bounded, check, show
from mm_ldlm.extras.editing.verbatim import Template, rewritten, with_masks
from mm_ldlm.inference.arguments import MODEL, check_lengths, texts_of, vectors_of
from mm_ldlm.inference.model import READ, Latents, LoadedModel, by_row
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.writer import Values, Writer, Written
from mm_ldlm.sampling.orders import top_by_row
from mm_ldlm.sampling.registry import TEXT_SAMPLERS

Mark = Annotated[str, bounded(min_length=1)]
KEPT = f"{READ}, and the result keeps those that are not rewritten"
"""Effect on words outside the vocabulary in a text of which a part is rewritten"""


@by_row
def infill(
    model: LoadedModel,
    texts: Sequence[str] | str,
    *,
    latents: Latents | None = None,
    sampler: Annotated[Any, TEXT_SAMPLERS] = None,
    steps: int | None = None,
    temperature: float | None = None,
    mask: str = "[MASK]",
    seed: int = 0,
) -> Texts:
    """Fill the gaps of texts, given a latent or unconditionally.

    A gap is filled with one token, or with any number of tokens by a model that chooses its lengths. An autoregressive
    model fills a gap at the end. Everything else stays verbatim, including words that are [UNK] to the model.

    Args:
        latents: raw latent of each text, given which its gaps are filled; by default they are filled without one.
        mask: mark of a gap in the texts.

    Raises:
        SamplingError: a text has no `mask`, is empty, or is too long.
    """
    use = model.capabilities.filling(given_latent=latents is not None)
    model.capabilities.require(use)
    seed, mask = check(seed, Seed, name="seed"), check(mask, Mark, name="mask")
    listed = texts_of(texts)
    if without := [index for index, text in enumerate(listed) if mask not in text]:
        raise SamplingError(
            f"texts[{without[0]}]: expected a text with a gap, {show(mask, 60)}, found "
            f"{show(listed[without[0]], 60)}. Write the mark in place of a word."
        )
    marked = [with_masks(text, mask, model.tokenizer) for text in listed]
    templates, canvases = [template for template, _ in marked], [canvas for _, canvas in marked]
    check_lengths([*map(len, canvases)], listed, most=model.max_length, of=MODEL)
    model.warn_of_unknown(canvases, listed, effect=KEPT)
    raw_nd = None if latents is None else vectors_of(latents, dim=model.dim, count=len(listed))
    latents_nd = None if raw_nd is None else model.standardised(raw_nd)
    config = model.text_sampler(sampler, steps, temperature)
    open_end = [model.shape.mask_id] * (model.max_length if use == "continue" else 0)
    written = model.writer.write(
        [[*canvas, *open_end[len(canvas) :]] for canvas in canvases],
        latents_nd=latents_nd, sampler=config, seed=seed,
    )  # fmt: skip
    if not model.model.has_length:
        parts = zip(templates, canvases, written.tokens, strict=True)
        templates = [template.regapped(canvas, row) for template, canvas, row in parts]
    made = model.texts(written, listed, raw_nd, texts=_filled(model, templates, written))
    return replace(made, unknown=model.unknown(canvases))  # the marks of the gaps are not words of the text


@by_row
def edit(
    model: LoadedModel,
    sources: Sequence[str] | str,
    *,
    targets: Latents | Sequence[str] | str,
    strength: float = 0.5,
    sampler: Annotated[Any, TEXT_SAMPLERS] = None,
    steps: int | None = None,
    temperature: float | None = None,
    reembed: bool = False,
    seed: int = 0,
) -> Texts:
    """Rewrite a part of each text, given a target latent.

    The tokens that are least probable given the target latent are rewritten, which takes four more model calls. Their
    number does not change. The others stay verbatim.

    Args:
        sources: texts of which a part is rewritten.
        targets: raw latents or texts: one, or one for each source.
        strength: fraction of the tokens that are rewritten; 0 returns the source, 1 keeps only its length.
        reembed: report the cosine of each text to its target, at one encoder call per text.
    """
    model.capabilities.require("edit")
    seed, reembed = check(seed, Seed, name="seed"), check(reembed, bool, name="reembed")
    strength = check(strength, Fraction, name="strength")
    listed, config = texts_of(sources, name="sources"), model.text_sampler(sampler, steps, temperature)
    _, raw_nd = model.targets(targets, name="targets")
    raw_nd = np.repeat(raw_nd, len(listed), axis=0) if len(raw_nd) == 1 else raw_nd
    latents_nd = model.standardised(vectors_of(raw_nd, dim=model.dim, name="targets", count=len(listed)))
    ids = model.ids(listed, effect=KEPT, name="sources")
    canvases, calls = remask(model.writer, ids, latents_nd=latents_nd, strength=strength, seed=seed)
    written = model.writer.write(canvases, latents_nd=latents_nd, sampler=config, seed=seed)
    written = replace(written, model_calls=written.model_calls + calls)
    templates = [rewritten(*pair, model.tokenizer) for pair in zip(listed, canvases, strict=True)]
    return model.texts(written, listed, raw_nd, reembed=reembed, texts=_filled(model, templates, written))


def _filled(model: LoadedModel, templates: Sequence[Template], written: Written) -> list[str]:
    """Return each text with its kept parts verbatim and the new words in the gaps."""
    pairs = zip(templates, written.tokens, strict=True)
    return [template.filled(row, model.tokenizer) for template, row in pairs]


def remask(
    writer: Writer,
    ids: Sequence[Sequence[int]],
    *,
    latents_nd: torch.Tensor,
    strength: float,
    seed: int,
) -> tuple[list[list[int]], np.ndarray]:
    """Mask a fraction `strength` (rounded) of each text's tokens; return the canvases and the model calls per text.

    The tokens that are least probable given the target latent are masked.
    """
    model = writer.model

    def work(batch: list[int]) -> Values:
        tokens_BL = writer.padded([ids[row] for row in batch])
        valid_BL = tokens_BL != model.shape.pad_id
        priority_BL, calls = torch.zeros(tokens_BL.shape, device=tokens_BL.device), 0
        if 0 < strength < 1:
            stream = writer.generator(batch, seed).fork("edit")
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

    with writer.computing(work, [len(row) for row in ids], "choosing") as (batches, results):
        found = writer.joined(batches, results)
    return found.get("canvases", []), found.get("calls", np.zeros(0, dtype=int))
