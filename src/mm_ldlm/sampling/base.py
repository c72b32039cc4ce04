"""Interface and base classes of text samplers: shared keys, and the processes that a sampler applies to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor

from mm_ldlm.core.config import Fraction, InvalidValue, NonNegativeFloat, PositiveInt, config, parse, to_dict
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.process import ProcessTraits, TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample
from mm_ldlm.sampling.limits import Guidance, Steps, refuse_temperature
from mm_ldlm.sampling.logit_filters import Draw


class TextSampler(Protocol):
    """Interface of text samplers: a configuration with the method `sample`."""

    kind: str
    exceeds_window: ClassVar[bool]
    """Whether the sampler can write texts longer than the model's `max_length`"""

    def sample(
        self,
        denoise: TextDenoiser,
        tokens_BL: Tensor,
        *,
        process: TextProcess | None,
        generator: RowGenerator,
        window: int | None = None,
        open_BL: Tensor | None = None,
    ) -> TextSample:
        """Write the [MASK] positions of `tokens_BL`, or only those of them in `open_BL`.

        `process` is the process that the model was trained with, or None if the model is not a diffusion model.
        `window` is the number of positions that the model can read at once (None: no limit).
        """

    def override(self, *, steps: int | None = None, temperature: float | None = None) -> Self:
        """Copy the sampler, replacing the settings that are not None."""

    def refusal(self, process: ProcessTraits | None) -> str | None:
        """Explain why the sampler does not fit a model of this process (None: no diffusion model); None if it fits.

        The check of the parameters calls it before a run, and `sample` refuses in the same words.
        """


@config
class DiffusionSampler:
    """Keys that all text samplers of a diffusion process read.

    Attributes:
        steps: maximum number of denoising steps.
        temperature: temperature of the draw of a token; 0 takes the most probable token.
        top_k, top_p: limit the draw to the most probable tokens.
        guidance: γ of `γ·log p_cond + (1−γ)·log p_uncond`; any value but 1 doubles the model calls.
    """

    kind: str
    steps: Steps = 8
    temperature: NonNegativeFloat = 1.0
    top_k: PositiveInt | None = None
    top_p: Fraction | None = None
    guidance: Guidance = 1.0

    exceeds_window: ClassVar[bool] = False
    denoises: ClassVar[str | None] = None
    """Field of the run that the sampler denoises together with the text, such as a state of each token"""

    def __post_init__(self) -> None:
        if self.top_p == 0:
            raise InvalidValue("top_p must be above 0, found 0: no token could be drawn", "top_p")
        refuse_temperature(self.temperature)

    @property
    def draw(self) -> Draw:
        """Settings of the draw of a token from the model's distribution."""
        return Draw(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, guidance=self.guidance)

    def override(self, *, steps: int | None = None, temperature: float | None = None) -> Self:
        """Copy the sampler, replacing the settings that are not None."""
        given = {key: value for key, value in (("steps", steps), ("temperature", temperature)) if value is not None}
        return parse(type(self), {**to_dict(self), **given}, at="sampler")

    def refusal(self, process: ProcessTraits | None) -> str | None:
        """See `TextSampler.refusal`. Every process fits."""
        return refuse_without_process(self.kind) if process is None else None


@config
class UnmaskingSampler(DiffusionSampler, ABC):
    """Base of the samplers that choose the order of unmasking, for processes whose only noise is [MASK]."""

    def sample(
        self,
        denoise: TextDenoiser,
        tokens_BL: Tensor,
        *,
        process: TextProcess | None,
        generator: RowGenerator,
        window: int | None = None,
        open_BL: Tensor | None = None,
    ) -> TextSample:
        """See `TextSampler.sample`.

        Raises:
            SamplingError: the noise of the process is not [MASK], or there is no process.
        """
        schedule = require_process(self, process).mask_schedule
        assert schedule is not None
        return self.unmask(denoise, tokens_BL, schedule=schedule, generator=generator, open_BL=open_BL)

    def refusal(self, process: ProcessTraits | None) -> str | None:
        """See `TextSampler.refusal`. Only processes whose only noise is [MASK] fit."""
        return refuse_other_noise(self.kind, process)

    @abstractmethod
    def unmask(
        self,
        denoise: TextDenoiser,
        tokens_BL: Tensor,
        *,
        schedule: MaskSchedule,
        generator: RowGenerator,
        open_BL: Tensor | None,
    ) -> TextSample:
        """Unmask the open positions of `tokens_BL`; `schedule` is the process's α_t."""


def require_process(sampler: Any, process: TextProcess | None) -> TextProcess:
    """Return the process, or raise SamplingError with `sampler.refusal` if the sampler does not fit it."""
    if (reason := sampler.refusal(None if process is None else process.traits)) is not None:
        raise SamplingError(reason)
    assert process is not None
    return process


def refuse_without_process(kind: str) -> str:
    """Explain that a sampler of a diffusion process does not fit another model."""
    return (
        f"sampler '{kind}' needs a diffusion model, but this model has no diffusion process. "
        "Choose the sampler 'autoregressive'."
    )


def refuse_without_field(kind: str, field: str | None) -> str:
    """Explain that a sampler of texts and of a field does not fit a model without the field."""
    return (
        f"sampler '{kind}' needs a model of the field '{field}', which this run lacks. Choose the sampler 'ancestral'."
    )


def refuse_other_noise(kind: str, process: ProcessTraits | None) -> str | None:
    """Explain that a sampler needs a process whose only noise is [MASK]; None if the process is one."""
    if process is None:
        return refuse_without_process(kind)
    if process.only_masks:
        return None
    return (
        f"sampler '{kind}' needs a process whose only noise is [MASK], as in 'absorbing'; this model was trained "
        f"with '{process.kind}'. Choose the sampler 'ancestral'."
    )
