"""Infilling and editing of texts, paths between latents, and nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.core.messages import show
from mm_ldlm.inference import inputs
from mm_ldlm.inference.batching import in_batches
from mm_ldlm.inference.edge import fraction_of
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.finite import check_finite
from mm_ldlm.inference.own_words import rewritten, with_masks
from mm_ldlm.inference.results import Neighbours, Texts
from mm_ldlm.inference.writing import Writer, pad
from mm_ldlm.sampling.orders import top_by_row

Floats = npt.NDArray[np.floating]


def infill(engine: Engine, texts: Any, *, latents: Any, sampler: Any, steps: int | None, mask: str, seed: int) -> Texts:
    """See `MMLDLM.infill`."""
    engine.capabilities.require("infill" if latents is None else "infill_given_latent")
    seed = inputs.check_seed(seed)
    if not isinstance(mask, str) or not mask:
        raise SamplingError(f"infill: mask must be a text that marks the gaps, found {show(mask, 60)}.")
    listed = inputs.check_texts(texts)
    if without := [text for text in listed if mask not in text]:
        raise SamplingError(
            f"infill: expected at least one {show(mask, 60)} in each text, found none in {show(without[0], 60)}."
        )
    templates, canvases = zip(*(with_masks(text, mask, engine.tokenizer) for text in listed), strict=True)
    inputs.check_lengths([len(canvas) for canvas in canvases], listed, max_length=engine.shape.max_length)
    inputs.warn_of_unknown(canvases, listed, unk_id=engine.tokenizer.unk_id, effect=inputs.INFILLED)
    raw_nd = engine.edge.given(latents, rows=len(listed))
    latents_nd = None if raw_nd is None else engine.edge.standardised(raw_nd)
    config = engine.text_sampler(sampler, steps)
    written = engine.writer.write(canvases, latents_nd=latents_nd, sampler=config, seed=seed)
    made = engine.texts(written, listed, raw_nd, reembed=False, templates=templates)
    # of the canvas, because the marks of the gaps are not words of the text
    return replace(made, unknown=np.array([fraction_of(engine.tokenizer.unk_id, canvas) for canvas in canvases]))


def edit(
    engine: Engine,
    sources: Any,
    *,
    targets: Any,
    strength: float,
    which: str,
    sampler: Any,
    steps: int | None,
    reembed: bool,
    seed: int,
) -> Texts:
    """See `MMLDLM.edit`."""
    engine.capabilities.require("edit")
    seed, reembed = inputs.check_seed(seed), inputs.check_flag(reembed, name="reembed")
    listed = inputs.check_texts(sources, what="sources")
    strength = inputs.check_fraction(strength, name="strength")
    inputs.check_choice(which, ("least_likely", "random"), name="which")
    config = engine.text_sampler(sampler, steps)
    _, raw_nd = engine.edge.targets(targets)
    if len(raw_nd) == 1:
        raw_nd = np.repeat(raw_nd, len(listed), axis=0)
    if len(raw_nd) != len(listed):
        raise SamplingError(
            f"edit: expected one target, or one for each of {len(listed)} sources, found {len(raw_nd)} targets."
        )
    latents_nd = engine.edge.standardised(raw_nd)
    ids = engine.edge.ids(listed, effect=inputs.EDITED)
    masked, calls = remask(engine.writer, ids, latents_nd=latents_nd, strength=strength, which=which, seed=seed)
    written = engine.writer.write(masked, latents_nd=latents_nd, sampler=config, seed=seed)
    written = replace(written, model_calls=written.model_calls + calls)
    templates = [rewritten(*pair, engine.tokenizer) for pair in zip(listed, masked, strict=True)]
    return engine.texts(written, listed, raw_nd, reembed=reembed, templates=templates)


def remask(
    writer: Writer,
    ids: Sequence[Sequence[int]],
    *,
    latents_nd: torch.Tensor,
    strength: float,
    which: str,
    seed: int,
) -> tuple[list[list[int]], np.ndarray]:
    """Mask a fraction `strength` (rounded) of each text's tokens; return the canvases and the model calls per text.

    For `least_likely`, the tokens that are least probable given the target latent are masked.
    """
    model = writer.model
    out: list[list[int]] = [[] for _ in ids]
    calls, sums = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids))
    informed = which == "least_likely" and 0 < strength < 1

    def masked(batch: list[int]) -> tuple[torch.Tensor, int]:
        """Return the canvases of a batch and its model calls; keep the sums of its log-probabilities."""
        tokens_BL = pad([ids[row] for row in batch], model.shape.pad_id, model.device)
        valid_BL = tokens_BL != model.shape.pad_id
        stream = writer.generator(batch, seed).fork("edit")
        priority_BL, calls = stream.fork("order").uniform(tokens_BL.shape[1]), 0
        if informed:
            log_probs_BL, calls = model.token_log_probs(tokens_BL, latents_Bd=latents_nd[batch], generator=stream)
            sums[batch] = log_probs_BL.double().sum(dim=1).cpu().numpy()
            priority_BL = -log_probs_BL
        count_B = (valid_BL.sum(dim=1) * strength).round().long()
        open_BL = top_by_row(priority_BL.masked_fill(~valid_BL, -torch.inf), count_B) & valid_BL
        return tokens_BL.masked_fill(open_BL, model.shape.mask_id), calls

    with model.evaluating():
        lengths = [len(row) for row in ids]
        for batch, (canvas_BL, calls_of_batch) in in_batches(
            masked, lengths, model=model, batch_tokens=writer.batch_tokens, doing="choosing"
        ):
            calls[batch] = calls_of_batch
            for row, canvas in zip(batch, canvas_BL.tolist(), strict=True):
                out[row] = canvas[: len(ids[row])]
    check_finite(model, sums, what="log-probabilities of the source")
    return out, calls


def lerp(a_nd: Floats, b_nd: Floats, fraction: float) -> Floats:
    """Interpolate linearly: the point at `fraction` of the way from a to b."""
    return (1 - fraction) * a_nd + fraction * b_nd


def slerp(a_nd: Floats, b_nd: Floats, fraction: float) -> Floats:
    """Interpolate along the great circle, with the norms interpolated separately.

    Parallel and opposite vectors are interpolated linearly.
    """
    a_n1, b_n1 = (np.linalg.norm(x, axis=1, keepdims=True) for x in (a_nd, b_nd))
    unit_a, unit_b = a_nd / np.maximum(a_n1, 1e-12), b_nd / np.maximum(b_n1, 1e-12)
    angle_n1 = np.arccos(np.clip((unit_a * unit_b).sum(axis=1, keepdims=True), -1.0, 1.0))
    sine_n1 = np.sin(angle_n1)
    straight = sine_n1 < 1e-6
    safe_n1 = np.where(straight, 1.0, sine_n1)
    arc_nd = np.sin((1 - fraction) * angle_n1) / safe_n1 * unit_a + np.sin(fraction * angle_n1) / safe_n1 * unit_b
    return np.where(straight, lerp(a_nd, b_nd, fraction), arc_nd * lerp(a_n1, b_n1, fraction))


def neighbours(latents_nd: Floats, store: Any, *, k: int, chunk: int = 65_536) -> Neighbours:
    """Find the k rows of `store` nearest to each latent by cosine; the store is read in chunks.

    Raises:
        SamplingError: the dimensions differ, or the store has fewer than k rows.
    """
    is_array = isinstance(store, np.ndarray)
    if is_array and (store.ndim != 2 or store.dtype.kind not in "fiu"):
        raise SamplingError(
            f"neighbours: expected an array of real numbers (m, d), found shape {store.shape}, dtype "
            f"{show(store.dtype, 60)}."
        )
    if not is_array and not all(hasattr(store, name) for name in ("take", "strings", "__len__")):
        raise SamplingError(f"neighbours: expected a latent store or an array (m, d), found {show(store, 60)}.")
    rows = len(store)
    if not 1 <= k <= rows:
        raise SamplingError(f"neighbours: k must lie between 1 and the store's {rows} rows, found {k}.")
    latents_nd = latents_nd.astype(np.float64)
    unit_nd = latents_nd / np.maximum(np.linalg.norm(latents_nd, axis=1, keepdims=True), 1e-12)
    best_nk = np.full((len(unit_nd), 0), -np.inf)
    rows_nk = np.zeros((len(unit_nd), 0), dtype=np.int64)
    for start in range(0, rows, chunk):
        index = np.arange(start, min(start + chunk, rows), dtype=np.int64)
        part_md = np.asarray(store[index] if is_array else store.take(index), dtype=np.float64)
        if part_md.shape[1] != unit_nd.shape[1]:
            raise SamplingError(
                f"neighbours: expected latents of dimension {part_md.shape[1]}, as in the store, found "
                f"{unit_nd.shape[1]}."
            )
        if not np.isfinite(part_md).all():
            bad = start + int(np.flatnonzero(~np.isfinite(part_md).all(axis=1))[0])
            raise SamplingError(f"neighbours: row {bad} of the store contains a number that is not finite.")
        norm_m = np.maximum(np.linalg.norm(part_md, axis=1), 1e-12)
        both_nc = np.concatenate([best_nk, unit_nd @ part_md.T / norm_m], axis=1)
        rows_nc = np.concatenate([rows_nk, np.broadcast_to(index, (len(unit_nd), len(index)))], axis=1)
        order = np.argsort(-both_nc, axis=1, kind="stable")[:, :k]
        best_nk = np.take_along_axis(both_nc, order, axis=1)
        rows_nk = np.take_along_axis(rows_nc, order, axis=1)
    if is_array:
        ids = tuple(tuple(map(str, row)) for row in rows_nk.tolist())
    else:
        names = store.strings("id").take(rows_nk.ravel())
        ids = tuple(tuple(map(str, names[i : i + k])) for i in range(0, len(names), k))
    return Neighbours(rows_nk, ids, best_nk)
