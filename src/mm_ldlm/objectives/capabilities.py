"""Capabilities of a trained run: one record for the Python API, the pipelines, the evaluation and the report.

An objective's configuration makes the record (`ObjectiveConfig.capabilities`). No other code derives what a run can do
from the names of models, objectives or modes. Every caller refuses an unsupported use with the message of `refusal`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.process import ProcessTraits
from mm_ldlm.sampling.base import refuse_without_states
from mm_ldlm.sampling.guidance import refuse_without_condition

Use = Literal[
    "l2t", "t2l", "unconditional", "infill", "infill_given_latent", "edit", "interpolate", "search", "score",
    "score_given_latent", "classify", "caption_to_image", "image_to_caption", "image_text",
]  # fmt: skip
USES: dict[Use, str] = {
    "l2t": "write texts from latents",
    "t2l": "embed texts",
    "unconditional": "generate texts from noise",
    "infill": "fill masked positions of a text without a latent",
    "infill_given_latent": "fill masked positions of a text given a latent",
    "edit": "edit texts under a target latent",
    "interpolate": "interpolate between latents",
    "search": "search for the text nearest to a latent",
    "score": "score texts without a latent",
    "score_given_latent": "score texts given their latents",
    "classify": "assign texts, latents or pairs of texts to classes",
    "caption_to_image": "generate images from captions",
    "image_to_caption": "write captions of images",
    "image_text": "generate images and captions together",
}
"""Every use, in words that complete "this run cannot …"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of one run.

    Attributes:
        uses: the uses of `USES` that training prepared the run for.
        likelihood: whether `score` returns the exact negative log-likelihood or an upper bound on it (the NELBO).
        untrained_lengths: uses and joint orders in which the run cannot choose the length of a text → the reason. The
            caller gives the number of tokens there.
        joint_orders: orders in which a text and its latent can be generated together; () for a run that generates no
            latents.
        reads_latents: whether the examples of the run have latents.
        reads_images: whether the examples of the run have images.
        process: traits of the text process, which decide the samplers that fit; None if the model is not a diffusion
            model.
        guided: the uses whose text samplers accept a guidance other than 1, given a latent, token states or an image.
        token_states: whether the run generates a continuous state of each token beside a text.
        classifies: what `classify` receives: texts, latents, or pairs of texts; None without the use.
        trained_as: the objective in words, for messages: "objective multimodal, modes l2t, t2l".
    """

    uses: frozenset[Use]
    likelihood: Literal["exact", "bound"] = "bound"
    untrained_lengths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    joint_orders: tuple[str, ...] = ()
    reads_latents: bool = False
    reads_images: bool = False
    process: ProcessTraits | None = None
    guided: frozenset[Use] = frozenset()
    token_states: bool = False
    classifies: Literal["texts", "latents", "pairs"] | None = None
    trained_as: str

    def __contains__(self, use: Use) -> bool:
        return use in self.uses

    def refusal(self, use: Use) -> str | None:
        """Explain why the run does not support `use` and list the uses that it supports; None if it supports it."""
        if use in self.uses:
            return None
        able = ", ".join(name for name in USES if name in self.uses) or "nothing"
        return f"this run cannot {USES[use]} ({use}): it was trained with {self.trained_as}. It can: {able}."

    def require(self, use: Use) -> None:
        """Raise SamplingError with `refusal(use)` unless the run supports `use`."""
        if (reason := self.refusal(use)) is not None:
            raise SamplingError(reason)

    def refuse_task(self, use: Use, *, order: str, length: str | int | None) -> str | None:
        """Explain why the run does not support a task of the sampling pipeline; None if it supports it.

        `use` is what the task needs, `order` the order in which `unconditional` generates texts and latents, and
        `length` the length of the texts (None: the task chooses no lengths).
        """
        if (reason := self.refusal(use)) is not None:
            return reason
        if use == "unconditional" and self.joint_orders and (reason := self.refuse_order(order)) is not None:
            return reason
        return self.refuse_length(length, use, order=order)

    def refuse_length(self, length: str | int | None, use: Use, *, order: str) -> str | None:
        """Explain why the run cannot choose the length of a text by itself; None if it can, or if it need not."""
        if not isinstance(length, str):
            return None
        return self.untrained_lengths.get(order if use == "unconditional" and self.joint_orders else use)

    def refuse_sampler(self, sampler: Any, use: Use, *, given_latent: bool) -> str | None:
        """Explain why a text sampler does not fit a use of the run, in the words of its `sample`; None if it fits."""
        if (reason := sampler.refusal(self.process)) is not None:
            return str(reason)
        reads_states = getattr(sampler, "reads_states", False)
        if reads_states and not self.token_states:
            return refuse_without_states(sampler.kind)
        scale = getattr(getattr(sampler, "draw", None), "guidance", 1.0)
        if scale == 1.0 or ((given_latent or reads_states) and use in self.guided):
            return None
        return str(refuse_without_condition(scale))

    def refuse_order(self, order: str) -> str | None:
        """Explain why a text and its latent cannot be generated in this order; None if they can."""
        if order in self.joint_orders:
            return None
        known = ", ".join(self.joint_orders) or ("none" if self.reads_latents else "none: it has no latents")
        return (
            f"this run cannot generate texts and latents in the order '{order}': it was trained with "
            f"{self.trained_as}. Orders that it supports: {known}."
        )

    def require_order(self, order: str) -> None:
        """Raise SamplingError with `refuse_order(order)` unless the run supports this order."""
        if (reason := self.refuse_order(order)) is not None:
            raise SamplingError(reason)
