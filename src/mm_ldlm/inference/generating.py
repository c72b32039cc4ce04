"""Requests that write texts: inversion, interpolation and generation, and the infilling and editing of given texts."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core import Fraction, Rows, SamplingError, Seed, bounded, check, parse, show
from mm_ldlm.inference.arguments import check_lengths, latent_sampler_of, texts_of, vectors_of
from mm_ldlm.inference.model import KEPT, Latents, LoadedModel
from mm_ldlm.inference.results import Interpolations, Texts
from mm_ldlm.inference.verbatim import rewritten, with_masks
from mm_ldlm.inference.writing import Values, Writer, Written, refuse_texts_beyond_memory
from mm_ldlm.sampling.joint import JointOrder, refuse_samplers
from mm_ldlm.sampling.limits import MOST_STEPS, Candidates, Length
from mm_ldlm.sampling.orders import top_by_row
from mm_ldlm.sampling.search import SearchConfig

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.floating]
Keep = Literal["best", "all"]
"""Which of several texts for one latent are kept"""
Curve = Literal["slerp", "lerp"]
Points = Annotated[int, bounded(ge=2, le=MOST_STEPS)]
Which = Literal["least_likely", "random"]
"""Which tokens of a text are rewritten"""
Mark = Annotated[str, bounded(min_length=1)]

# --- texts of latents, and texts from noise ---------------------------------------------------------------------------


def invert(
    model: LoadedModel,
    targets: Latents | Sequence[str] | str | Path,
    *,
    sampler: Any = None,
    steps: int | None = None,
    length: Length = "argmax",
    search: SearchConfig | None = None,
    reembed: bool = False,
    seed: int = 0,
    samples: int = 1,
    keep: Keep = "best",
) -> Texts:
    """Invert embeddings: write a text for each latent, or several.

    Args:
        targets: raw latents (n, d), the path of a `.npy` file of them, or texts, which the encoder embeds first.
        sampler: a kind or the configuration of a sampler. A kind alone uses 4 steps at temperature 0; None uses the
            default sampler of the model. `steps` overrides the number of steps.
        length: 'argmax' or 'sample' of the length head given the latent, or a number of tokens.
        search: re-embed candidates and keep the nearest (needs the encoder); see `sampling.search.SearchConfig`.
        reembed: report the cosine of each text to its target also without a search, at one encoder call per text.
        samples: number of texts that are written for each latent. More than one need a sampler with a temperature
            above 0, or the length 'sample'; otherwise they are equal, with a warning.
        keep: of several texts, 'best' keeps one for each latent: that of the highest cosine (with `reembed` or
            `search`), otherwise of the highest log-probability. 'all' keeps them, latent by latent, and `best`
            marks these.
    """
    model.capabilities.require("l2t")
    seed, reembed = check(seed, Seed, name="seed"), check(reembed, bool, name="reembed")
    samples, keep = check(samples, Candidates, name="samples"), check(keep, Keep, name="keep")
    config = model.text_sampler(sampler, steps)
    length = length_of(model, length, "l2t", sampler=config)
    search = SearchConfig() if search is None else parse(SearchConfig, search, at="search")
    sources, raw_nd = model.targets(targets)
    latents_nd, count = model.standardised(raw_nd), len(raw_nd)
    tried = 2 * (search.candidates + search.beam) if search.enabled else 1
    longest = length if isinstance(length, int) else model.max_length
    refuse_texts_beyond_memory(count * samples * tried, tokens=longest, numbers=model.dim)
    if samples > 1:  # sample by sample: the first one of each latent is that of a request for one
        latents_nd, raw_nd = latents_nd.repeat(samples, 1), np.tile(raw_nd, (samples, 1))
        sources = sources * samples
    writer = model.writer
    lengths = writer.lengths(length, latents_nd, rows=len(raw_nd), seed=seed)
    if search.enabled:
        written = writer.search(
            lengths, latents_nd=latents_nd, sampler=config, config=search, seed=seed,
            cosines=lambda tokens, found: model.cosines(model.tokenizer.decode_batch(tokens), raw_nd[found]),
        )  # fmt: skip
    else:
        canvases = writer.masks(lengths)
        with writer.writing(canvases, latents_nd=latents_nd, sampler=config, seed=seed) as (batches, results):
            written = Written(**writer.joined(batches, [*results]))  # written here: the way to the loop is short
    made = model.texts(written, sources, raw_nd, reembed=reembed)
    return made if samples == 1 else _several(made, count, samples, keep)


def _several(made: Texts, count: int, samples: int, keep: Keep) -> Texts:
    """Return the texts of each of `count` latents, all or the best of each; `made` has them sample by sample."""
    if all(len(set(made.texts[row::count])) == 1 for row in range(count)):
        log.warning(
            "the %d texts of each latent are equal. Raise the temperature of the sampler above 0, or set the length to "
            "'sample'; if the texts were drawn, the model is certain of them",
            samples,
        )
    scores_kn = np.asarray(made.log_probs if made.cosines is None else made.cosines).reshape(samples, count)
    best_n = scores_kn.argmax(axis=0)
    rows = np.arange(count)
    if keep == "best":
        spent = {
            name: np.asarray(getattr(made, name)).reshape(samples, count).sum(axis=0)
            for name in ("model_calls", "encoder_calls")
        }
        chosen = replace(made.take(best_n * count + rows), **spent)
        return replace(chosen, rows=rows, samples=best_n, best=np.ones(count, dtype=bool))
    order = np.arange(samples * count).reshape(samples, count).T.ravel()
    numbers = np.tile(np.arange(samples), count)
    every = np.repeat(rows, samples)
    return replace(made.take(order), rows=every, samples=numbers, best=numbers == best_n[every])


def interpolate(
    model: LoadedModel,
    a: Latents | Sequence[str] | str,
    b: Latents | Sequence[str] | str,
    *,
    steps: int = 5,
    path: Curve = "slerp",
    sampler: Any = None,
    length: Length = "argmax",
    reembed: bool = False,
    seed: int = 0,
) -> Interpolations:
    """Write texts at `steps` points from each latent of `a` to that of `b`, including both ends.

    'slerp' interpolates along the great circle (and the norms linearly), 'lerp' along the line between the raw
    vectors.
    """
    model.capabilities.require("interpolate")
    steps, path = check(steps, Points, name="steps"), check(path, Curve, name="path")
    sources_a, raw_a = model.targets(a)
    sources_b, raw_b = model.targets(b)
    if len(raw_a) != len(raw_b):
        raise SamplingError(f"interpolate: expected an end for each of {len(raw_a)} starts, found {len(raw_b)}.")
    refuse_texts_beyond_memory(len(raw_a) * steps, tokens=model.max_length, numbers=model.dim)
    for ends_nd in (raw_a, raw_b):
        model.standardised(ends_nd)  # refuses ends whose norms exceed the arithmetic of the path
    fractions = np.linspace(0.0, 1.0, steps)
    between = slerp if path == "slerp" else lerp
    raw_nd = np.stack([between(raw_a, raw_b, fraction) for fraction in fractions], axis=1).reshape(-1, model.dim)
    written = invert(
        model, raw_nd.astype(np.float32), sampler=sampler, length=length, reembed=reembed, seed=seed
    )  # fmt: skip
    inner = [None] * (steps - 2)
    sources = [text for first, last in zip(sources_a, sources_b, strict=True) for text in (first, *inner, last)]
    pairs = np.repeat(np.arange(len(raw_a)), steps)
    return Interpolations(pairs, np.tile(fractions, len(raw_a)), replace(written, sources=tuple(sources)))


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


def generate(
    model: LoadedModel,
    n: int,
    *,
    order: JointOrder = "text_first",
    sampler: Any = None,
    latent_sampler: Any = "ddim",
    steps: int | None = None,
    length: Length = "sample",
    seed: int = 0,
) -> Texts:
    """Generate `n` texts from noise, with their latents if the run generates latents.

    `order` is 'text_first' (then the latent given the text), 'latent_first' (then the text given the latent) or
    'together' (ancestral steps in the text and as many DDIM steps in the latent, without guidance). A run that
    generates no latents has no order. `sampler` is a kind or a configuration; a kind alone uses the model's default
    steps and temperature for generation, and in the order 'together' the steps of the latent sampler. `steps`
    overrides the steps of both samplers. Lengths are drawn from the marginal distribution, or given the latent if
    it is drawn first.
    """
    model.capabilities.require("unconditional")
    n, seed, order = check(n, Rows, name="n"), check(seed, Seed, name="seed"), check(order, JointOrder, name="order")
    joint = bool(model.capabilities.joint_orders)
    latent = latent_sampler_of(latent_sampler, steps if joint else None)
    if joint and order == "together" and (sampler is None or isinstance(sampler, str)):
        text = model.text_sampler(sampler or "ancestral", getattr(latent, "steps", None), conditional=False)
    else:
        text = model.text_sampler(sampler, steps, conditional=False)
    if joint:
        model.capabilities.require_order(order)
        try:
            refuse_samplers(order, text, latent)
        except ValueError as error:
            raise SamplingError(f"{error}.") from None
    length = length_of(model, length, "unconditional", sampler=text, order=order if joint else "")
    longest = length if isinstance(length, int) else model.max_length
    refuse_texts_beyond_memory(n, tokens=longest, numbers=model.model.dim * latent.draws)
    written = model.writer.generate(n, order if joint else "", text, latent, length, seed)
    raw_nd = None if written.latents_nd is None else model.raw(written.latents_nd)
    return model.texts(written, [None] * n, raw_nd)


def length_of(model: LoadedModel, length: Any, use: Any, *, sampler: Any, order: str = "") -> Length:
    """Check a length before texts are made for it: the run can choose it, or the sampler can write it.

    A text that is written together with a latent, or that the latent is drawn from, fits the model's window.
    """
    length = check(length, Length, name="length")
    if order and (order != "latent_first" or model.model.latents_need_lengths):
        sampler = None
    reason = model.capabilities.length_refusal(length, use, order=order, max_length=model.max_length, sampler=sampler)
    if reason is not None:
        raise SamplingError(reason)
    checked: Length = length
    return checked


# --- parts of texts ---------------------------------------------------------------------------------------------------


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
    seed, mask = check(seed, Seed, name="seed"), check(mask, Mark, name="mask")
    listed = texts_of(texts)
    if without := [text for text in listed if mask not in text]:
        raise SamplingError(
            f"infill: expected at least one {show(mask, 60)} in each text, found none in {show(without[0], 60)}."
        )
    templates, canvases = zip(*(with_masks(text, mask, model.tokenizer) for text in listed), strict=True)
    check_lengths(canvases, listed, max_length=model.max_length)
    model.warn_of_unknown(canvases, listed, effect=KEPT)
    raw_nd = None if latents is None else vectors_of(latents, dim=model.dim, count=len(listed))
    latents_nd = None if raw_nd is None else model.standardised(raw_nd)
    config = model.text_sampler(sampler, steps)
    written = model.writer.write(canvases, latents_nd=latents_nd, sampler=config, seed=seed)
    made = model.texts(written, listed, raw_nd, templates=templates)
    return replace(made, unknown=model.unknown(canvases))  # the marks of the gaps are not words of the text


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
    _, raw_nd = model.targets(targets)
    raw_nd = np.repeat(raw_nd, len(listed), axis=0) if len(raw_nd) == 1 else raw_nd
    latents_nd = model.standardised(vectors_of(raw_nd, dim=model.dim, count=len(listed)))
    ids = model.ids(listed, effect=KEPT)
    canvases, calls = remask(model.writer, ids, latents_nd=latents_nd, strength=strength, which=which, seed=seed)
    written = model.writer.write(canvases, latents_nd=latents_nd, sampler=config, seed=seed)
    written = replace(written, model_calls=written.model_calls + calls)
    templates = [rewritten(*pair, model.tokenizer) for pair in zip(listed, canvases, strict=True)]
    return model.texts(written, listed, raw_nd, reembed=reembed, templates=templates)


def remask(
    writer: Writer,
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
    model, informed = writer.model, which == "least_likely" and 0 < strength < 1

    def work(batch: list[int]) -> Values:
        tokens_BL = writer.padded([ids[row] for row in batch])
        valid_BL = tokens_BL != model.shape.pad_id
        stream = writer.generator(batch, seed).fork("edit")
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

    with writer.computing(work, [len(row) for row in ids], "choosing") as (batches, results):
        found = writer.joined(batches, results)
    return found["canvases"], found["calls"]
