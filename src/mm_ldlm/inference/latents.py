"""Sampling of standardised latents: given texts, unconditionally, or together with texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.batching import in_batches
from mm_ldlm.inference.finite import check_finite, check_words
from mm_ldlm.inference.writing import Writer, Written, pad
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.joint import JointSample
from mm_ldlm.sampling.lengths import Length

Result = TypeVar("Result")


@dataclass(frozen=True)
class Drawn:
    """Latents drawn for the n texts of a request, in its order."""

    draws: Tensor
    """(K, n, d) standardised"""
    model_calls: np.ndarray
    """(n,)"""

    @property
    def mean(self) -> Tensor:
        """(n, d) mean over the draws"""
        return self.draws.mean(dim=0)


class LatentWriter:
    """Sampler of latents with one model, in batches of at most `batch_tokens`."""

    def __init__(self, model: GenerativeModel, *, batch_tokens: int) -> None:
        self.model, self.batch_tokens = model, batch_tokens

    def given_texts(self, ids: Sequence[Sequence[int]], *, config: Any, seed: int) -> Drawn:
        """Draw latents given texts (each of 1..max_length ids)."""
        return self._draw(ids, config=config, seed=seed, unknown=False)

    def given_lengths(self, lengths: Sequence[int], *, config: Any, seed: int) -> Drawn:
        """Draw latents of unknown texts; the lengths are used only if `GenerativeModel.latents_need_lengths`."""
        return self._draw(self._canvases(lengths), config=config, seed=seed, unknown=True)

    def generate(
        self, n: int, order: str, writer: Writer, text: Any, latent: Any, length: Length, seed: int
    ) -> tuple[Written, Tensor]:
        """Generate `n` texts and their standardised latents (n, d), in one of the joint orders."""
        if order == "together":
            return self._together(writer.lengths(length, None, rows=n, seed=seed), text, latent, seed)
        if order == "text_first":
            lengths = writer.lengths(length, None, rows=n, seed=seed)
            written = writer.write(self._canvases(lengths), latents_nd=None, sampler=text, seed=seed)
            drawn = self.given_texts(written.tokens, config=latent, seed=seed)
            return _with_calls(written, drawn.model_calls), drawn.mean
        # A latent that needs a length is drawn for a length from the marginal distribution, which its text then has.
        need_lengths = self.model.latents_need_lengths
        lengths = writer.lengths(length, None, rows=n, seed=seed) if need_lengths else [1] * n
        drawn = self.given_lengths(lengths, config=latent, seed=seed)
        if not need_lengths:
            lengths = writer.lengths(length, drawn.mean, rows=n, seed=seed)
        written = writer.write(self._canvases(lengths), latents_nd=drawn.mean, sampler=text, seed=seed)
        return _with_calls(written, drawn.model_calls), drawn.mean

    def _canvases(self, lengths: Sequence[int]) -> list[list[int]]:
        return [[self.model.shape.mask_id] * length for length in lengths]

    def _draw(self, ids: Sequence[Sequence[int]], *, config: Any, seed: int, unknown: bool) -> Drawn:
        shape, device = self.model.shape, self.model.device
        draws_Knd = torch.empty(config.draws, len(ids), self.model.dim, dtype=torch.float32, device=device)
        calls = np.zeros(len(ids), dtype=np.int64)

        def draw(batch: list[int]) -> LatentSample:
            tokens_BL = pad([ids[row] for row in batch], shape.pad_id, device)
            given = self.model.latents_given_lengths if unknown else self.model.latents_given_texts
            return given(tokens_BL, sampler=config, generator=self._generator(batch, seed))

        with self.model.evaluating():
            for batch, sample in self._in_batches(draw, [len(row) for row in ids], "drawing latents"):
                draws_Knd[:, batch] = sample.draws.float()
                calls[batch] = sample.model_calls
        check_finite(self.model, draws_Knd.double().sum(dim=(0, 2)).cpu().numpy(), what="latents")
        return Drawn(draws_Knd, calls)

    def _together(self, lengths: Sequence[int], text: Any, latent: Any, seed: int) -> tuple[Written, Tensor]:
        shape, device = self.model.shape, self.model.device
        tokens: list[tuple[int, ...]] = [()] * len(lengths)
        log_probs, calls = np.zeros(len(lengths)), np.zeros(len(lengths), dtype=np.int64)
        latents_nd = torch.empty(len(lengths), self.model.dim, dtype=torch.float32, device=device)

        def draw(batch: list[int]) -> JointSample:
            canvas_BL = pad(self._canvases([lengths[row] for row in batch]), shape.pad_id, device)
            return self.model.both(canvas_BL, text=text, latent=latent, generator=self._generator(batch, seed))

        with self.model.evaluating():
            for batch, sample in self._in_batches(draw, lengths, "writing"):
                latents_nd[batch] = sample.latent.latents
                sums = sample.text.log_probs.double().sum(dim=1).tolist()
                for place, (row, found) in enumerate(zip(batch, sample.text.tokens.tolist(), strict=True)):
                    tokens[row] = tuple(found[: lengths[row]])
                    log_probs[row], calls[row] = sums[place], sample.model_calls
        check_finite(self.model, latents_nd.double().sum(dim=1).cpu().numpy() + log_probs, what="texts or latents")
        check_words(self.model, tokens)
        return Written(tuple(tokens), log_probs, calls, np.zeros(len(lengths), dtype=np.int64)), latents_nd

    def _in_batches(
        self, work: Callable[[list[int]], Result], lengths: Sequence[int], doing: str
    ) -> Iterator[tuple[list[int], Result]]:
        return in_batches(work, lengths, model=self.model, batch_tokens=self.batch_tokens, doing=doing)

    def _generator(self, rows: Sequence[int], seed: int) -> RowGenerator:
        numbers = torch.tensor(list(rows), dtype=torch.int64, device=self.model.device)
        return RowGenerator(seed, numbers).fork("latent")


def _with_calls(written: Written, more: np.ndarray) -> Written:
    return replace(written, model_calls=written.model_calls + more)
