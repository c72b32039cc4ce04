"""Capabilities of a trained run: one record for the Python API, the pipelines, the evaluation and the report.

An objective's configuration makes the record (`ObjectiveConfig.capabilities`). No other code derives what a run can do
from the names of models, objectives or modes. Every caller refuses an unsupported use with the message of `refusal`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from mm_ldlm.core import ConfigurationError, Registry, SamplingError, nearest
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.sampling.base import unfit
from mm_ldlm.sampling.guidance import no_condition

_WORDS = {
    "l2t": "write texts from latents",
    "t2l": "embed texts",
    "unconditional": "generate texts from noise",
    "continue": "continue the beginning of a text",
    "infill": "fill masked positions of a text without a latent",
    "infill_given_latent": "fill masked positions of a text given a latent",
    "edit": "edit texts under a target latent",
    "interpolate": "interpolate between latents",
    "search": "search for the text nearest to a latent",
    "score": "score texts without a latent",
    "score_given_latent": "score texts given their latents",
}


class Uses(Registry):
    """Names of everything that a run can do; each is loaded as words that complete "this run cannot …"."""

    def load(self, name: str) -> str:
        return _WORDS.get(name) or str(super().load(name))


USES = Uses("use", dict.fromkeys(_WORDS, ""), group="uses")
"""The uses of the core; families add theirs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of one run.

    Attributes:
        uses: the uses of `USES` that training prepared the run for.
        fields: the fields of a batch that the run has ("latents").
        likelihood: whether `score` returns the exact negative log-likelihood, an upper bound on it (the NELBO), or the
            NELBO given the length of the text, for a run that has not learned lengths.
        untrained_lengths: uses and joint orders in which the run cannot choose the length of a text → the reason; None
            where it can. The caller gives the number of tokens there.
        joint_orders: orders in which a text and its latent can be generated together; () for a run that generates no
            latents.
        process: configuration of the text process, whose properties decide the samplers that fit; None if the model is
            not a diffusion model.
        guided: the uses whose text samplers accept a guidance other than 1, given a condition.
        only_sampler: the kind of text sampler without which the run writes no text, because its model reads what this
            sampler denoises with the text; None if every sampler that fits the process does.
        trained_as: the objective in words, for messages: "objective multimodal, modes l2t, t2l".
    """

    uses: frozenset[str]
    fields: tuple[str, ...] = ()
    likelihood: Literal["exact", "bound", "given_length"] = "bound"
    untrained_lengths: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    joint_orders: tuple[str, ...] = ()
    process: TextProcessConfig | None = None
    guided: frozenset[str] = frozenset()
    only_sampler: str | None = None
    trained_as: str

    def __post_init__(self) -> None:
        if unknown := sorted(self.uses - {*USES}):
            raise ConfigurationError(
                f"expected uses of the registry ({', '.join(USES)}) from `capabilities` of the objective, found "
                f"{', '.join(unknown)}.{nearest(unknown[0], USES)} Correct it."
            )

    def __contains__(self, use: str) -> bool:
        return use in self.uses

    def filling(self, *, given_latent: bool = False) -> str:
        """Return the use by which gaps of a text are filled; a run that continues texts fills them at the end only."""
        continues = "continue" in self.uses and not given_latent
        return "continue" if continues else "infill_given_latent" if given_latent else "infill"

    def refusal(self, use: str) -> str | None:
        """Explain why the run does not support `use` and list the uses that it supports; None if it supports it."""
        if use in self.uses:
            return None
        able = ", ".join(name for name in USES if name in self.uses) or "nothing"
        return f"this run cannot {USES.load(use)} ({use}): it was trained with {self.trained_as}. It can: {able}."

    def require(self, use: str, **how: Any) -> None:
        """Raise SamplingError with `task_refusal(use, **how)` unless the run supports `use` in this way."""
        if (reason := self.task_refusal(use, **how)) is not None:
            raise SamplingError(reason)

    def task_refusal(self, use: str, *, order: str = "", length: str | int | None = None, **lengths: Any) -> str | None:
        """Explain why the run does not support a request or a task of the sampling pipeline; None if it supports it.

        `use` is what it needs, `order` the order in which `unconditional` generates texts and latents, `length` the
        length of the texts (None: it chooses no lengths), and `lengths` go to `length_refusal`.
        """
        reason = self.refusal(use)
        if reason is None and order not in ("", *self.joint_orders) and use == "unconditional" and self.joint_orders:
            reason = (
                f"this run cannot generate texts and latents in the order '{order}': it was trained with "
                f"{self.trained_as}. Orders that it supports: {', '.join(self.joint_orders)}."
            )
        return reason or self.length_refusal(length, use, order=order, **lengths)

    def length_refusal(
        self, length: str | int | None, use: str, *, order: str = "", max_length: float = math.inf, sampler: Any = None
    ) -> str | None:
        """Explain why a text of this length cannot be written; None if it can, or if the length is None.

        Args:
            length: how the run chooses the length, or a number of tokens.
            order: see `task_refusal`.
            max_length: number of tokens that the model reads at once.
            sampler: the text sampler; None: the text must fit the model whatever writes it.
        """
        if isinstance(length, str):
            return self.untrained_lengths.get(order if use == "unconditional" and self.joint_orders else use)
        if length is None or length <= max_length or (sampler is not None and sampler.exceeds_window):
            return None
        blocks = ", or use the sampler 'blocks'" if self.process is not None and self.process.only_masks else ""
        return (
            f"expected a text of at most {max_length} tokens, the model's maximum length; found a request for "
            f"{length}. Request a shorter text{blocks}."
        )

    def sampler_refusal(self, sampler: Any, use: str, *, given_latent: bool) -> str | None:
        """Explain why a text sampler does not fit a use of the run, in the words of its `sample`; None if it fits."""
        if self.only_sampler not in (None, sampler.kind):
            needs = f"a model of texts only; this run denoises {', '.join(self.fields)} with the text"
            return unfit(sampler.kind, needs, self.process, instead=f"'{self.only_sampler}'")
        if (reason := sampler.refusal(self.process)) is not None:
            return str(reason)
        if (field := getattr(sampler, "denoises", None)) is not None and field not in self.fields:
            return unfit(sampler.kind, f"a model of the field '{field}'", self.process)
        scale = getattr(sampler, "guidance", 1.0)
        if scale == 1.0 or ((given_latent or field is not None) and use in self.guided):
            return None
        return str(no_condition(scale))


def untrained_lengths(objective: Any, *, given: bool | None) -> str | None:
    """Explain why the distribution of lengths was not trained; None if it was.

    Args:
        objective: a configuration with `length_weight`, and with `condition_dropout` if lengths depend on a condition.
        given: whether the condition is given or dropped; None if lengths depend on none.
    """
    untrained = {"length_weight": 0.0}
    if given is not None:
        untrained["condition_dropout"] = 1.0 if given else 0.0
    for name, value in untrained.items():
        if getattr(objective, name) == value:
            words = "" if name == "length_weight" else " given a latent" if given else " without a latent"
            return (
                f"this run has not learned the distribution of lengths{words}: it was trained with objective.{name} "
                f"{value:g}. Give the length as a number of tokens."
            )
    return None
