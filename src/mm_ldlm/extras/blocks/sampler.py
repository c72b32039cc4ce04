"""Semi-autoregressive sampling: block by block from left to right, also for texts longer than the model's window."""

from typing import Annotated, Any, ClassVar, Self

import torch

from mm_ldlm.core import SamplingError, Size, config, refuse_if
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.sampling.base import ONLY_MASKS, Overridable, require_fit, unfit
from mm_ldlm.sampling.denoising import Canvas, TextSample
from mm_ldlm.sampling.registry import TEXT_SAMPLERS


@config
class BlocksConfig(Overridable):
    """Write the text block by block from left to right (semi-autoregressive; BD3-LM, LLaDA).

    The model reads `window` positions: from the start of the text while the block fits, and a sliding window after
    that. Texts can therefore be longer than the model's maximum length.

    Attributes:
        block_length: number of tokens of a block.
        inner: the sampler that writes a block.
    """

    kind: str = "blocks"
    block_length: Size = 8
    inner: Annotated[Any, TEXT_SAMPLERS]

    exceeds_window: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse_if(
            self.inner.exceeds_window,
            f"inner must write within the model's window, found the sampler '{self.inner.kind}'",
            "inner",
        )

    @property
    def temperature(self) -> float:
        return self.inner.temperature

    @property
    def guidance(self) -> float:
        return self.inner.guidance

    def most_calls(self, length: int) -> int:
        """See `TextSampler.most_calls`."""
        return -(-length // self.block_length) * self.inner.most_calls(self.block_length)

    def override(self, **settings: Any) -> Self:
        """Copy the sampler, replacing the settings of the inner sampler that are not None."""
        return super().override(inner=self.inner.override(**settings))

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `TextSampler.refusal`: the model reads the blocks that are not written yet, and they contain [MASK]."""
        if process is None or not process.only_masks:
            return unfit(self.kind, ONLY_MASKS, process)
        return self.inner.refusal(process)

    def sample(self, canvas: Canvas) -> TextSample:
        """See `TextSampler.sample`.

        Raises:
            SamplingError: a block does not fit the window, or the sampler does not fit the process (`refusal`).
        """
        require_fit(self, canvas)
        length, block_length, window = canvas.tokens.shape[1], self.block_length, canvas.window
        if window is not None and block_length > window:
            raise SamplingError(
                f"block_length {block_length} exceeds the {window} positions that the model reads at once. "
                "Set a smaller block_length."
            )
        position_L = torch.arange(length, device=canvas.tokens.device)
        whole = TextSample.start(canvas.tokens)
        for number, start in enumerate(range(0, length, block_length)):
            end = start + block_length
            todo_BL = canvas.writable_BL & (position_L >= start) & (position_L < end)
            if not bool(todo_BL.any()):
                continue
            view = slice(0, length if window is None else min(window, length))
            if window is not None and end > window:
                view = slice(end - window // block_length * block_length, min(end, length))
            part = canvas.part(whole, view, todo_BL, generator=canvas.generator.fork(number), window=None)
            whole = whole.with_part(self.inner.sample(part), view)
        return whole
