"""Registries of the text samplers and the latent samplers by kind."""

from __future__ import annotations

from typing import Any, Protocol

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.kinds import Kinds
from mm_ldlm.sampling.base import TextSampler
from mm_ldlm.sampling.gaussian import LatentSampler


class AnySampler(Protocol):
    """Members that samplers of texts and of latents share."""

    kind: str

    def sample(self, denoise: Any, *arguments: Any, **keys: Any) -> Any:
        """Draw texts or latents."""

    def override(self, *, steps: int | None = None) -> Any:
        """Copy the sampler, replacing the settings that are not None."""


TEXT_SAMPLERS = Kinds(
    what="text sampler",
    core={
        "ancestral": "mm_ldlm.sampling.ancestral:AncestralConfig",
        "ddpm_cache": "mm_ldlm.sampling.ddpm_cache:DdpmCacheConfig",
        "confidence": "mm_ldlm.sampling.orders:ConfidenceConfig",
        "margin": "mm_ldlm.sampling.orders:MarginConfig",
        "entropy": "mm_ldlm.sampling.orders:EntropyConfig",
        "random": "mm_ldlm.sampling.orders:RandomConfig",
        "threshold": "mm_ldlm.sampling.threshold:ThresholdConfig",
        "entropy_bounded": "mm_ldlm.sampling.threshold:EntropyBoundedConfig",
        "blocks": "mm_ldlm.sampling.blocks:BlocksConfig",
        "remdm_cap": "mm_ldlm.sampling.remdm:RemdmCapConfig",
        "remdm_rescale": "mm_ldlm.sampling.remdm:RemdmRescaleConfig",
        "remdm_conf": "mm_ldlm.sampling.remdm:RemdmConfConfig",
        "remdm_loop": "mm_ldlm.sampling.remdm:RemdmLoopConfig",
    },
    group="text_samplers",
    interface=TextSampler,
)
LATENT_SAMPLERS = Kinds(
    what="latent sampler",
    core={
        "ddpm": "mm_ldlm.sampling.gaussian:DdpmConfig",
        "ddim": "mm_ldlm.sampling.gaussian:DdimConfig",
        "euler": "mm_ldlm.sampling.gaussian:EulerConfig",
        "heun": "mm_ldlm.sampling.gaussian:HeunConfig",
        "dpmpp_2m": "mm_ldlm.sampling.gaussian:Dpmpp2mConfig",
        "one_step": "mm_ldlm.sampling.gaussian:OneStepConfig",
    },
    group="latent_samplers",
    interface=LatentSampler,
)


def text_sampler(kind: str, **settings: Any) -> Any:
    """Build a text sampler, as in `text_sampler("threshold", threshold=0.8)`; ConfigurationError for unknown keys."""
    return parse_kind(TEXT_SAMPLERS, {"kind": kind, **settings}, at="sampler")


def latent_sampler(kind: str, **settings: Any) -> Any:
    """Build a latent sampler, as in `latent_sampler("ddim", steps=8)`; ConfigurationError for unknown keys."""
    return parse_kind(LATENT_SAMPLERS, {"kind": kind, **settings}, at="sampler")
