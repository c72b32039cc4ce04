"""Inversion of latents, interpolation between them, and generation from noise."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import editing, inputs
from mm_ldlm.inference.choices import latent_config
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.results import Interpolations, Texts
from mm_ldlm.sampling.config import JointOrder, Keep, SearchConfig, refuse_samplers
from mm_ldlm.sampling.lengths import Length, how_many_lengths
from mm_ldlm.sampling.limits import MOST_CANDIDATES, MOST_STEPS

log = logging.getLogger(__name__)


def invert(
    engine: Engine,
    targets: Any,
    *,
    sampler: Any,
    steps: int | None,
    length: Length,
    search: SearchConfig | None,
    reembed: bool,
    seed: int,
    samples: int = 1,
    keep: str = "best",
) -> Texts:
    """See `MMLDLM.invert`."""
    engine.capabilities.require("l2t")
    seed, reembed = inputs.check_seed(seed), inputs.check_flag(reembed, name="reembed")
    samples = inputs.check_integer(samples, name="samples", minimum=1, maximum=MOST_CANDIDATES)
    inputs.check_choice(keep, get_args(Keep), name="keep")
    config = engine.text_sampler(sampler, steps)
    length = engine.length(length, "l2t", sampler=config)
    search = None if search is None else parse(SearchConfig, search, at="search")
    if search is not None and search.lengths > engine.shape.max_length:
        raise SamplingError(
            f"search.lengths: expected at most {engine.shape.max_length}, the number of lengths that this run has "
            f"learned, found {search.lengths}."
        )
    sources, raw_nd = engine.edge.targets(targets)
    candidates = 1 if search is None else 2 * (search.candidates + search.beam)
    engine.refuse_size(len(raw_nd) * candidates * samples, length=length, what="invert")
    latents_nd = engine.edge.standardised(raw_nd)
    count = len(raw_nd)
    if samples > 1:  # sample by sample: the first one of each latent is that of a request for one
        latents_nd, raw_nd = latents_nd.repeat(samples, 1), np.tile(raw_nd, (samples, 1))
        sources = sources * samples
    writer, several = engine.writer, how_many_lengths(length)
    if search is not None and search.enabled:
        lengths = writer.lengths(length, latents_nd, rows=len(raw_nd), seed=seed)
        written = writer.search(
            writer.starting_canvases(latents_nd, first=lengths, config=search),
            latents_nd=latents_nd,
            cosines=engine.edge.cosines(raw_nd),
            sampler=config,
            config=search,
            seed=seed,
        )
    elif several > 1:
        written = writer.write_likeliest_length(
            lengths=several, latents_nd=latents_nd, rows=len(raw_nd), sampler=config, seed=seed
        )
    else:
        lengths = writer.lengths(length, latents_nd, rows=len(raw_nd), seed=seed)
        written = writer.write(engine.masks(lengths), latents_nd=latents_nd, sampler=config, seed=seed)
    made = engine.texts(written, sources, raw_nd, reembed=reembed)
    if samples == 1:
        return made
    drawn = getattr(getattr(config, "inner", config), "temperature", 0.0) > 0 or length == "sample"
    return _several(made, count, samples, keep, drawn=drawn)


def _several(made: Texts, count: int, samples: int, keep: str, *, drawn: bool = False) -> Texts:
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
    engine: Engine,
    a: Any,
    b: Any,
    *,
    steps: int,
    path: str,
    sampler: Any,
    length: Length,
    reembed: bool,
    seed: int,
) -> Interpolations:
    """See `MMLDLM.interpolate`."""
    engine.capabilities.require("interpolate")
    steps = inputs.check_integer(
        steps, name="interpolate: steps (with the two ends)", minimum=2, maximum=MOST_STEPS
    )  # fmt: skip
    inputs.check_choice(path, ("slerp", "lerp"), name="path")
    sources_a, raw_a = engine.edge.targets(a)
    sources_b, raw_b = engine.edge.targets(b)
    if len(raw_a) != len(raw_b):
        raise SamplingError(f"interpolate: expected an end for each of {len(raw_a)} starts, found {len(raw_b)}.")
    engine.refuse_size(len(raw_a) * steps, what="interpolate")
    for ends_nd in (raw_a, raw_b):
        engine.edge.standardised(ends_nd)  # refuses ends whose norms exceed the arithmetic of the path
    fractions = np.linspace(0.0, 1.0, steps)
    between = editing.slerp if path == "slerp" else editing.lerp
    raw = np.stack([between(raw_a, raw_b, fraction) for fraction in fractions], axis=1).reshape(-1, engine.edge.dim)
    written = invert(
        engine, raw.astype(np.float32), sampler=sampler, steps=None, length=length, search=None, reembed=reembed,
        seed=seed,
    )  # fmt: skip
    ends = [
        source
        for first, last in zip(sources_a, sources_b, strict=True)
        for source in (first, *[None] * (steps - 2), last)
    ]
    return Interpolations(
        np.repeat(np.arange(len(raw_a)), steps),
        np.tile(fractions, len(raw_a)),
        replace(written, sources=tuple(ends)),
    )


def generate(
    engine: Engine,
    n: int,
    *,
    order: JointOrder,
    sampler: Any,
    latent_sampler: Any,
    steps: int | None,
    length: Length,
    seed: int,
) -> Texts:
    """See `MMLDLM.generate`."""
    engine.capabilities.require("unconditional")
    n, seed = inputs.check_integer(n, name="n", minimum=1), inputs.check_seed(seed)
    inputs.check_choice(order, get_args(JointOrder), name="order")
    latent = latent_config(latent_sampler, None, None)
    if how_many_lengths(inputs.check_length(length)) > 1:
        raise SamplingError(f"length '{length}' ranks texts instead of drawing them; use 'sample' or 'argmax'.")
    if not engine.capabilities.joint_orders:
        text = engine.text_sampler(sampler, steps, conditional=False)
        length = engine.length(length, "unconditional", sampler=text)
        engine.refuse_size(n, length=length, what="generate")
        lengths = engine.writer.lengths(length, None, rows=n, seed=seed)
        written = engine.writer.write(engine.masks(lengths), latents_nd=None, sampler=text, seed=seed)
        return engine.texts(written, [None] * n, None, reembed=False)
    engine.capabilities.require_order(order)
    latent = latent_config(latent, steps, None)
    if order == "together" and (sampler is None or isinstance(sampler, str)):
        text = engine.text_sampler(sampler or "ancestral", getattr(latent, "steps", None), conditional=False)
    else:
        text = engine.text_sampler(sampler, steps, conditional=False)
    try:
        refuse_samplers(order, text, latent)
    except ValueError as error:
        raise SamplingError(f"{error}.") from None
    length = engine.length(length, "unconditional", sampler=text, order=order)
    engine.refuse_size(n, length=length, draws=latent.draws, what="generate")
    written, latents_nd = engine.latents.generate(n, order, engine.writer, text, latent, length, seed)
    return engine.texts(written, [None] * n, engine.edge.raw(latents_nd), reembed=False)
