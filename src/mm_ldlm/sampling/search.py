"""Search for the text whose embedding is nearest to a target latent, by remasking and re-embedding candidates.

vec2text (arXiv:2310.06816) corrects a text with a second model. Here the diffusion model corrects it, by rewriting the
least confident tokens. The encoder determines which candidate is nearest. The calls of both are counted.

B targets, T targets still searched, K candidates at the start, C children, W candidates kept (the beam), L positions;
N = targets × candidates, flat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Repeats, config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.limits import MOST_CANDIDATES, Candidates, Rounds, Temperature
from mm_ldlm.sampling.orders import top_by_row

Write = Callable[[Tensor, Tensor, RowGenerator, bool], TextSample]
"""(tokens_NL with masks, index of each target (N,), generator with N rows, greedy) → texts for these targets."""
Nearness = Callable[[Tensor, Tensor], Tensor]
"""(tokens_NL, index of each target (N,)) → (N,) float32 cosine of the re-embedded text to its target."""


@config
class SearchConfig:
    """Parameters of the search, which re-embeds candidates and compares them with the target. Counts are per target."""

    candidates: Candidates = 1
    """Number of candidates at the start (K), and of children in each round"""
    rounds: Rounds = 0
    """Number of rounds, in which the least confident tokens are masked again and rewritten"""
    beam: Candidates = 1
    """Number of candidates kept from round to round"""
    remask_ratio: Fraction = 0.4
    """Fraction of a candidate's tokens that a child draws again"""
    remask_noise: NonNegativeFloat = 1.0
    """Scale of the Gumbel noise (nats) on the log-probabilities that rank the tokens; 0 always masks the same tokens"""
    resize: Fraction = 0.0
    """Fraction of the children that are one token longer or shorter than their parent, at its least confident token"""
    lengths: Repeats = 1
    """Number of the most probable lengths among which the starting candidates are divided"""
    temperature: Temperature = 0.7
    """Temperature of all candidates but the first, which uses the temperature of the text sampler"""
    good_enough: PositiveFloat = 0.9999
    """Cosine at which the search for a target ends"""
    calls: PositiveInt | None = None
    """Largest number of model calls, at which the search for a target ends too; null: no limit"""

    @classmethod
    def within(cls, calls: int, *, price: int, lengths: int) -> "SearchConfig":
        """Choose a search for a number of model calls, of which a text takes `price` at most.

        Args:
            lengths: number of the most probable lengths to try; with 1 the length of a text stays what it is.
        """
        two = 2 if calls >= 4 * price else 1  # few children in many rounds find more than many in few
        return cls(
            candidates=two, rounds=min(calls, MOST_CANDIDATES), beam=two if calls >= 32 * price else 1,
            lengths=min(two, lengths), resize=0.3 if lengths > 1 else 0.0, temperature=1.0, calls=calls,
        )  # fmt: skip

    @property
    def enabled(self) -> bool:
        """Whether a search takes place."""
        return self.candidates > 1 or self.rounds > 0


@dataclass(frozen=True)
class SearchResult:
    """Best text for each of B targets, and its cost."""

    tokens: Tensor
    """(B, L)"""
    log_probs: Tensor
    """(B, L)"""
    cosines: Tensor
    """(B,) float32 cosine of the re-embedded text to the target"""
    model_calls_per_row: Tensor
    """(B,) model calls for all candidates of the target"""
    encoder_calls_per_row: Tensor
    """(B,) sentences embedded for the target"""


class Drafts(NamedTuple):
    """Texts with the positions that may be rewritten: the tokens of each, then pads, which are not writable.

    The first axis is the targets; the second, if there is one, the candidates of each, best first.
    """

    tokens: Tensor
    """(..., L)"""
    log_probs: Tensor
    """(..., L) log-probability of each token when it was unmasked"""
    writable: Tensor
    """(..., L) bool: each candidate has its own, because those of one target may differ in length"""
    cosines: Tensor
    """(...,) cosine to the target"""

    def pick(self, index: Any) -> "Drafts":
        """Return some of the drafts."""
        return Drafts(*(value[index] for value in self))

    def replaced(self, rows: Tensor, drafts: "Drafts") -> "Drafts":
        """Replace the drafts of some targets."""
        return Drafts(*(value.index_copy(0, rows, new) for value, new in zip(self, drafts, strict=True)))


Compare = Callable[[Tensor, Drafts, int], None]
"""(targets (T,), texts that they choose from (T, C), number of these that they had before), called for each choice."""


def uncompared(live: Tensor, drafts: Drafts, kept: int) -> None:
    """Record nothing of a choice."""


def joined(drafts: Sequence[Drafts], join: Callable[..., Tensor]) -> Drafts:
    """Join the candidates of the same targets along the second axis by `torch.stack` or `torch.cat`."""
    return Drafts(*(join(values, dim=1) for values in zip(*drafts, strict=True)))


class Search:
    """One search for B targets: the functions that it calls, and their cost so far."""

    def __init__(
        self, config: SearchConfig, write: Write, nearness: Nearness, *, targets: int, mask_id: int, pad_id: int,
        generator: RowGenerator, compare: Compare, price: int,
    ) -> None:  # fmt: skip
        self.config, self.mask_id, self.pad_id, self.generator = config, mask_id, pad_id, generator
        self._write, self._nearness, self.compare, self.price = write, nearness, compare, price
        self._known: dict[tuple[int, ...], float] = {}
        self.model_calls_B, self.encoder_calls_B = torch.zeros(2, targets, dtype=torch.long, device=generator.device)

    def affords(self, live: Tensor) -> Tensor:
        """Return whether each of the targets `live` has model calls left for one more text (T,)."""
        calls_T = self.model_calls_B[live] + self.price
        return torch.ones_like(live, dtype=torch.bool) if self.config.calls is None else calls_T <= self.config.calls

    def write(self, canvas_TL: Tensor, live: Tensor, generator: RowGenerator, *, greedy: bool) -> TextSample:
        """Write canvases of the targets `live`; without `greedy` at the temperature of the search."""
        sample = self._write(canvas_TL, live, generator, greedy)
        self.model_calls_B.index_add_(0, live, sample.calls_per_row)
        return sample

    def cosines(self, tokens_NL: Tensor, target_N: Tensor) -> Tensor:
        """Compute the cosine (N,) of each text to its target; a distinct text of a target is embedded once."""
        keys = [tuple(row) for row in torch.cat([target_N.unsqueeze(1), tokens_NL], dim=1).tolist()]
        fresh = list({key: index for index, key in enumerate(keys) if key not in self._known}.values())
        if fresh:
            index = torch.tensor(fresh, device=tokens_NL.device)
            values = self._nearness(tokens_NL[index], target_N[index]).tolist()
            self._known.update((keys[i], value) for i, value in zip(fresh, values, strict=True))
            self.encoder_calls_B.index_add_(0, target_N[index], torch.ones_like(index))
        return torch.tensor([self._known[key] for key in keys], dtype=torch.float32, device=tokens_NL.device)

    def start(self, canvases_BKL: Tensor) -> Drafts:
        """Write the first candidates (B, K).

        The first canvas of every length is written with the text sampler as without a search; repeated canvases are
        drawn at the temperature of the search. If candidate 0 is good enough, the others are copies of it at no cost,
        as are those that exceed the number of model calls.
        """
        every = torch.arange(len(canvases_BKL), device=canvases_BKL.device)
        sample = self.write(canvases_BKL[:, 0], every, self.generator.fork("candidate 0"), greedy=True)
        cosines_B = self.cosines(sample.tokens, every)
        writable_BKL = canvases_BKL == self.mask_id
        first = Drafts(sample.tokens, sample.log_probs, writable_BKL[:, 0], cosines_B)
        self.compare(every, joined([first], torch.stack), 0)
        live = (cosines_B < self.config.good_enough).nonzero().squeeze(1)
        found = [first]
        for number in range(1, canvases_BKL.shape[1]):
            found.append(first._replace(writable=writable_BKL[:, number]))
            able = live[self.affords(live)]
            if able.numel():
                canvas_TL = canvases_BKL[able, number]
                seen = bool((canvas_TL.unsqueeze(1) == canvases_BKL[able, :number]).all(dim=2).any())
                stream = self.generator.select(able).fork(f"candidate {number}")
                sample = self.write(canvas_TL, able, stream, greedy=not seen)
                drawn = Drafts(
                    sample.tokens, sample.log_probs, writable_BKL[able, number], self.cosines(sample.tokens, able)
                )
                found[-1] = found[-1].replaced(able, drawn)
        drafts = joined(found, torch.stack)
        self.compare(live, drafts.pick(live), 1)
        return drafts

    def children(self, parents: Drafts, live: Tensor, number: int) -> Drafts:
        """Draw the children (T, C) of the targets `live`, from their parents (T, W) in turn.

        Children that exceed the number of model calls are copies of their parents.
        """
        found, config = [], self.config
        for child in range(config.candidates):
            draft = parents.pick((slice(None), child % parents.tokens.shape[1]))
            found.append(draft)
            rows = self.affords(live).nonzero().squeeze(1)
            if not rows.numel():
                continue
            able, draft = live[rows], draft.pick(rows)
            stream = self.generator.select(able).fork(f"round {number} child {child}")
            if config.resize > 0:
                draft = resized(
                    draft, fraction=config.resize, noise=config.remask_noise, mask_id=self.mask_id, pad_id=self.pad_id,
                    generator=stream.fork("resize"),
                )  # fmt: skip
            again_TL = least_certain(
                draft, fraction=config.remask_ratio, noise=config.remask_noise, generator=stream.fork("which")
            )
            sample = self.write(draft.tokens.masked_fill(again_TL, self.mask_id), able, stream, greedy=False)
            log_probs_TL = torch.where(again_TL, sample.log_probs, draft.log_probs)
            found[-1] = found[-1].replaced(rows, Drafts(sample.tokens, log_probs_TL, draft.writable, draft.cosines))
        drafts = joined(found, torch.stack)
        flat_NL = drafts.tokens.reshape(-1, drafts.tokens.shape[-1])
        cosines_N = self.cosines(flat_NL, live.repeat_interleave(config.candidates))
        return drafts._replace(cosines=cosines_N.view(len(live), -1))


def search(
    canvases_BKL: Tensor,
    *,
    config: SearchConfig,
    write: Write,
    nearness: Nearness,
    mask_id: int,
    pad_id: int,
    generator: RowGenerator,
    compare: Compare = uncompared,
    price: int = 0,
) -> SearchResult:
    """Search for the text nearest to each target.

    `canvases_BKL` are the K starting canvases of each of B targets, which may differ in length. Their `[MASK]`
    positions are written and rewritten; all other positions are fixed. In each round a target keeps its `beam` best
    candidates and draws `candidates` children from them: a fraction `remask_ratio` of their least confident tokens is
    masked again, and a fraction `resize` of the children is one token longer or shorter. Parents compete with their
    children, so the best cosine never decreases. `price` is the largest number of model calls that `write` makes for a
    text; with `config.calls` no text is begun that could exceed them, the first one excepted.
    """
    B = len(canvases_BKL)
    run = Search(
        config, write, nearness, targets=B, mask_id=mask_id, pad_id=pad_id, generator=generator, compare=compare,
        price=price,
    )  # fmt: skip
    best = _best(run.start(canvases_BKL), config.beam)
    live = torch.arange(B, device=canvases_BKL.device)
    for number in range(config.rounds):
        live = live[(best.cosines[live, 0] < config.good_enough) & run.affords(live)]
        if not live.numel():
            break
        parents = best.pick(live)
        both = joined([parents, run.children(parents, live, number)], torch.cat)
        compare(live, both, parents.tokens.shape[1])
        best = best.replaced(live, _best(both, best.tokens.shape[1]))
    return SearchResult(
        best.tokens[:, 0], best.log_probs[:, 0], best.cosines[:, 0], run.model_calls_B, run.encoder_calls_B
    )


def _best(drafts: Drafts, count: int) -> Drafts:
    """Keep the `count` best distinct candidates of each target, best first.

    Repeated texts come last, and the earlier candidate wins a tie.
    """
    same_TCC = (drafts.tokens.unsqueeze(1) == drafts.tokens.unsqueeze(2)).all(dim=-1)
    repeat_TC = torch.tril(same_TCC, diagonal=-1).any(dim=2)
    order_TW = (drafts.cosines - 10.0 * repeat_TC).argsort(dim=1, descending=True, stable=True)[:, :count]
    rows_T1 = torch.arange(len(order_TW), device=order_TW.device)[:, None]
    return drafts.pick((rows_T1, order_TW))


# --- which tokens are rewritten ---------------------------------------------------------------------------------------


def uncertainties(draft: Drafts, *, noise: float, generator: RowGenerator) -> Tensor:
    """Compute −log-probability plus Gumbel noise (T, L), float64; −inf at positions that are not writable."""
    uncertainty_TL = -draft.log_probs.double()
    if noise > 0:
        uncertainty_TL = uncertainty_TL - noise * torch.log(-torch.log(generator.uniform(uncertainty_TL.shape[1])))
    return uncertainty_TL.masked_fill(~draft.writable, -torch.inf)


def least_certain(draft: Drafts, *, fraction: float, noise: float, generator: RowGenerator) -> Tensor:
    """Select the most uncertain `fraction` of the writable tokens (T, L), at least one per text."""
    writable_T = draft.writable.sum(dim=1)
    count_T = (writable_T * fraction).round().long().clamp_min(1).minimum(writable_T)
    return top_by_row(uncertainties(draft, noise=noise, generator=generator), count_T) & draft.writable


def resized(
    draft: Drafts, *, fraction: float, noise: float, mask_id: int, pad_id: int, generator: RowGenerator
) -> Drafts:
    """Remove a token from, or insert a [MASK] into, a `fraction` of the texts, at the most uncertain position.

    A wrong length is rarely wrong by more than one token. The model then repeats or omits a word, and it is uncertain
    at that position. Texts with given tokens keep their length; a text that fills the row does not grow, and a text of
    one token does not shrink.
    """
    place_T = uncertainties(draft, noise=noise, generator=generator.fork("place")).argmax(dim=1)
    u_T = generator.fork("resize").uniform()
    real_TL = draft.tokens != pad_id
    free_T = (real_TL == draft.writable).all(dim=1) & real_TL.any(dim=1)
    shorter_T = free_T & (u_T < fraction / 2) & (real_TL.sum(dim=1) > 1)
    longer_T = free_T & (u_T >= fraction / 2) & (u_T < fraction) & ~real_TL[:, -1]

    column_L = torch.arange(draft.tokens.shape[1], device=draft.tokens.device)
    from_TL = column_L + (shorter_T[:, None] & (column_L >= place_T[:, None])).long()
    from_TL = from_TL - (longer_T[:, None] & (column_L > place_T[:, None])).long()
    from_TL = from_TL.clamp(max=len(column_L) - 1)
    new_TL = longer_T[:, None] & (column_L == place_T[:, None] + 1)
    gone_TL = shorter_T[:, None] & (column_L == len(column_L) - 1)
    return Drafts(
        draft.tokens.gather(1, from_TL).masked_fill(new_TL, mask_id).masked_fill(gone_TL, pad_id),
        draft.log_probs.gather(1, from_TL).masked_fill(new_TL, -torch.inf).masked_fill(gone_TL, 0.0),
        (draft.writable.gather(1, from_TL) | new_TL) & ~gone_TL,
        draft.cosines,
    )
