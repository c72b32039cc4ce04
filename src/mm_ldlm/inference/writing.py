"""Text generation: lengths, batches, sampling and search, in token ids and standardised latents.

A canvas is a list of ids in which `[MASK]` marks the positions to be written. The randomness of a text depends only on
its position in the request and on the seed, so batching does not change the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.batching import in_batches
from mm_ldlm.inference.finite import check_finite, check_words
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.config import SearchConfig
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.lengths import Length, refuse_long
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens
from mm_ldlm.sampling.search import SearchResult, search

Result = TypeVar("Result")
Cosines = Callable[[list[list[int]], list[int]], Sequence[float]]
"""(token lists, row of the request of each) → cosine of each re-embedded text to its target."""


@dataclass(frozen=True)
class Written:
    """Texts written for the n canvases of a request, in its order."""

    tokens: tuple[tuple[int, ...], ...]
    log_probs: np.ndarray
    """(n,) nats, summed over the written tokens"""
    model_calls: np.ndarray
    encoder_calls: np.ndarray
    cosines: np.ndarray | None = None


class Writer:
    """Writer of texts with one model, in batches of at most `batch_tokens`."""

    def __init__(self, model: GenerativeModel, *, batch_tokens: int) -> None:
        self.model, self.batch_tokens = model, batch_tokens

    # --- lengths ------------------------------------------------------------------------------------------------------

    def length_log_probs(self, latents_nd: Tensor | None, *, rows: int) -> Tensor:
        """Compute log-probabilities (n, N) of the lengths 1..N."""
        with self.model.evaluating():
            if latents_nd is None:
                return self.model.length_log_probs(None, rows=1).expand(rows, -1)
            return torch.cat([self.model.length_log_probs(part, rows=len(part)) for part in latents_nd.split(4096)])

    def lengths(self, length: Length, latents_nd: Tensor | None, *, rows: int, seed: int) -> list[int]:
        """Choose one length for each text; for 'top-n' the most probable one (see `write_likeliest_length`).

        A model that ends its texts by itself receives canvases of the maximum length.
        """
        if not self.model.has_length and not isinstance(length, int):
            return [self.model.shape.max_length] * rows
        if isinstance(length, int):
            return [length] * rows
        log_probs_nN = self.length_log_probs(latents_nd, rows=rows)
        check_finite(self.model, log_probs_nN.amax(dim=1).cpu().numpy(), what="probabilities of lengths")
        if length == "sample":
            u_n = self.generator(range(rows), seed).fork("length").uniform()
            return (draw_tokens(log_probs_nN, u_n, Draw()) + 1).tolist()
        return (log_probs_nN.argmax(dim=1) + 1).tolist()

    # --- texts --------------------------------------------------------------------------------------------------------

    def write(
        self,
        canvases: Sequence[Sequence[int]],
        *,
        latents_nd: Tensor | None,
        sampler: Any,
        seed: int,
    ) -> Written:
        """Write each canvas given its standardised latent, or unconditionally."""
        self._refuse_long(canvases, sampler)
        tokens: list[tuple[int, ...]] = [()] * len(canvases)
        log_probs, calls = np.zeros(len(canvases)), np.zeros(len(canvases), dtype=np.int64)

        def sample_of(batch: list[int]) -> TextSample:
            return self._sample(
                pad([canvases[row] for row in batch], self.model.shape.pad_id, self.model.device),
                None if latents_nd is None else latents_nd[batch],
                sampler,
                self.generator(batch, seed),
            )

        with self.model.evaluating():
            for batch, sample in self._in_batches(sample_of, canvases, "writing"):
                sums, costs = sample.log_probs.double().sum(dim=1).tolist(), sample.calls_per_row.tolist()
                for place, (row, ids) in enumerate(zip(batch, sample.tokens.tolist(), strict=True)):
                    tokens[row] = self._text(ids, len(canvases[row]))
                    log_probs[row], calls[row] = sums[place], costs[place]
        check_finite(self.model, log_probs, what="log-probabilities")
        check_words(self.model, tokens)
        return Written(tuple(tokens), log_probs, calls, np.zeros(len(canvases), dtype=np.int64))

    def write_likeliest_length(
        self, *, lengths: int, latents_nd: Tensor | None, rows: int, sampler: Any, seed: int
    ) -> Written:
        """Write each text at its `lengths` most probable lengths; keep the highest log p(length) + Σ log p(token)."""
        best_nk = self.length_log_probs(latents_nd, rows=rows).topk(min(lengths, self.model.shape.max_length), dim=1)
        tries = []
        for rank in range(best_nk.indices.shape[1]):
            canvases = [[self.model.shape.mask_id] * (index + 1) for index in best_nk.indices[:, rank].tolist()]
            tries.append(self.write(canvases, latents_nd=latents_nd, sampler=sampler, seed=seed))
        totals_kn = np.stack([t.log_probs for t in tries]) + best_nk.values.T.double().cpu().numpy()
        chosen = totals_kn.argmax(axis=0)
        return Written(
            tuple(tries[k].tokens[row] for row, k in enumerate(chosen)),
            np.array([tries[k].log_probs[row] for row, k in enumerate(chosen)]),
            np.sum([t.model_calls for t in tries], axis=0),
            np.zeros(rows, dtype=np.int64),
        )

    def search(
        self,
        canvases: Sequence[Sequence[Sequence[int]]],
        *,
        latents_nd: Tensor,
        cosines: Cosines,
        sampler: Any,
        config: SearchConfig,
        seed: int,
    ) -> Written:
        """Search for the text nearest to each target, from its K starting canvases (see `sampling.search`)."""
        for starts in canvases:
            self._refuse_long(starts, sampler)
        freer = sampler.override(temperature=config.temperature)
        tokens: list[tuple[int, ...]] = [()] * len(canvases)
        log_probs, nearest = np.zeros(len(canvases)), np.zeros(len(canvases))
        calls, encoder_calls = (np.zeros(len(canvases), dtype=np.int64) for _ in range(2))

        def search_of(batch: list[int]) -> SearchResult:
            latents_Bd = latents_nd[batch]

            def write(canvas_NL: Tensor, target_N: Tensor, draws: RowGenerator, greedy: bool) -> TextSample:
                return self._sample(canvas_NL, latents_Bd[target_N], sampler if greedy else freer, draws)

            def nearness(tokens_NL: Tensor, target_N: Tensor) -> Tensor:
                rows = [batch[target] for target in target_N.tolist()]
                return torch.tensor(cosines([self._trim(ids) for ids in tokens_NL.tolist()], rows))

            longest = max(len(canvas) for row in batch for canvas in canvases[row])
            room = config.rounds if config.resize > 0 else 0  # a text may grow by one token in each round
            width = max(longest, min(longest + room, self.model.shape.max_length))
            return search(
                torch.stack(
                    [pad(canvases[row], self.model.shape.pad_id, self.model.device, length=width) for row in batch]
                ),
                config=config,
                write=write,
                nearness=nearness,
                mask_id=self.model.shape.mask_id,
                pad_id=self.model.shape.pad_id,
                generator=self.generator(batch, seed),
            )

        with self.model.evaluating():
            longest_canvases = [max(row, key=len) for row in canvases]
            for batch, found in self._in_batches(search_of, longest_canvases, "searching"):
                sums = found.log_probs.double().sum(dim=1).tolist()
                for place, row in enumerate(batch):
                    tokens[row] = tuple(self._trim(found.tokens[place].tolist()))
                    log_probs[row], nearest[row] = sums[place], float(found.cosines[place])
                    calls[row] = int(found.model_calls_per_row[place])
                    encoder_calls[row] = int(found.encoder_calls_per_row[place])
        check_finite(self.model, log_probs, what="log-probabilities")
        check_words(self.model, tokens)
        return Written(tuple(tokens), log_probs, calls, encoder_calls, nearest)

    def starting_canvases(
        self, latents_nd: Tensor, *, first: Sequence[int], config: SearchConfig
    ) -> list[list[list[int]]]:
        """Make K canvases of masks for each target, of the length in `first` and then the other most probable ones."""
        if config.lengths == 1:
            return [[[self.model.shape.mask_id] * length] * config.candidates for length in first]
        log_probs_nN = self.length_log_probs(latents_nd, rows=len(latents_nd))
        ranked_nN = log_probs_nN.topk(min(config.lengths, log_probs_nN.shape[1]), dim=1).indices + 1
        canvases = []
        for length, ranked in zip(first, ranked_nN.tolist(), strict=True):
            choice = [length, *[other for other in ranked if other != length]][: config.lengths]
            canvases.append([[self.model.shape.mask_id] * choice[k % len(choice)] for k in range(config.candidates)])
        return canvases

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _sample(
        self, canvas_BL: Tensor, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        pad_id = self.model.shape.pad_id
        used = int((canvas_BL != pad_id).sum(dim=1).max())  # skip columns that are padding in every row
        canvas_BU = canvas_BL[:, :used]
        sample = self.model.write(
            canvas_BU,
            canvas_BU == self.model.shape.mask_id,
            latents_Bd=latents_Bd,
            sampler=sampler,
            generator=generator,
        )
        blank = (0, canvas_BL.shape[1] - used)
        grow = torch.nn.functional.pad
        return replace(
            sample,
            tokens=grow(sample.tokens, blank, value=pad_id),
            log_probs=grow(sample.log_probs, blank),
            steps=grow(sample.steps, blank, value=-1),
        )

    def _text(self, ids: Sequence[int], length: int) -> tuple[int, ...]:
        """Return the tokens of a canvas of this length, without the padding after an end that the model chose."""
        return tuple(ids[:length]) if self.model.has_length else tuple(self._trim(ids))

    def generator(self, rows: Sequence[int] | range, seed: int) -> RowGenerator:
        """Make the generator for these rows of the request."""
        return RowGenerator(seed, torch.tensor(list(rows), dtype=torch.int64, device=self.model.device))

    def _in_batches(
        self, work: Callable[[list[int]], Result], canvases: Sequence[Sequence[int]], doing: str
    ) -> Iterator[tuple[list[int], Result]]:
        lengths = [len(canvas) for canvas in canvases]
        return in_batches(work, lengths, model=self.model, batch_tokens=self.batch_tokens, doing=doing)

    def _trim(self, ids: Sequence[int]) -> list[int]:
        return [index for index in ids if index != self.model.shape.pad_id]

    def _refuse_long(self, canvases: Sequence[Sequence[int]], sampler: Any) -> None:
        longest = max((len(canvas) for canvas in canvases), default=0)
        traits = None if self.model.process is None else self.model.process.traits
        reason = refuse_long(longest, max_length=self.model.shape.max_length, sampler=sampler, process=traits)
        if reason is not None:
            raise SamplingError(reason)


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, length: int | None = None) -> Tensor:
    """Pad rows of ids to an int64 tensor (B, L) with `pad_id` after the end of each row."""
    length = max((len(row) for row in rows), default=0) if length is None else length
    out = np.full((len(rows), max(length, 1)), pad_id, dtype=np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return torch.from_numpy(out).to(device)
