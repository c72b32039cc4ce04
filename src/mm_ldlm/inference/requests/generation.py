"""Requests that write texts: the inversion of latents, and generation from noise."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import Fraction, PositiveInt, Rows, SamplingError, Seed, check, parse
from mm_ldlm.inference.arguments import latent_sampler_of
from mm_ldlm.inference.model import Latents, LoadedModel, by_row
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.writer import Written, refuse_texts_beyond_memory
from mm_ldlm.sampling.joint import JointOrder, refuse_samplers
from mm_ldlm.sampling.limits import Candidates, Length
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS
from mm_ldlm.sampling.search import SearchConfig

log = logging.getLogger(__name__)

Keep = Literal["best", "all"]
"""Which of several texts for one latent are kept"""
Right = Literal["exact", "up_to_case", "content_words"]
"""When an inverted text counts as right"""
LENGTH_WEIGHT = 0.5
"""Weight of the log-probability of a length, relative to the text's, measured on everyday English (docs/log.md)"""
SEARCHES = SearchConfig(), SearchConfig(candidates=4, rounds=4)
"""Searches without a configuration: none, and the one of `search=True`"""


@by_row
def invert(
    model: LoadedModel,
    targets: Latents | Sequence[str] | str | Path,
    *,
    sampler: Annotated[Any, TEXT_SAMPLERS] = None,
    steps: int | None = None,
    temperature: float | None = None,
    length: Length = "argmax",
    search: SearchConfig | bool | None = None,
    calls: int | None = None,
    reembed: bool = False,
    seed: int = 0,
    samples: int = 1,
    keep: Keep = "best",
    min_probability: float | None = None,
    right: Right = "exact",
) -> Texts:
    """Write a text for each embedding, or several.

    Args:
        targets: raw latents (n, d), or texts, which the encoder embeds first.
        sampler: kind of sampler, or (not on the command line) its configuration; by default the model's. A kind takes
            the model's steps and temperature (4 and 0).
        steps: number of sampling steps; by default the sampler's.
        temperature: sampling temperature; by default the sampler's.
        length: number of tokens, or argmax or sample of the length head given the latent.
        search: re-embed 4 candidates in 4 rounds, or (not on the command line) as a `SearchConfig` sets, and keep the
            nearest; needs the encoder.
        calls: search with at most this many model calls for each latent, and with fewer if the text is found earlier.
        reembed: report the cosine of each text to its target even without a search, at one encoder call per text.
        samples: number of texts written for each latent. At temperature 0 they have different lengths, the most
            probable ones given the latent; with a fixed length they are equal, which causes a warning.
        keep: which of several texts to keep: best, the one with the highest cosine (with `reembed` or `search`) or else
            the highest log-probability plus half the log-probability of its length; or all, grouped by latent, with
            that text marked in the column `best`.
        min_probability: leave a text empty if the probability that it is right is lower; needs the encoder and a
            calibrated run.
        right: meaning of right in min_probability: exact (as the source was written), up_to_case (exact up to case) or
            content_words (the same content words).
    """
    model.capabilities.require("l2t")
    seed, reembed = check(seed, Seed, name="seed"), check(reembed, bool, name="reembed")
    samples, keep = check(samples, Candidates, name="samples"), check(keep, Keep, name="keep")
    least = check(min_probability, Fraction | None, name="min_probability")
    right, calibration = check(right, Right, name="right"), model.parts.calibration
    if least is not None and calibration is None:
        raise SamplingError(
            "min_probability: expected a run whose texts have probabilities, found one without a calibration of these "
            "weights. Evaluate it (`kedro run --pipelines=sampling,evaluation,reporting`), or leave min_probability "
            "out."
        )
    config = model.text_sampler(sampler, steps, temperature)
    length = length_of(model, length, "l2t", sampler=config)
    longest = length if isinstance(length, int) else model.max_length
    price = config.most_calls(max(longest, model.max_length))
    search = _search_of(
        search, calls, samples, price=price, lengths=2 if isinstance(length, str) and model.model.has_length else 1
    )
    sources, raw_nd = model.targets(targets, name="targets")
    latents_nd, count = model.standardised(raw_nd), len(raw_nd)
    tried = 2 * (search.candidates + search.beam) if search.enabled else 1
    refuse_texts_beyond_memory(count * samples * tried, tokens=longest, numbers=model.dim)
    if samples > 1:  # sample by sample: the first one of each latent equals a request for one
        latents_nd, raw_nd = latents_nd.repeat(samples, 1), np.tile(raw_nd, (samples, 1))
        sources = sources * samples
    writer = model.writer
    certain = getattr(config, "temperature", 1.0) == 0
    lengths, log_probs_n = writer.ranked_lengths(
        length, latents_nd, rows=len(raw_nd), seed=seed, ranks=samples if certain else 1
    )
    if search.enabled:
        written = writer.search(
            lengths, latents_nd=latents_nd, sampler=config, config=search, seed=seed,
            reembed=model.reembed(raw_nd),
        )  # fmt: skip
    else:
        canvases = writer.masks(lengths)
        with writer.writing(canvases, latents_nd=latents_nd, sampler=config, seed=seed) as (batches, results):
            written = Written(**writer.joined(batches, [*results]))  # written here: the way to the loop is short
    made = model.texts(written, sources, raw_nd, reembed=reembed or least is not None)
    if calibration is not None and made.cosines is not None:
        p = calibration.probabilities(made.cosines, made.log_probs)
        made = replace(made, p_exact=p["exact"], p_up_to_case=p["up_to_case"], p_content_words=p["content_words"])
    if samples > 1:
        scores_n = made.log_probs + LENGTH_WEIGHT * log_probs_n if made.cosines is None else made.cosines
        made = _several(made, count, samples, keep, scores_n=scores_n)
    return made if least is None else _abstained(made, getattr(made, f"p_{right}") < least)


def _abstained(made: Texts, refused_n: npt.NDArray[np.bool_]) -> Texts:
    """Leave these texts empty."""
    return replace(
        made,
        texts=tuple("" if refused else text for text, refused in zip(made.texts, refused_n, strict=True)),
        tokens=tuple(() if refused else ids for ids, refused in zip(made.tokens, refused_n, strict=True)),
    )


def _search_of(search: Any, calls: int | None, samples: int, *, price: int, lengths: int) -> SearchConfig:
    """Return the search of a request, among whose samples the model calls are divided; see `SearchConfig.within`.

    Raises:
        SamplingError: there are too few model calls for one text of each sample.
    """
    given = None if search is None or isinstance(search, bool) else parse(SearchConfig, search, at="search")
    most: int | None = check(calls, PositiveInt | None, name="calls") or getattr(given, "calls", None)
    if most is None:
        return given or SEARCHES[bool(search)]
    if most < samples * price:
        raise SamplingError(
            f"calls: expected at least {samples * price} (samples {samples}, each of up to {price} model calls), found "
            f"{most}. Raise it, or choose fewer steps or samples."
        )
    each = most // samples
    return replace(given, calls=each) if given else SearchConfig.within(each, price=price, lengths=lengths)


def _several(made: Texts, count: int, samples: int, keep: Keep, *, scores_n: npt.NDArray[Any]) -> Texts:
    """Return the texts of each of `count` latents, all or the best of each; `made` has them sample by sample.

    The best one has the highest score.
    """
    if count and all(len(set(made.texts[row::count])) == 1 for row in range(count)):
        log.warning(
            "the %d texts of each latent are equal. Raise the temperature of the sampler above 0, or let the model "
            "choose the lengths; if the texts were drawn, the model is certain of them",
            samples,
        )
    best_n = scores_n.reshape(samples, count).argmax(axis=0)
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


@by_row
def generate(
    model: LoadedModel,
    n: int,
    *,
    order: JointOrder = "text_first",
    sampler: Annotated[Any, TEXT_SAMPLERS] = None,
    latent_sampler: Annotated[Any, LATENT_SAMPLERS] = "ddim",
    steps: int | None = None,
    temperature: float | None = None,
    length: Length = "sample",
    seed: int = 0,
) -> Texts:
    """Generate texts from noise, with their latents if the run generates latents.

    Args:
        n: number of texts.
        order: order of text and latent: text_first (then the latent given the text), latent_first (then the text given
            the latent) or together (ancestral steps in the text and as many DDIM steps in the latent, without
            guidance). A run that generates no latents has no order.
        sampler: kind of text sampler, or (not on the command line) its configuration; by default the model's. A kind
            takes the model's steps and temperature, or in the order together the steps of the latent sampler.
        latent_sampler: kind of latent sampler, or its configuration.
        steps: number of steps of both samplers; by default their own.
        temperature: temperature of the text sampler; by default its own.
        length: number of tokens, or argmax or sample of the marginal distribution, or, if the latent is drawn first,
            of the distribution given the latent.
    """
    model.capabilities.require("unconditional")
    n, seed, order = check(n, Rows, name="n"), check(seed, Seed, name="seed"), check(order, JointOrder, name="order")
    joint = bool(model.capabilities.joint_orders)
    latent = latent_sampler_of(latent_sampler, steps if joint else None, name="latent_sampler")
    if joint and order == "together" and (sampler is None or isinstance(sampler, str)):
        sampler, steps = sampler or "ancestral", getattr(latent, "steps", None)
    text = model.text_sampler(sampler, steps, temperature, conditional=False)
    length = length_of(model, length, "unconditional", sampler=text, order=order if joint else "")
    if joint:
        try:
            refuse_samplers(order, text, latent)
        except ValueError as error:
            raise SamplingError(f"{error}.") from None
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
    model.capabilities.require(use, order=order, length=length, max_length=model.max_length, sampler=sampler)
    return length
