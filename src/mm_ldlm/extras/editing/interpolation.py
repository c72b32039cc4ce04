"""Texts between two latents, on the great circle from one to the other."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import SamplingError, bounded, check
from mm_ldlm.inference.model import Latents, LoadedModel
from mm_ldlm.inference.requests.generation import invert
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.writer import refuse_texts_beyond_memory
from mm_ldlm.sampling.limits import MOST_STEPS, Length
from mm_ldlm.sampling.registry import TEXT_SAMPLERS

Floats = npt.NDArray[np.floating]
Points = Annotated[int, bounded(ge=2, le=MOST_STEPS)]


def interpolate(
    model: LoadedModel,
    a: Latents | Sequence[str] | str,
    b: Latents | Sequence[str] | str,
    *,
    steps: int = 5,
    sampler: Annotated[Any, TEXT_SAMPLERS] = None,
    length: Length = "argmax",
    reembed: bool = False,
    seed: int = 0,
) -> Texts:
    """Write texts at evenly spaced points of the great circle from one latent or text to another, both included.

    Lists are paired. `rows` of the result are the numbers of the pairs.

    Args:
        a: first latents, or texts.
        b: last latents or texts, one for each of `a`.
        steps: number of texts of each pair.
        length: number of tokens, or argmax or sample of the length head given the latent.
        reembed: report the cosine of each text to its latent, at one encoder call per text.
    """
    model.capabilities.require("interpolate")
    steps = check(steps, Points, name="steps")
    sources_a, raw_a = model.targets(a, name="a")
    sources_b, raw_b = model.targets(b, name="b")
    if len(raw_a) != len(raw_b):
        raise SamplingError(
            f"b: expected {len(raw_a)} latents or texts, one for each of a, found {len(raw_b)}. Give as many."
        )
    refuse_texts_beyond_memory(len(raw_a) * steps, tokens=model.max_length, numbers=model.dim)
    for ends_nd in (raw_a, raw_b):
        model.standardised(ends_nd)  # refuses ends whose norms exceed the arithmetic of the path
    fractions = np.linspace(0.0, 1.0, steps)
    raw_nd = np.stack([slerp(raw_a, raw_b, fraction) for fraction in fractions], axis=1).reshape(-1, model.dim)
    written = invert(
        model, raw_nd.astype(np.float32), sampler=sampler, length=length, reembed=reembed, seed=seed
    )  # fmt: skip
    inner = [None] * (steps - 2)
    sources = [text for first, last in zip(sources_a, sources_b, strict=True) for text in (first, *inner, last)]
    pairs = np.repeat(np.arange(len(raw_a)), steps)
    return replace(written, sources=tuple(sources), rows=pairs, fractions=np.tile(fractions, len(raw_a)))


def slerp(a_nd: Floats, b_nd: Floats, fraction: float) -> Floats:
    """Interpolate along the great circle, with the norms interpolated separately.

    Parallel and opposite vectors are interpolated linearly.
    """
    a_n1, b_n1 = (np.linalg.norm(x, axis=1, keepdims=True) for x in (a_nd, b_nd))
    unit_a, unit_b = a_nd / np.maximum(a_n1, 1e-12), b_nd / np.maximum(b_n1, 1e-12)
    angle_n1 = np.arccos(np.clip((unit_a * unit_b).sum(axis=1, keepdims=True), -1.0, 1.0))
    sine_n1 = np.sin(angle_n1)
    line_nd, length_n1 = ((1 - fraction) * a + fraction * b for a, b in ((a_nd, b_nd), (a_n1, b_n1)))
    straight = sine_n1 < 1e-6
    safe_n1 = np.where(straight, 1.0, sine_n1)
    arc_nd = np.sin((1 - fraction) * angle_n1) / safe_n1 * unit_a + np.sin(fraction * angle_n1) / safe_n1 * unit_b
    return np.where(straight, line_nd, arc_nd * length_n1)
