"""Search for the text whose embedding is nearest to a target latent, by remasking and re-embedding candidates.

vec2text (arXiv:2310.06816) corrects a text with a second model, which reads the embedding of the text too. Here the
diffusion model corrects it, by rewriting the least confident tokens, or a span whose length may change, or by moving
words. Every second child is written given the target plus the error of its parent, the target minus the parent's
embedding, so that what the parent lacks weighs twice. The encoder determines which candidate is nearest. The calls of
both are counted.

B targets, T targets still searched, K candidates at the start, C children, W candidates kept (the beam), L positions,
d dimensions of a latent; N = targets × candidates, flat.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Repeats, config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.limits import MOST_CANDIDATES, Candidates, Rounds, Steps, Temperature
from mm_ldlm.sampling.orders import top_by_row

How = Literal["first", "drawn", "child"]
"""How a text is written: as without a search, at the temperature of the search, or as the child of another text"""
Write = Callable[[Tensor, Tensor, RowGenerator, How, Tensor], TextSample]
"""(tokens_NL with masks, index of each target (N,), generator with N rows, how, latents (N, d)) → texts for these
targets, given these latents."""
Reembed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(tokens_NL, index of each target (N,)) → cosine (N,) of the re-embedded text to its target, float32, and its latent
(N, d)."""

PATIENCE, NEAR = 10, 0.98
"""Number of rounds without a better text, and its cosine, from which on its spans are swapped in all ways"""
MOST_SWAPS = 256
"""Largest number of these ways; a text of twelve tokens has 165"""


@config
class SearchConfig:
    """Parameters of the search, which re-embeds candidates and compares them with the target. Counts are per target."""

    candidates: Candidates = 1
    """Number of candidates at the start (K), and of children in each round"""
    rounds: Rounds = 0
    """Number of rounds, in which tokens of the candidates are masked again and rewritten"""
    beam: Candidates = 1
    """Number of candidates kept from round to round"""
    remask_ratio: Fraction = 0.4
    """Fraction of a candidate's tokens that a child draws again: the least confident, or a span of at most as many"""
    remask_noise: NonNegativeFloat = 1.0
    """Scale of the Gumbel noise (nats) on the log-probabilities that rank the tokens; 0 always masks the same tokens"""
    infill: Fraction = 0.0
    """Fraction of the children in which a span is drawn again, with as many tokens, one fewer, or one or two more"""
    swap: Fraction = 0.0
    """Fraction of the children in which two neighbouring spans change places, without a model call; above 0, all swaps
    of a text nearer than `NEAR` are tried after `PATIENCE` rounds without a better one"""
    steps: Steps = 1
    """Sampling steps of a child"""
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
            lengths=min(two, lengths), infill=0.6 if lengths > 1 else 0.0, swap=0.25, temperature=1.0, calls=calls,
        )  # fmt: skip

    @property
    def most_kept(self) -> int:
        """Largest number of texts of a target whose errors are in memory together."""
        return self.candidates * (1 + self.rounds)

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
    """(..., L) bool: each candidate has its own, because candidates of one target may differ in length"""
    cosines: Tensor
    """(...,) cosine to the target"""
    errors: Tensor
    """(..., d) the target's latent minus the text's"""

    def pick(self, index: Any) -> "Drafts":
        """Return some of the drafts."""
        return Drafts(*(value[index] for value in self))

    def replaced(self, place: tuple[Tensor, ...], drafts: "Drafts") -> "Drafts":
        """Replace the drafts at `place`, an index for each axis."""
        return Drafts(*(value.index_put(place, new) for value, new in zip(self, drafts, strict=True)))


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
        self, config: SearchConfig, write: Write, reembed: Reembed, latents_Bd: Tensor, *, mask_id: int, pad_id: int,
        generator: RowGenerator, compare: Compare, prices: Mapping[How, Tensor], at_once: int,
    ) -> None:  # fmt: skip
        self.config, self.mask_id, self.pad_id, self.generator = config, mask_id, pad_id, generator
        self._write, self._reembed, self.compare, self.prices = write, reembed, compare, prices
        self._latents_Bd, self._at_once = latents_Bd, at_once
        self._known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self.model_calls_B, self.encoder_calls_B = latents_Bd.new_zeros(2, len(latents_Bd), dtype=torch.long)

    def affordable(self, live: Tensor, how: How) -> Tensor:
        """Return the number of texts that each of the targets `live` has model calls left for (T,)."""
        if self.config.calls is None:
            return torch.full_like(live, MOST_CANDIDATES)
        price_B = torch.as_tensor(self.prices.get(how, 1), device=live.device).expand(self.model_calls_B.shape)
        return (self.config.calls - self.model_calls_B[live]).div(price_B[live], rounding_mode="floor")

    def write(
        self, canvas_NL: Tensor, live: Tensor, generator: RowGenerator, how: How, error_Nd: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Write canvases of the targets `live`, whose latents the errors are added to.

        Returns the tokens and their log-probabilities (N, L).
        """
        latents_Nd, found = self._latents_Bd[live] + error_Nd, []
        for rows in torch.arange(len(live), device=live.device).split(self._at_once):
            sample = self._write(canvas_NL[rows], live[rows], generator.select(rows), how, latents_Nd[rows])
            self.model_calls_B.index_add_(0, live[rows], sample.calls_per_row)
            found.append((sample.tokens, sample.log_probs))
        tokens_NL, log_probs_NL = map(torch.cat, zip(*found, strict=True))
        return tokens_NL, log_probs_NL

    def reembed(self, tokens_NL: Tensor, target_N: Tensor, *, keep: bool = True) -> tuple[Tensor, Tensor]:
        """Compute the cosine (N,) of each text to its target, and its error (N, d), the target's latent minus its own.

        A distinct text of a target is embedded once, because both are kept. At most `SearchConfig.most_kept` are.
        """
        known: MutableMapping[Any, Any] = self._known if keep else ChainMap({}, self._known)
        keys = [tuple(row) for row in torch.cat([target_N.unsqueeze(1), tokens_NL], dim=1).tolist()]
        fresh = list({key: index for index, key in enumerate(keys) if key not in known}.values())
        if fresh:
            index = torch.tensor(fresh, device=tokens_NL.device)
            cosines_n, own_nd = self._reembed(tokens_NL[index], target_N[index])
            found = zip(cosines_n, self._latents_Bd[target_N[index]] - own_nd, strict=True)
            known.update(zip((keys[i] for i in fresh), found, strict=True))
            self.encoder_calls_B.index_add_(0, target_N[index], torch.ones_like(index))
        cosines, errors = zip(*(known[key] for key in keys), strict=True)
        return torch.stack(cosines), torch.stack(errors)

    def start(self, canvases_BKL: Tensor) -> Drafts:
        """Write the first candidates (B, K).

        The first canvas of every length is written with the text sampler as without a search; repeated canvases are
        drawn at the temperature of the search. If candidate 0 is good enough, the others are copies of it at no cost,
        as are those that exceed the number of model calls.
        """
        every = torch.arange(len(canvases_BKL), device=canvases_BKL.device)
        number_K = torch.arange(canvases_BKL.shape[1], device=every.device)
        writable_BKL, stream = canvases_BKL == self.mask_id, self.generator.fork("candidates")
        written = self.write(canvases_BKL[:, 0], every, stream.numbered(0 * every), "first")
        first = Drafts(*written, writable_BKL[:, 0], *self.reembed(written[0], every))
        self.compare(every, joined([first], torch.stack), 0)
        live_B = first.cosines < self.config.good_enough
        drafts = joined([first] * len(number_K), torch.stack)
        repeated_BK = (canvases_BKL.unsqueeze(1) == canvases_BKL.unsqueeze(2)).all(dim=3).tril(diagonal=-1).any(dim=2)
        choices: dict[How, Tensor] = {"first": ~repeated_BK & (number_K > 0), "drawn": repeated_BK}
        for how, chosen_BK in choices.items():
            wanted_BK = chosen_BK & live_B[:, None]
            able_BK = wanted_BK & (wanted_BK.cumsum(dim=1) <= self.affordable(every, how)[:, None])
            target_N, number_N = able_BK.nonzero().unbind(dim=1)
            if target_N.numel():
                numbered = stream.select(target_N).numbered(number_N)
                written = self.write(canvases_BKL[target_N, number_N], target_N, numbered, how)
                drawn = Drafts(*written, writable_BKL[target_N, number_N], *self.reembed(written[0], target_N))
                drafts = drafts.replaced((target_N, number_N), drawn)
        live = live_B.nonzero().squeeze(1)
        self.compare(live, drafts.pick(live), 1)
        return drafts

    def children(self, parents: Drafts, live: Tensor, number: int) -> Drafts:
        """Draw the children (T, C) of the targets `live`, from their parents (T, W) in turn.

        Children that exceed the number of model calls are copies of their parents.
        """
        config = self.config
        child_C = torch.arange(config.candidates, device=live.device)
        drafts = parents.pick((slice(None), child_C % parents.tokens.shape[1]))
        row_N, child_N = (child_C < self.affordable(live, "child")[:, None]).nonzero().unbind(dim=1)
        draft = parent = drafts.pick((row_N, child_N))
        stream = self.generator.select(live[row_N]).fork(f"round {number}").numbered(child_N)
        again_NL = least_certain(
            draft, fraction=config.remask_ratio, noise=config.remask_noise, generator=stream.fork("which")
        )
        if config.infill > 0:
            draft, again_NL = with_spans(
                draft, again_NL, fraction=config.infill, widest=config.remask_ratio, mask_id=self.mask_id,
                pad_id=self.pad_id, generator=stream.fork("span"),
            )  # fmt: skip
        if config.swap > 0:
            draft, again_NL = with_swaps(
                draft, again_NL, parent=parent, fraction=config.swap, pad_id=self.pad_id,
                generator=stream.fork("swap"),
            )  # fmt: skip
        error_Nd = parent.errors * ((number + child_N) % 2)[:, None]
        tokens_NL, log_probs_NL = self.write(
            draft.tokens.masked_fill(again_NL, self.mask_id), live[row_N], stream, "child", error_Nd
        )
        written = draft._replace(tokens=tokens_NL, log_probs=torch.where(again_NL, log_probs_NL, draft.log_probs))
        drafts = drafts.replaced((row_N, child_N), written)
        flat_NL = drafts.tokens.flatten(0, 1)
        cosines_N, errors_Nd = self.reembed(flat_NL, live.repeat_interleave(config.candidates))
        return drafts._replace(cosines=cosines_N.view(drafts.cosines.shape), errors=errors_Nd.view(drafts.errors.shape))

    def swaps(self, parents: Drafts, live: Tensor, number: int) -> Drafts:
        """Swap neighbouring spans of the best texts of the targets `live` in all ways; return the nearest ones (T, 1).

        The first token keeps its place, because of its capital; of a long text `MOST_SWAPS` ways are drawn. No model
        call is made.
        """
        draft = parents.pick((slice(None), 0))
        length_T = (draft.tokens != self.pad_id).sum(dim=1)
        ways_S3 = torch.combinations(torch.arange(1, max(3, int(length_T.max())) + 1, device=live.device), 3)
        ways_S3 = ways_S3[ways_S3[:, 2].argsort(stable=True)]  # a way has the same number whatever the longest text
        ways_S3 = torch.cat([ways_S3.new_zeros(1, 3), ways_S3])  # the first changes nothing
        fits_TS = (ways_S3[:, 2] <= length_T[:, None]) & (draft.writable.sum(dim=1) == length_T)[:, None]
        drawn_TS = (
            self.generator.select(live).fork(f"swaps {number}").uniform(len(ways_S3)).masked_fill(~fits_TS, torch.inf)
        )
        drawn_TS[:, 0] = -1.0
        drawn_TK, way_TK = drawn_TS.topk(min(MOST_SWAPS, len(ways_S3)), largest=False)
        row_N, place_N = drawn_TK.isfinite().nonzero().unbind(dim=1)
        found = swap_spans(draft.pick(row_N), ways_S3[way_TK[row_N, place_N]])
        cosines_TK = torch.full(way_TK.shape, -torch.inf, device=live.device)
        cosines_TK[row_N, place_N], _ = self.reembed(found.tokens, live[row_N], keep=False)
        nearest = swap_spans(draft, ways_S3[way_TK.gather(1, cosines_TK.argmax(dim=1, keepdim=True))[:, 0]])
        cosines_T, errors_Td = self.reembed(nearest.tokens, live)
        return joined([nearest._replace(cosines=cosines_T, errors=errors_Td)], torch.stack)


def search(
    canvases_BKL: Tensor,
    *,
    config: SearchConfig,
    write: Write,
    reembed: Reembed,
    latents_Bd: Tensor,
    mask_id: int,
    pad_id: int,
    generator: RowGenerator,
    compare: Compare = uncompared,
    prices: Mapping[How, Tensor] = MappingProxyType({}),
    at_once: int = 1_000,
    advance: Callable[[int], Any] = bool,
) -> SearchResult:
    """Search for the text nearest to each target.

    `canvases_BKL` are the K starting canvases of each of B targets (`latents_Bd`), which may differ in length. Their
    `[MASK]` positions are written and rewritten; all other positions are fixed. In each round a target keeps its `beam`
    best candidates and draws `candidates` children from them: a fraction `remask_ratio` of their least confident tokens
    is masked again, or, in a fraction `infill` of the children, a span whose length may change; in a fraction `swap`
    two neighbouring spans change places instead. Parents compete with their children, so the best cosine never
    decreases. `prices` are the largest numbers (B,) of model calls that `write` makes for a text of each target; with
    `config.calls` no text is begun that could exceed them, the first one excepted. `write` is given at most `at_once`
    texts. `advance` is called with the number of rounds that were done or are not needed, of each target, B · rounds in
    all.
    """
    run = Search(
        config, write, reembed, latents_Bd, mask_id=mask_id, pad_id=pad_id, generator=generator, compare=compare,
        prices=prices, at_once=at_once,
    )  # fmt: skip
    best = _best(run.start(canvases_BKL), config.beam)
    idle_B = torch.zeros_like(run.model_calls_B)
    live = torch.arange(len(canvases_BKL), device=canvases_BKL.device)
    for number in range(config.rounds):
        before = len(live)
        live = live[(best.cosines[live, 0] < config.good_enough) & (run.affordable(live, "child") > 0)]
        advance((before - len(live)) * (config.rounds - number))
        if not live.numel():
            break
        due_T = (idle_B[live] == PATIENCE) & (best.cosines[live, 0] > NEAR) & (config.swap > 0)
        for rows, draw in ((live[due_T], run.swaps), (live[~due_T], run.children)):
            if rows.numel():
                parents = best.pick(rows)
                both = joined([parents, draw(parents, rows, number)], torch.cat)
                compare(rows, both, parents.tokens.shape[1])
                best = best.replaced((rows,), _best(both, best.tokens.shape[1]))
                better_T = best.cosines[rows, 0] > parents.cosines[:, 0]
                idle_B[rows] = torch.where(better_T, 0, idle_B[rows] + 1)
        advance(len(live))
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


def least_certain(draft: Drafts, *, fraction: float, noise: float, generator: RowGenerator) -> Tensor:
    """Select the most uncertain `fraction` of the writable tokens (T, L), at least one per text.

    The uncertainty is −log-probability, with Gumbel noise of this scale (nats).
    """
    uncertainty_TL = -draft.log_probs.double()
    if noise > 0:
        uncertainty_TL = uncertainty_TL - noise * torch.log(-torch.log(generator.uniform(uncertainty_TL.shape[1])))
    writable_T = draft.writable.sum(dim=1)
    count_T = (writable_T * fraction).round().long().clamp_min(1).minimum(writable_T)
    return top_by_row(uncertainty_TL.masked_fill(~draft.writable, -torch.inf), count_T) & draft.writable


def with_spans(
    draft: Drafts, again_TL: Tensor, *, fraction: float, widest: float, mask_id: int, pad_id: int,
    generator: RowGenerator,
) -> tuple[Drafts, Tensor]:  # fmt: skip
    """Select a random span instead of `again_TL` in a `fraction` of the texts, and change its length.

    A span has at most the fraction `widest` of the tokens. It becomes one token shorter or two longer in one text of
    seven each, and one longer in two of seven. Texts with given tokens keep their length, and so does a text that would
    leave its row or lose its only token.
    """
    length_T, room = (draft.tokens != pad_id).sum(dim=1), draft.tokens.shape[1]
    span_T, wide_T, place_T, change_T = generator.uniform(4).unbind(dim=1)
    wide_T = (1 + length_T * widest * wide_T).long().minimum(length_T)
    start_T = ((length_T - wide_T + 1) * place_T).long()
    more_T = torch.tensor([-1, 0, 0, 0, 1, 1, 2], device=length_T.device)[(7 * change_T).long()]
    free_T = draft.writable.sum(dim=1) == length_T
    fits_T = free_T & (length_T + more_T >= 1) & (length_T + more_T <= room)
    chosen_T = (span_T < fraction) & (length_T > 0)
    more_T = torch.where(fits_T & chosen_T, more_T, 0)

    column_L = torch.arange(room, device=draft.tokens.device)
    start_T1, end_T1, more_T1 = start_T[:, None], (start_T + wide_T + more_T)[:, None], more_T[:, None]
    span_TL = chosen_T[:, None] & (column_L >= start_T1) & (column_L < end_T1)
    from_TL = (column_L - more_T1 * (column_L >= end_T1)).clamp(0, room - 1)
    gone_TL = (column_L >= (length_T + more_T)[:, None]) & (more_T1 < 0)
    writable_TL = (draft.writable.gather(1, from_TL) | (span_TL & free_T[:, None])) & ~gone_TL
    span_TL &= writable_TL
    tokens_TL = draft.tokens.gather(1, from_TL).masked_fill(gone_TL, pad_id).masked_fill(span_TL, mask_id)
    log_probs_TL = draft.log_probs.gather(1, from_TL).masked_fill(gone_TL, 0.0)
    again_TL = torch.where(chosen_T[:, None], span_TL, again_TL)
    return draft._replace(tokens=tokens_TL, log_probs=log_probs_TL, writable=writable_TL), again_TL


def with_swaps(
    draft: Drafts, again_TL: Tensor, *, parent: Drafts, fraction: float, pad_id: int, generator: RowGenerator
) -> tuple[Drafts, Tensor]:
    """Swap two neighbouring spans of `parent` instead, in a `fraction` of the texts that have no given tokens.

    If the start of the text moves, its first word and the one that was first are selected, because of their capitals.
    """
    length_T, column_L = (
        (parent.tokens != pad_id).sum(dim=1),
        torch.arange(parent.tokens.shape[1], device=again_TL.device),
    )
    swap_T, *cuts = generator.uniform(4).unbind(dim=1)
    cuts_T3 = (torch.stack(cuts, dim=1) * (length_T + 1)[:, None]).long().sort(dim=1).values
    start_T1, middle_T1, end_T1 = cuts_T3.split(1, dim=1)
    free_T = parent.writable.sum(dim=1) == length_T
    chosen_T1 = (free_T & (swap_T < fraction))[:, None] & (start_T1 < middle_T1) & (middle_T1 < end_T1)

    first_TL = (start_T1 == 0) & ((column_L == 0) | (column_L == end_T1 - middle_T1))
    swapped = swap_spans(parent, cuts_T3)
    tokens_TL, log_probs_TL, writable_TL = (
        torch.where(chosen_T1, new, old) for new, old in zip(swapped[:3], draft[:3], strict=True)
    )
    draft = draft._replace(tokens=tokens_TL, log_probs=log_probs_TL, writable=writable_TL)
    return draft, torch.where(chosen_T1, first_TL, again_TL)


def swap_spans(draft: Drafts, cuts_T3: Tensor) -> Drafts:
    """Let the tokens from the first cut to the second and those from there to the third change places."""
    column_L = torch.arange(draft.tokens.shape[1], device=cuts_T3.device)
    start_T1, middle_T1, end_T1 = cuts_T3.split(1, dim=1)
    moved_TL = column_L + torch.where(
        column_L < start_T1 + end_T1 - middle_T1, middle_T1 - start_T1, middle_T1 - end_T1
    )
    from_TL = torch.where((column_L >= start_T1) & (column_L < end_T1), moved_TL, column_L)
    return draft._replace(tokens=draft.tokens.gather(1, from_TL), log_probs=draft.log_probs.gather(1, from_TL))
