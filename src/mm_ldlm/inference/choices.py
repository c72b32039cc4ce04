"""A sampler by its name, or by its typed parameters, with what the caller overrides."""

from __future__ import annotations

from typing import Any, TypeVar

from mm_ldlm.config import parse, to_dict
from mm_ldlm.sampling.config import LatentSamplerConfig, TextSamplerConfig

T = TypeVar("T")


def text_config(sampler: TextSamplerConfig | str, steps: int | None) -> TextSamplerConfig:
    """ConfigurationError for a text sampler that there is not (listing the names), or steps below 1."""
    return _chosen(TextSamplerConfig, sampler, steps=steps)


def latent_config(sampler: LatentSamplerConfig | str, steps: int | None, draws: int | None) -> LatentSamplerConfig:
    """The same for a latent sampler."""
    return _chosen(LatentSamplerConfig, sampler, steps=steps, draws=draws)


def _chosen(cls: type[T], sampler: T | str, **overrides: Any) -> T:
    chosen = parse(cls, {"name": sampler} if isinstance(sampler, str) else sampler, at="sampler")
    given = {key: value for key, value in overrides.items() if value is not None}
    return parse(cls, {**to_dict(chosen), **given}, at="sampler")
