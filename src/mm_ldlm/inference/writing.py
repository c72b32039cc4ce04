"""Text and latent generation: lengths, sampling and search in batches, in token ids and standardised latents.

A canvas is a list of ids in which `[MASK]` marks the positions to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.batches import Batches, Values
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.limits import Length
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens
from mm_ldlm.sampling.search import SearchConfig, search

Cosines = Callable[[list[list[int]], list[int]], np.ndarray]
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
    latents_nd: np.ndarray | None = None
    """Standardised latents that were drawn with the texts"""


class Writer(Batches):
    """Writer of texts and latents with one model."""

    # --- lengths ------------------------------------------------------------------------------------------------------

    def length_log_probs(self, latents_nd: Tensor | None, *, rows: int) -> Tensor:
        """Compute log-probabilities (n, N) of the lengths 1..N."""
        with self.model.evaluating():
            if latents_nd is None:
                found_nN = self.model.length_log_probs(None, rows=1).expand(rows, -1)
            else:
                parts = [self.model.length_log_probs(part, rows=len(part)) for part in latents_nd.split(4096)]
                found_nN = torch.cat(parts)
        self.check_finite(found_nN.amax(dim=1).cpu().numpy(), "probabilities of lengths")
        return found_nN

    def lengths(self, length: Length, latents_nd: Tensor | None, *, rows: int, seed: int) -> list[int]:
        """Choose one length for each text: a number, 'sample', or otherwise the most probable one.

        A model that ends its texts by itself receives canvases of the maximum length.
        """
        if isinstance(length, int):
            return [length] * rows
        if not self.model.has_length:
            return [self.model.shape.max_length] * rows
        log_probs_nN = self.length_log_probs(latents_nd, rows=rows)
        if length == "sample":
            u_n = self.generator(range(rows), seed).fork("length").uniform()
            return (draw_tokens(log_probs_nN, u_n, Draw()) + 1).tolist()
        return (log_probs_nN.argmax(dim=1) + 1).tolist()

    # --- texts --------------------------------------------------------------------------------------------------------

    def write(
        self, canvases: Sequence[Sequence[int]], *, latents_nd: Tensor | None, sampler: Any, seed: int
    ) -> Written:
        """Write each canvas given its standardised latent, or unconditionally."""

        def work(batch: list[int]) -> Values:
            canvas_BL = self.padded([canvases[row] for row in batch])
            sample = self.model.write(
                canvas_BL,
                canvas_BL == self.model.shape.mask_id,
                latents_Bd=None if latents_nd is None else latents_nd[batch],
                sampler=sampler,
                generator=self.generator(batch, seed),
            )
            return self._texts(sample, [len(canvases[row]) for row in batch], batch)

        batches = self.divide([len(canvas) for canvas in canvases])
        with self.model.evaluating():
            return _written(self.joined(batches, [*self.results(work, batches, "writing")]))

    def write_likeliest_length(
        self, *, lengths: int, latents_nd: Tensor | None, rows: int, sampler: Any, seed: int
    ) -> Written:
        """Write each text at its `lengths` most probable lengths; keep the highest log p(length) + Σ log p(token)."""
        best_nk = self.length_log_probs(latents_nd, rows=rows).topk(min(lengths, self.model.shape.max_length), dim=1)
        tries = [
            self.write(self.masks((index_n + 1).tolist()), latents_nd=latents_nd, sampler=sampler, seed=seed)
            for index_n in best_nk.indices.T
        ]
        totals_kn = np.stack([t.log_probs for t in tries]) + best_nk.values.T.double().cpu().numpy()
        chosen = list(enumerate(totals_kn.argmax(axis=0)))
        return Written(
            tuple(tries[k].tokens[row] for row, k in chosen),
            np.array([tries[k].log_probs[row] for row, k in chosen]),
            np.sum([t.model_calls for t in tries], axis=0),
            np.zeros(rows, dtype=np.int64),
        )

    def search(
        self, lengths: Sequence[int], *, latents_nd: Tensor, cosines: Cosines, sampler: Any, config: SearchConfig,
        seed: int,
    ) -> Written:  # fmt: skip
        """Search for the text nearest to each target, from texts of its length in `lengths` (`sampling.search`)."""
        shape, freer = self.model.shape, sampler.override(temperature=config.temperature)
        canvases = self._starting_canvases(latents_nd, lengths, config)
        longest = [max(len(canvas) for canvas in row) for row in canvases]

        def work(batch: list[int]) -> Values:
            latents_Bd = latents_nd[batch]

            def write(canvas_NL: Tensor, target_N: Tensor, generator: RowGenerator, greedy: bool) -> TextSample:
                used = int((canvas_NL != shape.pad_id).sum(dim=1).max())  # columns that are padding in every row cost
                sample = self.model.write(
                    canvas_NL[:, :used], canvas_NL[:, :used] == shape.mask_id, latents_Bd=latents_Bd[target_N],
                    sampler=sampler if greedy else freer, generator=generator,
                )  # fmt: skip
                blank = (0, canvas_NL.shape[1] - used)
                return replace(
                    sample, tokens=pad(sample.tokens, blank, value=shape.pad_id), log_probs=pad(sample.log_probs, blank)
                )

            def nearness(tokens_NL: Tensor, target_N: Tensor) -> Tensor:
                texts = [self._unpadded(ids) for ids in tokens_NL.tolist()]
                return torch.from_numpy(cosines(texts, [batch[target] for target in target_N.tolist()])).float()

            widest = max(longest[row] for row in batch)
            room = config.rounds if config.resize > 0 else 0  # a text may grow by one token in each round
            width = max(widest, min(widest + room, shape.max_length))
            found = search(
                torch.stack([self.padded(canvases[row], length=width) for row in batch]),
                config=config, write=write, nearness=nearness, mask_id=shape.mask_id, pad_id=shape.pad_id,
                generator=self.generator(batch, seed),
            )  # fmt: skip
            texts = [self._unpadded(ids) for ids in found.tokens.tolist()]
            return {
                "tokens": [self._words(ids, row) for ids, row in zip(texts, batch, strict=True)],
                "log_probabilities": found.log_probs.double().sum(dim=1),
                "model_calls": found.model_calls_per_row,
                "encoder_calls": found.encoder_calls_per_row,
                "cosines": found.cosines.double(),
            }

        batches = self.divide(longest)
        with self.model.evaluating():
            return _written(self.joined(batches, [*self.results(work, batches, "searching")]))

    def _starting_canvases(
        self, latents_nd: Tensor, first: Sequence[int], config: SearchConfig
    ) -> list[list[list[int]]]:
        """Make K canvases of masks for each target, of the length in `first` and then the other most probable ones."""
        if config.lengths == 1:
            return [self.masks([length] * config.candidates) for length in first]
        log_probs_nN = self.length_log_probs(latents_nd, rows=len(latents_nd))
        ranked_nN = log_probs_nN.topk(min(config.lengths, log_probs_nN.shape[1]), dim=1).indices + 1
        canvases = []
        for length, ranked in zip(first, ranked_nN.tolist(), strict=True):
            choice = [length, *[other for other in ranked if other != length]][: config.lengths]
            canvases.append(self.masks([choice[k % len(choice)] for k in range(config.candidates)]))
        return canvases

    # --- latents ------------------------------------------------------------------------------------------------------

    def draw(
        self, ids: Sequence[Sequence[int]], *, sampler: Any, seed: int, known: bool = True
    ) -> tuple[Tensor, np.ndarray]:
        """Draw standardised latents given texts, or of unknown texts (`known` False) of the lengths of the canvases.

        Returns the draws (K, n, d) and the model calls (n,). The lengths of unknown texts are used only if
        `GenerativeModel.latents_need_lengths`.
        """

        def work(batch: list[int]) -> Values:
            given = self.model.latents_given_texts if known else self.model.latents_given_lengths
            generator = self.generator(batch, seed).fork("latent")
            sample = given(self.padded([ids[row] for row in batch]), sampler=sampler, generator=generator)
            calls_B = torch.full((len(batch),), sample.model_calls)
            return {"latents": sample.draws.float().transpose(0, 1), "model_calls": calls_B}

        batches = self.divide([len(row) for row in ids])
        with self.model.evaluating():
            found = self.joined(batches, [*self.results(work, batches, "drawing latents")])
        draws_nKd = torch.from_numpy(found["latents"]).to(self.model.device)
        return draws_nKd.transpose(0, 1).contiguous(), found["model_calls"]

    def generate(self, n: int, order: str, text: Any, latent: Any, length: Length, seed: int) -> Written:
        """Generate `n` texts and their latents, in one of the joint orders; without an order only texts."""
        if order == "latent_first":
            # A latent that needs a length is drawn for a length from the marginal distribution, which its text then has
            need_lengths = self.model.latents_need_lengths
            lengths = self.lengths(length, None, rows=n, seed=seed) if need_lengths else [1] * n
            draws_Knd, calls = self.draw(self.masks(lengths), sampler=latent, seed=seed, known=False)
            latents_nd = draws_Knd.mean(dim=0)
            lengths = lengths if need_lengths else self.lengths(length, latents_nd, rows=n, seed=seed)
            written = self.write(self.masks(lengths), latents_nd=latents_nd, sampler=text, seed=seed)
        else:
            canvases = self.masks(self.lengths(length, None, rows=n, seed=seed))
            if order == "together":
                return self._together(canvases, text, latent, seed)
            written = self.write(canvases, latents_nd=None, sampler=text, seed=seed)
            if not order:
                return written
            draws_Knd, calls = self.draw(written.tokens, sampler=latent, seed=seed)
            latents_nd = draws_Knd.mean(dim=0)
        return replace(written, model_calls=written.model_calls + calls, latents_nd=latents_nd.cpu().numpy())

    def _together(self, canvases: Sequence[Sequence[int]], text: Any, latent: Any, seed: int) -> Written:
        def work(batch: list[int]) -> Values:
            canvas_BL = self.padded([canvases[row] for row in batch])
            generator = self.generator(batch, seed).fork("latent")
            sample = self.model.both(canvas_BL, text=text, latent=latent, generator=generator)
            texts = self._texts(sample.text, [len(canvases[row]) for row in batch], batch)
            calls_B = torch.full((len(batch),), sample.model_calls)
            return {**texts, "model_calls": calls_B, "latents_nd": sample.latent.latents}

        batches = self.divide([len(canvas) for canvas in canvases])
        with self.model.evaluating():
            return _written(self.joined(batches, [*self.results(work, batches, "writing")]))

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _texts(self, sample: TextSample, lengths: Sequence[int], rows: Sequence[int]) -> Values:
        """Return the tokens of canvases of these lengths, without the padding after an end that the model chose."""
        tokens = [
            self._words(ids[:length] if self.model.has_length else self._unpadded(ids), row)
            for ids, length, row in zip(sample.tokens.tolist(), lengths, rows, strict=True)
        ]
        sums_B = sample.log_probs.double().sum(dim=1)
        return {"tokens": tokens, "log_probabilities": sums_B, "model_calls": sample.calls_per_row}

    def _unpadded(self, ids: Sequence[int]) -> list[int]:
        return [index for index in ids if index != self.model.shape.pad_id]

    def _words(self, ids: Sequence[int], row: int) -> tuple[int, ...]:
        """Return the ids of a text; SamplingError if it contains [MASK], [PAD], or an id beyond the vocabulary."""
        shape = self.model.shape
        special = {shape.mask_id: " ([MASK])", shape.pad_id: " ([PAD])"}
        for token in ids:
            if token in special or token >= shape.vocab_size:
                raise SamplingError(
                    f"row {row} of the request: expected a text of words, but the sampler wrote the id {token}"
                    f"{special.get(token, '')}. Choose another sampler, or more steps."
                )
        return tuple(ids)


def _written(found: dict[str, Any]) -> Written:
    nothing = np.zeros(len(found["tokens"]), dtype=np.int64)
    return Written(
        tuple(found["tokens"]), found["log_probabilities"], found["model_calls"], found.get("encoder_calls", nothing),
        found.get("cosines"), found.get("latents_nd"),
    )  # fmt: skip
