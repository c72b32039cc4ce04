"""Requests that write whole texts: inversion of latents, interpolation between them, and generation from noise."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.config import Rows, Seed, bounded, check, parse
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference.arguments import latent_sampler_of
from mm_ldlm.inference.batches import refuse_texts_beyond_memory
from mm_ldlm.inference.conversion import Latents
from mm_ldlm.inference.results import Interpolations, Texts
from mm_ldlm.sampling.joint import JointOrder, refuse_samplers
from mm_ldlm.sampling.limits import MOST_STEPS, Candidates, DrawnLength, Length, length_refusal, lengths_tried
from mm_ldlm.sampling.search import SearchConfig

if TYPE_CHECKING:
    from mm_ldlm.inference.model import LoadedModel

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.floating]
Keep = Literal["best", "all"]
"""Which of several texts for one latent are kept"""
Curve = Literal["slerp", "lerp"]
Points = Annotated[int, bounded(ge=2, le=MOST_STEPS)]


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
        length: 'argmax' or 'sample' of the length head given the latent; 'top-n' (as in 'top-3') writes a text of
            each of the n most probable lengths and keeps the most probable one; or a number of tokens.
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
    sources, raw_nd = model.converter.targets(targets)
    latents_nd, count = model.converter.standardised(raw_nd), len(raw_nd)
    tried = 2 * (search.candidates + search.beam) if search.enabled else 1
    longest = length if isinstance(length, int) else model.max_length
    refuse_texts_beyond_memory(count * samples * tried, tokens=longest, numbers=model.dim)
    if samples > 1:  # sample by sample: the first one of each latent is that of a request for one
        latents_nd, raw_nd = latents_nd.repeat(samples, 1), np.tile(raw_nd, (samples, 1))
        sources = sources * samples
    writer, rows, several = model.writer, len(raw_nd), lengths_tried(length)
    if several > 1 and not search.enabled:
        written = writer.write_likeliest_length(
            lengths=several, latents_nd=latents_nd, rows=rows, sampler=config, seed=seed
        )
    else:
        lengths = writer.lengths(length, latents_nd, rows=rows, seed=seed)
        if search.enabled:
            decode, converter = model.tokenizer.decode_batch, model.converter
            written = writer.search(
                lengths, latents_nd=latents_nd, sampler=config, config=search, seed=seed,
                cosines=lambda tokens, found: converter.cosines(decode(tokens), raw_nd[found]),
            )  # fmt: skip
        else:
            written = writer.write(writer.masks(lengths), latents_nd=latents_nd, sampler=config, seed=seed)
    made = model.texts(written, sources, raw_nd, reembed=reembed)
    if samples == 1:
        return made
    drawn = getattr(getattr(config, "inner", config), "temperature", 0.0) > 0 or length == "sample"
    return _several(made, count, samples, keep, drawn=drawn)


def _several(made: Texts, count: int, samples: int, keep: str, *, drawn: bool) -> Texts:
    """Return the texts of each of `count` latents, all or the best of each; `made` has them sample by sample.

    drawn: tokens or lengths were drawn at random, so that equal texts show that the model is certain.
    """
    if all(len(set(made.texts[row::count])) == 1 for row in range(count)):
        remedy = (
            "the model is certain of them; a higher temperature of its sampler varies them"
            if drawn
            else "set its sampler's temperature above 0, or the length to 'sample'"
        )
        log.warning("the %d texts of each latent are equal: %s", samples, remedy)
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
    sources_a, raw_a = model.converter.targets(a)
    sources_b, raw_b = model.converter.targets(b)
    if len(raw_a) != len(raw_b):
        raise SamplingError(f"interpolate: expected an end for each of {len(raw_a)} starts, found {len(raw_b)}.")
    refuse_texts_beyond_memory(len(raw_a) * steps, tokens=model.max_length, numbers=model.dim)
    for ends_nd in (raw_a, raw_b):
        model.converter.standardised(ends_nd)  # refuses ends whose norms exceed the arithmetic of the path
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
    length, joint = check(length, DrawnLength, name="length"), bool(model.capabilities.joint_orders)
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
    raw_nd = None if written.latents_nd is None else model.converter.raw(written.latents_nd)
    return model.texts(written, [None] * n, raw_nd)


def length_of(model: LoadedModel, length: Any, use: Any, *, sampler: Any, order: str = "") -> Length:
    """Check a length before texts are made for it: the run can choose it, or the sampler can write it.

    A text that is written together with a latent, or that the latent is drawn from, fits the model's window.
    """
    length = check(length, Length, name="length")
    if order and (order != "latent_first" or model.model.latents_need_lengths):
        sampler = None
    reason = model.capabilities.length_refusal(length, use, order=order) or length_refusal(
        length, max_length=model.max_length, sampler=sampler, process=model.capabilities.process
    )
    if reason is not None:
        raise SamplingError(reason)
    checked: Length = length
    return checked
