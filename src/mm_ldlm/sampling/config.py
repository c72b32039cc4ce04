"""Typed parameters of the samplers: which one, and its numbers."""

from __future__ import annotations

from typing import Literal

from mm_ldlm.config import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Share, config

TEXT_SAMPLER_NAMES = (
    "ancestral",
    "ddpm_cache",
    "confidence",
    "margin",
    "entropy",
    "random",
    "threshold",
    "entropy_bounded",
    "blocks",
    "remdm_cap",
    "remdm_rescale",
    "remdm_conf",
    "remdm_loop",
)
LATENT_SAMPLER_NAMES = ("ddpm", "ddim", "euler", "heun", "dpmpp_2m", "one_step")
JOINT_SAMPLER_NAMES = ("together", "latent_first", "text_first")

Clock = Literal["schedule", "share"]


def refuse_unknown(name: str, known: tuple[str, ...], what: str) -> None:
    """Raise ValueError listing the `known` names unless `name` is one of them."""
    if name not in known:
        raise ValueError(f"no {what} is called '{name}'; known: {', '.join(known)}")


@config
class TextSamplerConfig:
    """A text sampler by name, with the options of all of them (docs/sampling.md says who reads which)."""

    name: str = "confidence"
    steps: PositiveInt = 8
    """Steps of the grid; for `threshold` and `entropy_bounded` the most that may be taken; for `blocks` a block's."""
    temperature: NonNegativeFloat = 1.0
    """0 takes the most probable token."""
    top_k: PositiveInt | None = None
    top_p: Share | None = None
    guidance: NonNegativeFloat = 1.0
    """γ of `γ·log p_cond + (1−γ)·log p_uncond`; anything but 1 doubles the network calls."""
    clock: Clock | None = None
    """The time the network is told: the sampler's grid, or the share of masks it sees. None: the sampler's own way."""
    skip_idle: bool = False
    """Draw first which tokens a step reveals, and call the network only where it reveals one: the same law, fewer
    calls.
    """
    counts: Literal["linear", "cosine"] = "linear"
    """How many tokens each step of a count-driven order reveals."""
    threshold: Share = 0.9
    entropy_bound: NonNegativeFloat = 0.1
    """γ of the entropy-bounded sampler, in nats."""
    block_length: PositiveInt = 8
    inner: str = "confidence"
    """The sampler that fills one block."""
    eta: Share = 0.1
    """How much ReMDM re-masks: the cap itself for `cap` and `loop`, a factor of σ_max for `rescale` and `conf`."""
    t_on: Share = 0.55
    t_off: Share = 0.05
    alpha_on: Share = 0.9

    def __post_init__(self) -> None:
        refuse_unknown(self.name, TEXT_SAMPLER_NAMES, "text sampler")
        fillers = tuple(name for name in TEXT_SAMPLER_NAMES if name != "blocks")
        refuse_unknown(self.inner, fillers, "sampler that fills a block")
        if self.top_p == 0:
            raise ValueError("top_p must be above 0: nothing would be left to draw from")
        if not self.t_off < self.t_on:
            raise ValueError(f"t_off must lie below t_on, found t_off={self.t_off}, t_on={self.t_on}")
        if self.clock == "schedule" and self.name in ("threshold", "entropy_bounded"):
            raise ValueError(f"sampler '{self.name}' has no grid of times: clock must be 'share'")


@config
class LatentSamplerConfig:
    """A latent sampler by name, with its numbers."""

    name: str = "ddim"
    steps: PositiveInt = 20
    guidance: NonNegativeFloat = 1.0
    """g of `u + g(c − u)`; anything but 1 doubles the network calls."""
    eta: Share = 0.0
    """DDIM only: 0 is deterministic, 1 has DDPM's variance."""
    t_max: PositiveFloat = 1.0
    """Where the grid starts. Below 1 for `eps` networks, whose estimate of x0 is undefined without signal."""
    draws: PositiveInt = 1
    """K samples are drawn for each row and their mean returned."""

    def __post_init__(self) -> None:
        refuse_unknown(self.name, LATENT_SAMPLER_NAMES, "latent sampler")
        if self.t_max > 1:
            raise ValueError(f"t_max must be at most 1, found {self.t_max}")


@config
class SearchConfig:
    """Candidates re-embedded and compared with the target; all counts are per target."""

    candidates: PositiveInt = 1
    """K drawn at the start, and children of every beam in each round."""
    rounds: NonNegativeInt = 0
    """R rounds of re-masking the least certain tokens."""
    beam: PositiveInt = 1
    """Candidates kept from round to round."""
    remask_share: Share = 0.4
    """Share of a candidate's tokens that a child draws again."""
    remask_noise: NonNegativeFloat = 1.0
    """Gumbel noise, in nats, on the certainty by which tokens are picked: 0 re-masks the same ones every time."""
    lengths: PositiveInt = 1
    """The candidates of the start are spread over this many of the most probable lengths."""
    temperature: NonNegativeFloat = 0.7
    """Of all candidates but the first, which keeps the text sampler's own."""
    good_enough: PositiveFloat = 0.9999
    """A target whose best candidate reaches this cosine is not searched further."""

    @property
    def enabled(self) -> bool:
        """Whether anything is searched at all."""
        return self.candidates > 1 or self.rounds > 0
