"""Work of a request in batches, and the generation of texts and latents in it, in token ids and standardised latents.

The rows of a request are divided into batches of similar length, several at a time on a CPU. The randomness of a row
depends only on its number in the request and on the seed, so that batching changes no result. What the model returns is
checked here, once, for all requests. A canvas is a list of ids in which `[MASK]` marks the positions to be written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor
from torch.nn.functional import pad

from mm_ldlm.core import PositiveInt, SamplingError, check, show
from mm_ldlm.core.progress import shown
from mm_ldlm.data.inference_batches import batches_by_length, lanes_of, side_by_side
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.distributed.device import threads_of
from mm_ldlm.models.defaults import plain_defaults
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.limits import Length
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens
from mm_ldlm.sampling.search import How, SearchConfig, search, uncompared
from mm_ldlm.sampling.traces import Frame, Recorder

MOST_LOGITS = 48_000_000
"""Largest number of logits of the model calls at one time; a float64 distribution takes eight bytes for each."""
MOST_TOKENS = 8192
"""Default number of tokens of a batch, where the vocabulary permits it"""
MOST_TOKENS_CPU = 1024
"""The same on a CPU, where small batches pad less, fit the caches, and are computed side by side"""
BYTES_PER_TOKEN, BYTES_PER_LOGIT = 160, 12
"""Of a token that is written: ids and statistics as Python numbers and in about twelve tensors; of a logit of a batch:
float32, and a float64 distribution"""

Values = Mapping[str, Any]
"""Name → a tensor (B, ...), or a list of B items, for the B rows of a batch"""
Reembed = Callable[[list[list[int]], list[int]], tuple[np.ndarray, np.ndarray]]
"""(m token lists, row of the request of each) → cosine (m,) of each re-embedded text to its target; its standardised
latent (m, d)."""


@dataclass(frozen=True)
class Written:
    """Texts written for the n canvases of a request, in its order; by default for none."""

    tokens: Sequence[tuple[int, ...]] = ()
    log_probs: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """(n,) nats, summed over the written tokens"""
    model_calls: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    encoder_calls: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cosines: np.ndarray | None = None
    latents_nd: np.ndarray | None = None
    """Standardised latents that were drawn with the texts"""
    traces: Sequence[list[Frame]] | None = None
    """How each text was written; None if the writer records no traces"""


class Writer:
    """Batches of requests to one model, and the writing of texts and latents in them.

    Args:
        batch_tokens: number of tokens of one batch including pads; None chooses it by the device and the vocabulary.
        traced: record how each text is written.
    """

    numbers: Sequence[int] | None = None
    """Number of each row in its own request, where the rows of several requests are computed together"""

    def __init__(self, model: GenerativeModel, *, batch_tokens: int | None = None, traced: bool = False) -> None:
        vocab_size = model.shape.vocab_size
        if batch_tokens is None:
            most = MOST_TOKENS_CPU if model.device.type == "cpu" else MOST_TOKENS
            batch_tokens = max(256, min(most, MOST_LOGITS // (vocab_size * lanes_of(model.device))))
        self.model, self.batch_tokens = model, check(batch_tokens, PositiveInt, name="batch_tokens")
        self.traced = traced
        refuse_beyond_memory(self.batch_tokens * vocab_size * BYTES_PER_LOGIT, f"batch_tokens {self.batch_tokens:,}")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch the model to evaluation mode, and use the number of threads that suits it."""
        with plain_defaults(threads_of(self.model.model)), self.model.evaluating():
            yield

    @contextmanager
    def computing(
        self, work: Callable[[list[int]], Values], lengths: Sequence[int], doing: str, *, most: int = 1
    ) -> Iterator[tuple[list[list[int]], Iterable[Values]]]:
        """Divide the rows of a request with texts of these lengths into batches; yield them and `work` of each.

        The work is done where its iterator is consumed, and its progress is shown, unless `doing` is "". Threads
        compute several batches at a time on a CPU. Work that divides its rows itself receives up to `most` batches
        together, but no more than half of the rows.
        """
        tokens = max(self.batch_tokens, min(most * self.batch_tokens, sum(lengths) // 2))
        batches = [batch.tolist() for batch in batches_by_length(lengths, max_tokens=tokens)]
        lanes = min(lanes_of(self.model.device), MOST_LOGITS // (self.batch_tokens * self.model.shape.vocab_size))
        with self.evaluating():
            made = side_by_side(work, batches, lanes=lanes)
            yield batches, shown(made, total=len(batches), desc=doing, unit="batches") if doing else made

    def joined(self, batches: Sequence[Any], results: Iterable[Values]) -> dict[str, Any]:
        """Join the values of the batches in the order of the request: tensors to arrays (n, ...), lists to lists.

        A request without rows has no values.

        Raises:
            SamplingError: a number is not finite; the message names the rows, and a damaged weight if there is one.
        """
        every, found = list(results), dict[str, Any]()
        order = np.argsort(np.concatenate([[], *batches]))
        for name in every[0] if every else ():
            parts = [values[name] for values in every]
            if isinstance(parts[0], Tensor):
                found[name] = torch.cat(parts).cpu().numpy()[order]
                self.check_finite(found[name], name)
            else:
                items = [item for part in parts for item in part]
                found[name] = [items[place] for place in order]
        return found

    def check_finite(self, values: np.ndarray, name: str) -> None:
        """Raise SamplingError unless all values (n, ...) that the model returned for n inputs are finite."""
        rows = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
        if rows.size:
            raise SamplingError(
                f"expected finite {name.replace('_', ' ')} from the model, found others for {len(rows)} of "
                f"{len(values)} inputs (rows {show(rows[:8].tolist())}). Check the size of the latents and the sampler "
                "(guidance, t_max)."
            )

    def by_request(self, rows: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Divide rows by the request that they belong to, whose `numbers` begin at 0."""
        if self.numbers is None or len(self.numbers) != len(rows):
            return [rows]
        return np.split(rows, [row for row, number in enumerate(self.numbers) if number == 0][1:])

    def generator(self, rows: Sequence[int] | range, seed: int) -> RowGenerator:
        """Make the generator for these rows of the request, by their `numbers`."""
        numbers = [row if self.numbers is None else self.numbers[row] for row in rows]
        return RowGenerator(seed, torch.tensor(numbers, dtype=torch.int64, device=self.model.device))

    def padded(self, rows: Sequence[Sequence[int]], *, length: int | None = None) -> Tensor:
        """Pad rows of ids to an int64 tensor (B, L) with [PAD] after the end of each row."""
        out = np.full((len(rows), length or max(map(len, rows))), self.model.shape.pad_id, dtype=np.int64)
        for index, row in enumerate(rows):
            out[index, : len(row)] = row
        return torch.from_numpy(out).to(self.model.device)

    def masks(self, lengths: Sequence[int]) -> list[list[int]]:
        """Make a canvas of masks for each length."""
        return [[self.model.shape.mask_id] * length for length in lengths]

    # --- lengths ------------------------------------------------------------------------------------------------------

    def length_log_probs(self, latents_nd: Tensor | None, *, rows: int) -> Tensor:
        """Compute log-probabilities (n, N) of the lengths 1..N."""
        with self.evaluating():
            if latents_nd is None:
                found_nN = self.model.length_log_probs(None, rows=1).expand(rows, -1)
            else:
                parts = [self.model.length_log_probs(part, rows=len(part)) for part in latents_nd.split(4096)]
                found_nN = torch.cat(parts)
        self.check_finite(found_nN.amax(dim=1).cpu().numpy(), "probabilities of lengths")
        return found_nN

    def lengths(self, length: Length, latents_nd: Tensor | None, *, rows: int, seed: int) -> list[int]:
        """Choose one length for each text: a number, 'sample', or otherwise the most probable one."""
        return self.ranked_lengths(length, latents_nd, rows=rows, seed=seed)[0]

    def ranked_lengths(
        self, length: Length, latents_nd: Tensor | None, *, rows: int, seed: int, ranks: int = 1
    ) -> tuple[list[int], np.ndarray]:
        """Choose lengths as `lengths`; return them and the log-probabilities (n,) of those that the model chose, or 0.

        With `ranks` above 1 the rows are that many parts of equal size, and the k-th part has the k-th most probable
        length. A model that ends its texts by itself receives canvases of the maximum length.
        """
        if isinstance(length, int) or not self.model.has_length:
            return [length if isinstance(length, int) else self.model.shape.max_length] * rows, np.zeros(rows)
        log_probs_nN = self.length_log_probs(latents_nd, rows=rows)
        if length == "sample":
            u_n = self.generator(range(rows), seed).fork("length").uniform()
            found_n1 = draw_tokens(log_probs_nN, u_n, Draw())[:, None]
        else:
            ranked_nN = log_probs_nN.argsort(dim=1, descending=True, stable=True)
            rank_n = torch.arange(rows, device=ranked_nN.device) * ranks // max(rows, 1) % ranked_nN.shape[1]
            found_n1 = ranked_nN.gather(1, rank_n[:, None])
        return (found_n1[:, 0] + 1).tolist(), log_probs_nN.gather(1, found_n1)[:, 0].cpu().numpy()

    # --- texts --------------------------------------------------------------------------------------------------------

    def write(
        self, canvases: Sequence[Sequence[int]], *, latents_nd: Tensor | None, sampler: Any, seed: int
    ) -> Written:
        """Write each canvas given its standardised latent, or unconditionally."""
        with self.writing(canvases, latents_nd=latents_nd, sampler=sampler, seed=seed) as (batches, results):
            return Written(**self.joined(batches, results))

    def writing(
        self, canvases: Sequence[Sequence[int]], *, latents_nd: Tensor | None, sampler: Any, seed: int
    ) -> AbstractContextManager[tuple[list[list[int]], Iterable[Values]]]:
        """Prepare the batches of `write`, which are written where the caller consumes the results (`computing`)."""

        def work(batch: list[int]) -> Values:
            canvas_BL = self.padded([canvases[row] for row in batch])
            used, traces = self._recorded(sampler, len(batch))
            sample = self.model.write(
                canvas_BL,
                canvas_BL == self.model.shape.mask_id,
                latents_Bd=None if latents_nd is None else latents_nd[batch],
                sampler=used,
                generator=self.generator(batch, seed),
            )
            return {**self._texts(sample, [len(canvases[row]) for row in batch], batch), **traces}

        return self.computing(work, [len(canvas) for canvas in canvases], "writing")

    def search(
        self, lengths: Sequence[int], *, latents_nd: Tensor, reembed: Reembed, sampler: Any, config: SearchConfig,
        seed: int,
    ) -> Written:  # fmt: skip
        """Search for the text nearest to each target, from texts of its length in `lengths` (`sampling.search`)."""
        shape, drawn = self.model.shape, sampler.override(temperature=config.temperature)
        child = drawn.override(steps=config.steps)
        canvases = self._starting_canvases(latents_nd, lengths, config)
        longest = [max(len(canvas) for canvas in row) for row in canvases]

        def work(batch: list[int]) -> Values:
            latents_Bd = latents_nd[batch]
            first, traces = self._recorded(sampler, len(batch))
            samplers: dict[How, Any] = {"first": first, "drawn": drawn, "child": child}

            def write(
                canvas_NL: Tensor, target_N: Tensor, generator: RowGenerator, how: How, latents_Nd: Tensor
            ) -> TextSample:
                used = int((canvas_NL != shape.pad_id).sum(dim=1).max())  # columns that are padding in every row cost
                sample = self.model.write(
                    canvas_NL[:, :used], canvas_NL[:, :used] == shape.mask_id, latents_Bd=latents_Nd,
                    sampler=samplers[how], generator=generator,
                )  # fmt: skip
                blank = (0, canvas_NL.shape[1] - used)
                return replace(
                    sample, tokens=pad(sample.tokens, blank, value=shape.pad_id), log_probs=pad(sample.log_probs, blank)
                )

            def compare(tokens_NL: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
                texts = [self._unpadded(ids) for ids in tokens_NL.tolist()]
                found = reembed(texts, [batch[target] for target in target_N.tolist()])
                cosines_N, own_Nd = (torch.from_numpy(values).float().to(latents_Bd.device) for values in found)
                return cosines_N, own_Nd

            room = 2 * config.rounds if config.infill > 0 else 0  # a text may grow by two tokens in each round
            widths = [max(longest[row], min(longest[row] + room, shape.max_length)) for row in batch]
            found = search(
                torch.stack([self.padded(canvases[row], length=max(widths)) for row in batch]),
                config=config, write=write, reembed=compare, latents_Bd=latents_Bd,
                mask_id=shape.mask_id, pad_id=shape.pad_id,
                generator=self.generator(batch, seed), compare=first.compare if traces else uncompared,
                at_once=max(1, self.batch_tokens // max(widths)), advance=bar.update,
                prices={how: latents_Bd.new_tensor([*map(sampler.most_calls, widths)], dtype=torch.long)
                        for how, sampler in samplers.items()},
            )  # fmt: skip
            texts = [self._unpadded(ids) for ids in found.tokens.tolist()]
            return {
                "tokens": [self._words(ids, row) for ids, row in zip(texts, batch, strict=True)],
                "log_probs": found.log_probs.double().sum(dim=1),
                "model_calls": found.model_calls_per_row,
                "encoder_calls": found.encoder_calls_per_row,
                "cosines": found.cosines.double(),
                **traces,
            }

        total = len(lengths) * config.rounds
        with (
            shown(total=total, desc="searching", unit="rounds") as bar,
            self.computing(work, longest, "", most=8) as (batches, results),
        ):
            most = lanes_of(self.model.device) * max(map(len, batches), default=0)
            kept = min(len(lengths), most) * config.most_kept
            refuse_beyond_memory(kept * (1_000 + 4 * latents_nd.shape[1]), f"a search among {kept:,} texts at a time")
            return Written(**{"cosines": np.zeros(0), **self.joined(batches, results)})

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

        with self.computing(work, [len(row) for row in ids], "drawing latents") as (batches, results):
            found = self.joined(batches, results)
        if not ids:
            return torch.zeros(getattr(sampler, "draws", 1), 0, self.model.dim), Written().model_calls
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
            used, traces = self._recorded(text, len(batch))
            written, drawn = self.model.both(canvas_BL, text=used, latent=latent, generator=generator)
            if traces:
                used.close(written.tokens)
            texts = {**self._texts(written, [len(canvases[row]) for row in batch], batch), **traces}
            calls_B = torch.full((len(batch),), drawn.model_calls)
            return {**texts, "model_calls": calls_B, "latents_nd": drawn.latents}

        with self.computing(work, [len(canvas) for canvas in canvases], "writing") as (batches, results):
            return Written(**self.joined(batches, list(results)))

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _recorded(self, sampler: Any, rows: int) -> tuple[Any, Values]:
        """Return the sampler of a batch and the traces that it will fill; without tracing the sampler and nothing."""
        if not self.traced:
            return sampler, {}
        recorder = Recorder(sampler, rows, pad_id=self.model.shape.pad_id)
        return recorder, {"traces": recorder.frames}

    def _texts(self, sample: TextSample, lengths: Sequence[int], rows: Sequence[int]) -> Values:
        """Return the tokens of canvases of these lengths, without the padding after an end that the model chose."""
        tokens = [
            self._words(ids[:length] if self.model.has_length else self._unpadded(ids), row)
            for ids, length, row in zip(sample.tokens.tolist(), lengths, rows, strict=True)
        ]
        sums_B = sample.log_probs.double().sum(dim=1)
        calls_B = sample.calls_per_row
        return {"tokens": tokens, "log_probs": sums_B, "model_calls": calls_B, "encoder_calls": calls_B * 0}

    def _unpadded(self, ids: Sequence[int]) -> list[int]:
        return [index for index in ids if index != self.model.shape.pad_id]

    def _words(self, ids: Sequence[int], row: int) -> tuple[int, ...]:
        """Return the ids of a text; SamplingError if it contains [MASK], [PAD], or an id beyond the vocabulary."""
        shape = self.model.shape
        if wrong := [token for token in ids if token in (shape.mask_id, shape.pad_id) or token >= shape.vocab_size]:
            raise SamplingError(
                f"row {row} of the request: expected a text of words, but the sampler wrote the ids {show(wrong[:3])} "
                f"([MASK] is {shape.mask_id}, [PAD] {shape.pad_id}). Choose another sampler, or more steps."
            )
        return tuple(ids)


def refuse_texts_beyond_memory(count: int, *, tokens: int, numbers: int = 0) -> None:
    """Raise SamplingError if `count` texts of `tokens` tokens, with `numbers` numbers each, exceed the free memory."""
    needed = count * (1_000 + tokens * BYTES_PER_TOKEN + 8 * numbers)
    refuse_beyond_memory(needed, f"{count:,} texts of up to {tokens:,} tokens")


def refuse_beyond_memory(needed: int, request: str) -> None:
    """Raise SamplingError if a request needs more bytes than the machine has free."""
    free = psutil.virtual_memory().available
    if needed > free:
        raise SamplingError(
            f"expected a request that fits the {free / 1e9:.1f} GB of free memory, found one of about "
            f"{needed / 1e9:,.1f} GB ({request}). Request less at once."
        )
