"""Registries of the text samplers and the latent samplers by kind, and the default sampler of a process."""

from typing import Any

from mm_ldlm.core import Kinds, parse_kind
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.sampling.base import TextSampler
from mm_ldlm.sampling.gaussian import GridSampler

TEXT_SAMPLERS = Kinds(
    what="text sampler",
    core={
        "ancestral": "mm_ldlm.sampling.ancestral:AncestralConfig",
        "ddpm_cache": "mm_ldlm.sampling.ancestral:DdpmCacheConfig",
        "confidence": "mm_ldlm.sampling.orders:ConfidenceConfig",
        "entropy": "mm_ldlm.sampling.orders:EntropyConfig",
        "random": "mm_ldlm.sampling.orders:RandomConfig",
        "threshold": "mm_ldlm.sampling.orders:ThresholdConfig",
    },
    group="text_samplers",
    interface=TextSampler,
)
LATENT_SAMPLERS = Kinds(
    what="latent sampler",
    core={
        "ddpm": "mm_ldlm.sampling.gaussian:DdpmConfig",
        "ddim": "mm_ldlm.sampling.gaussian:DdimConfig",
        "one_step": "mm_ldlm.sampling.gaussian:OneStepConfig",
    },
    group="latent_samplers",
    interface=GridSampler,
)


def text_sampler(kind: str, **settings: Any) -> Any:
    """Build a text sampler, as in `text_sampler("threshold", threshold=0.8)`; ConfigurationError for unknown keys."""
    return parse_kind(TEXT_SAMPLERS, {"kind": kind, **settings}, at="sampler")


def latent_sampler(kind: str, **settings: Any) -> Any:
    """Build a latent sampler, as in `latent_sampler("ddim", steps=8)`; ConfigurationError for unknown keys."""
    return parse_kind(LATENT_SAMPLERS, {"kind": kind, **settings}, at="sampler")


def default_text_sampler(process: TextProcess, *, conditional: bool) -> Any:
    """Build the default text sampler of a process.

    A text that its latent or its context determines has one correct answer, so conditional sampling takes few steps at
    temperature 0. Unconditional texts are drawn at temperature 1, so that they differ.
    """
    kind = "confidence" if process.traits.only_masks else "ancestral"
    return text_sampler(kind, steps=4, temperature=0.0) if conditional else text_sampler(kind, steps=32)
