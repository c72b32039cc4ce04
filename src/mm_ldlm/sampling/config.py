"""Parameters of the search, and the samplers that fit an order of texts and latents."""

from __future__ import annotations

from typing import Any, Literal

from mm_ldlm.core.config import Fraction, InvalidValue, NonNegativeFloat, PositiveFloat, Repeats, config
from mm_ldlm.sampling.limits import Candidates, Rounds, refuse_temperature

JointOrder = Literal["together", "latent_first", "text_first"]
Keep = Literal["best", "all"]
"""Which of several texts for one latent are kept"""


def refuse_samplers(order: JointOrder, text: Any, latent: Any) -> None:
    """Raise ValueError if the samplers do not fit the order in which texts and latents are generated."""
    if order != "text_first" and latent.draws > 1:
        raise InvalidValue(
            f"latent.draws is {latent.draws}, but in the order '{order}' each draw is the latent of a different "
            "sentence, and their mean is the latent of no sentence: set draws to 1",
            "latent.draws",
            "order",
        )
    if order != "together":
        return
    both = getattr(latent, "steps", None)
    expected = {"kind": ("ancestral", "ddim"), "steps": (both, both), "guidance": (1.0, 1.0)}
    for key, values in expected.items():  # the kind first: other kinds need not have the other keys
        for name, sampler, value in zip(("text", "latent"), (text, latent), values, strict=True):
            found = getattr(sampler, key)
            if found != value:
                raise InvalidValue(
                    f"the order 'together' takes ancestral steps in the text and as many DDIM steps in the latent, "
                    f"without guidance: expected {name}.{key} {value!r}, found {found!r}",
                    f"{name}.{key}",
                    "order",
                )


@config
class SearchConfig:
    """Parameters of the search, which re-embeds candidates and compares them with the target. Counts are per target."""

    candidates: Candidates = 1
    """Number of candidates at the start (K), and of children in each round"""
    rounds: Rounds = 0
    """Number of rounds, in which the least confident tokens are masked again and rewritten"""
    beam: Candidates = 1
    """Number of candidates kept from round to round"""
    remask_ratio: Fraction = 0.4
    """Fraction of a candidate's tokens that a child draws again"""
    remask_noise: NonNegativeFloat = 1.0
    """Scale of the Gumbel noise (nats) on the log-probabilities that rank the tokens; 0 always masks the same tokens"""
    resize: Fraction = 0.0
    """Fraction of the children that are one token longer or shorter than their parent, at its least confident token"""
    lengths: Repeats = 1
    """Number of the most probable lengths among which the starting candidates are divided"""
    temperature: NonNegativeFloat = 0.7
    """Temperature of all candidates but the first, which uses the temperature of the text sampler"""
    good_enough: PositiveFloat = 0.9999
    """Cosine at which the search for a target ends"""

    def __post_init__(self) -> None:
        refuse_temperature(self.temperature)

    @property
    def enabled(self) -> bool:
        """Whether a search takes place."""
        return self.candidates > 1 or self.rounds > 0
