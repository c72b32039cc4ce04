"""A sampler by its name, or by its typed parameters, with what the caller overrides."""

from __future__ import annotations

from dataclasses import replace

from mm_ldlm.config import parse
from mm_ldlm.sampling.config import LatentSamplerConfig, TextSamplerConfig


def text_config(sampler: TextSamplerConfig | str, steps: int | None) -> TextSamplerConfig:
    """ConfigurationError, listing the names, for a text sampler that there is not."""
    config = parse(TextSamplerConfig, {"name": sampler}, at="sampler") if isinstance(sampler, str) else sampler
    return config if steps is None else replace(config, steps=steps)


def latent_config(sampler: LatentSamplerConfig | str, steps: int | None, draws: int | None) -> LatentSamplerConfig:
    """The same for a latent sampler."""
    config = parse(LatentSamplerConfig, {"name": sampler}, at="sampler") if isinstance(sampler, str) else sampler
    return replace(config, steps=steps or config.steps, draws=draws or config.draws)
