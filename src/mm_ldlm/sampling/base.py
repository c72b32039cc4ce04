"""Interface and base classes of text samplers: shared keys, and the processes that a sampler applies to."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, Self

from mm_ldlm.core import SamplingError, config, parse, to_dict
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.sampling.denoising import Canvas, Observe, TextSample, unobserved
from mm_ldlm.sampling.limits import Steps
from mm_ldlm.sampling.logit_filters import Draw


class TextSampler(Protocol):
    """Interface of text samplers: a configuration with the method `sample`."""

    kind: str
    exceeds_window: ClassVar[bool]
    """Whether the sampler can write texts longer than the model's `max_length`"""

    def sample(self, canvas: Canvas) -> TextSample:
        """Write the [MASK] positions of a canvas.

        Raises:
            SamplingError: the sampler does not fit the process (`refusal`), or guidance needs a condition.
        """

    def most_calls(self, length: int) -> int:
        """Bound the number of model calls for a text of this length; a guided call counts 2."""

    def override(self, *, steps: int | None = None, temperature: float | None = None) -> Self:
        """Copy the sampler, replacing the settings that are not None."""

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """Explain why the sampler does not fit a model of this process (None: no diffusion model); None if it fits.

        The check of the parameters calls it before a run, and `sample` refuses in the same words.
        """


class Overridable:
    """Configurations whose settings a request can replace."""

    def override(self, **settings: Any) -> Self:
        """Copy the configuration, replacing the settings that are not None."""
        given = {key: value for key, value in settings.items() if value is not None}
        return parse(type(self), {**to_dict(self), **given}, at="sampler")


@config
class DiffusionSampler(Draw, Overridable, ABC):
    """Keys that all text samplers of a diffusion process read, with the keys of `Draw`.

    Attributes:
        steps: maximum number of denoising steps.
    """

    kind: str
    steps: Steps = 8

    exceeds_window: ClassVar[bool] = False
    observe: ClassVar[Observe] = staticmethod(unobserved)
    denoises: ClassVar[str | None] = None
    """Field of the run that the sampler denoises together with the text, such as a state of each token"""

    def most_calls(self, length: int) -> int:
        """See `TextSampler.most_calls`: one call for each step."""
        return self.steps * (1 if self.guidance == 1.0 else 2)

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `TextSampler.refusal`. Every process of texts of a fixed length fits."""
        fits = process is not None and process.fixed_length
        return None if fits else unfit(self.kind, "a diffusion model of texts of a given length", process)

    def sample(self, canvas: Canvas) -> TextSample:
        """See `TextSampler.sample`; subclasses define `write`, for canvases that fit."""
        require_fit(self, canvas)
        return self.write(canvas) if canvas.divide is None else canvas.divide(canvas, self.write)

    @abstractmethod
    def write(self, canvas: Canvas) -> TextSample:
        """Write the [MASK] positions of a canvas whose process fits."""


@config
class UnmaskingSampler(DiffusionSampler):
    """Base of the samplers that choose the order of unmasking, for processes whose only noise is [MASK]."""

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `TextSampler.refusal`. Only processes whose only noise is [MASK] fit."""
        return None if process is not None and process.only_masks else unfit(self.kind, ONLY_MASKS, process)


ONLY_MASKS = "a process whose only noise is [MASK], as in 'absorbing'"


def require_fit(sampler: Any, canvas: Canvas) -> None:
    """Raise SamplingError with `sampler.refusal` if the sampler does not fit the process of a canvas."""
    if (reason := sampler.refusal(None if canvas.process is None else canvas.process.traits)) is not None:
        raise SamplingError(reason)


def unfit(kind: str, needs: str, process: TextProcessConfig | None, *, instead: str = "'ancestral'") -> str:
    """Explain that a sampler needs another process than the model's."""
    found = (
        "this model has no diffusion process" if process is None else f"this model was trained with '{process.kind}'"
    )
    remedy = (
        f"Choose the sampler {instead}" if process is not None and process.fixed_length else "Leave the sampler out"
    )
    return f"sampler '{kind}' needs {needs}; {found}. {remedy}."
