"""A sampler by its name, or by its typed parameters, with what the caller overrides."""

from __future__ import annotations

from typing import Any, TypeVar

from mm_ldlm.config import parse, to_dict
from mm_ldlm.sampling.config import LatentSamplerConfig, TextSamplerConfig

T = TypeVar("T")

SUREST = TextSamplerConfig(name="confidence", steps=4, temperature=0.0)
"""For a text that is given by its latent or its context: one answer is right, the most probable one."""
DRAWN = TextSamplerConfig(name="confidence", steps=32, temperature=1.0)
"""For a text out of noise: drawn, so that texts differ."""


def text_config(
    sampler: TextSamplerConfig | str | None, steps: int | None, *, usual: TextSamplerConfig = SUREST
) -> TextSamplerConfig:
    """`usual`, or with another name, or the caller's own; ConfigurationError for a name that there is not (listing the
    names), or steps below 1.
    """
    return _chosen(TextSamplerConfig, sampler or usual, usual=usual, steps=steps)


def latent_config(sampler: LatentSamplerConfig | str, steps: int | None, draws: int | None) -> LatentSamplerConfig:
    """The same for a latent sampler."""
    return _chosen(LatentSamplerConfig, sampler, usual=LatentSamplerConfig(), steps=steps, draws=draws)


def _chosen(cls: type[T], sampler: T | str, *, usual: T, **overrides: Any) -> T:
    chosen = parse(cls, {**to_dict(usual), "name": sampler} if isinstance(sampler, str) else sampler, at="sampler")
    given = {key: value for key, value in overrides.items() if value is not None}
    return parse(cls, {**to_dict(chosen), **given}, at="sampler")
