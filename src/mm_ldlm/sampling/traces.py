"""Traces: the states of a text while a sampler writes it, and the model's predictions in each step.

A `Recorder` stands in for a sampler. It passes the canvas on with an observer (`Canvas.observe`), so that a sampler
does the same with and without it. A frame is recorded for each step that calls the model or changes the text, and for
each choice of a search.

B texts, L positions, M evaluated positions, V vocabulary, n tokens of a text, K most probable words.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import entropy
from mm_ldlm.sampling.denoising import Canvas, TextSample, Where
from mm_ldlm.sampling.search import Drafts

WORDS = 4
"""Number of the most probable words that are recorded at a position (K)"""


@dataclass(frozen=True)
class Frame:
    """A text after a step, and the model's prediction in that step."""

    tokens: tuple[int, ...]
    """(n,) ids without pads"""
    words: npt.NDArray[np.int64]
    """(n, K) ids of the most probable words, best first; −1 where the step evaluated nothing"""
    numbers: npt.NDArray[np.float64]
    """(n, K + 2) probabilities of these words; probability of the token that stands there, or of the best word where
    none is written yet; entropy of the distribution in nats. NaN where the step evaluated nothing"""
    cosine: float = float("nan")
    """Cosine of the text to its target; NaN where it was not embedded"""
    tried: tuple[float, ...] = ()
    """Cosines of the texts that a search compared with the one that it had; () for a step of a sampler"""
    accepted: int | None = None
    """Which of them the search accepted; None: it kept the text that it had"""


class Recorder:
    """Stand-in for a sampler that records the frames of the first canvases that it writes, until it has all texts.

    Attributes:
        frames: the frames of each text of the batch; the first is the text before the first step.
    """

    def __init__(self, sampler: Any, rows: int, *, pad_id: int) -> None:
        self.sampler, self.pad_id = sampler, pad_id
        self.frames: list[list[Frame]] = [[] for _ in range(rows)]
        self._last: tuple[Tensor, Where, Tensor] | None = None
        self._first = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def sample(self, canvas: Canvas) -> TextSample:
        """Write a canvas by the sampler. Those after the last text are candidates of a search, and not recorded."""
        self._first = sum(map(bool, self.frames))
        if self._first == len(self.frames):
            return cast(TextSample, self.sampler.sample(canvas))
        made: TextSample = self.sampler.sample(dataclasses.replace(canvas, observe=self.observe))
        self.close(made.tokens)
        return made

    def observe(self, tokens_BL: Tensor, evaluated: Where, log_x0_MV: Tensor) -> None:
        """Receive the prediction of a step (`Canvas.observe`); its result is known when the next step begins."""
        self.close(tokens_BL)
        self._last = tokens_BL, evaluated, log_x0_MV.clone()

    def close(self, tokens_BL: Tensor) -> None:
        """Record the last step, which resulted in these tokens; without one, the text before the first step."""
        words_BLK = torch.full((*tokens_BL.shape, WORDS), -1, device=tokens_BL.device)
        numbers_BLN = torch.full((*tokens_BL.shape, WORDS + 2), torch.nan, dtype=torch.float64, device=tokens_BL.device)
        touched_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
        if self._last is not None:
            before_BL, evaluated, log_x0_MV = self._last
            best = log_x0_MV.topk(WORDS, dim=1)
            token_M1 = tokens_BL[evaluated][:, None]
            known_M1 = token_M1 < log_x0_MV.shape[1]
            found_M1 = log_x0_MV.gather(1, torch.where(known_M1, token_M1, 0))
            found_M1 = torch.where(known_M1 & (found_M1 > -torch.inf), found_M1, best.values[:, :1])
            words_BLK[evaluated] = best.indices
            numbers_BLN[evaluated] = torch.cat(
                [best.values.exp(), found_M1.exp(), entropy(log_x0_MV)[:, None]], dim=1
            ).double()
            touched_BL = (words_BLK[:, :, 0] >= 0) | (tokens_BL != before_BL)
            self._last = None
        for row in touched_BL.any(dim=1).nonzero()[:, 0].tolist():
            real_L = tokens_BL[row] != self.pad_id
            words_nK, numbers_nN = (each[row][real_L].cpu().numpy() for each in (words_BLK, numbers_BLN))
            self.frames[self._first + row].append(Frame(tuple(tokens_BL[row][real_L].tolist()), words_nK, numbers_nN))

    def compare(self, live: Tensor, drafts: Drafts, kept: int) -> None:
        """Receive the texts that a search chooses from (`search.Compare`)."""
        for row, tokens_CL, cosines_C in zip(live.tolist(), drafts.tokens, drafts.cosines.tolist(), strict=True):
            best = int(np.argmax(cosines_C))
            if kept == 0:
                self.frames[row][-1] = dataclasses.replace(self.frames[row][-1], cosine=cosines_C[0])
                continue
            tokens = tuple(tokens_CL[best][tokens_CL[best] != self.pad_id].tolist())
            blank = np.full((len(tokens), WORDS), -1), np.full((len(tokens), WORDS + 2), np.nan)
            accepted = best - kept if best >= kept else None
            self.frames[row].append(Frame(tokens, *blank, cosines_C[best], tuple(cosines_C[kept:]), accepted))
