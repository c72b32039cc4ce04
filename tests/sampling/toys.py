"""Denoisers whose distribution is known, the process that they belong to, and what every text sampler promises."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.process import TEXT_PROCESSES, TextProcess, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser, TextSample
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.traces import WORDS as MOST_PROBABLE
from mm_ldlm.sampling.traces import Recorder

WORDS, MASK, PAD = 8, 8, 9
PROCESSES = [name for name in TEXT_PROCESSES if not TEXT_PROCESSES.find(name, at="").stores]
"""Processes that are made from no store of a dataset"""
HEAD = 12
"""Columns of the logits: [MASK], [PAD] and ids beyond the vocabulary have some, as in a padded head"""
VOCABULARY = Vocabulary(vocab_size=10, pad_id=PAD, mask_id=MASK)


@functools.cache
def build(process: str = "absorbing", *, schedule: str = "log_linear") -> TextProcess:
    """Build a text process for the vocabulary."""
    settings = {"kind": process, "schedule": {"kind": schedule}} if process == "absorbing" else {"kind": process}
    made: TextProcess = parse_kind(TEXT_PROCESSES, settings, at="process").build(VOCABULARY)
    return made.eval()


def rows(count: int, *, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def canvas(*lengths: int, width: int | None = None) -> Tensor:
    """Make masks for texts of these lengths, padded to the longest."""
    out_BL = torch.full((len(lengths), width or max(lengths)), PAD)
    for row, length in enumerate(lengths):
        out_BL[row, :length] = MASK
    return out_BL


def on(denoise: Any, tokens_BL: Tensor, process: str | TextProcess | None = "absorbing", **more: Any) -> Canvas:
    """Make the canvas of these tokens, with the row ids 0, 1, …"""
    made = build(process) if isinstance(process, str) else process
    return Canvas(denoise=denoise, process=made, tokens=tokens_BL, **{"generator": rows(len(tokens_BL)), **more})


def sample(kind: str, denoise: Any, tokens_BL: Tensor, *, schedule: str = "log_linear", **settings: Any) -> TextSample:
    """Write a canvas under absorbing diffusion, with a text sampler."""
    return text_sampler(kind, **settings).sample(on(denoise, tokens_BL, build(schedule=schedule)))


def denoiser(words: Callable[[Tensor, Tensor, Tensor], Tensor], **more: Any) -> TextDenoiser:
    """Make a denoiser of (tokens_AL, t_A, rows_A) → logits (A, L, words); ids that are not words have a logit of 50."""

    def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
        words_ALV = words(tokens_AL, t_A, rows_A)
        forbidden_ALV = torch.full((*tokens_AL.shape, HEAD - words_ALV.shape[2]), 50.0, dtype=words_ALV.dtype)
        return torch.cat([words_ALV, forbidden_ALV], dim=2)[asked_AL]

    return TextDenoiser(logits=logits, **more)


def watching(see: Callable[[Tensor, Tensor], Any]) -> TextDenoiser:
    """Make a denoiser of equally probable words, each call of which is seen: (tokens_AL, t_A)."""

    def words(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor) -> Tensor:
        see(tokens_AL, t_A)
        return torch.zeros(*tokens_AL.shape, WORDS)

    return denoiser(words)


def constant(probabilities: list[float]) -> TextDenoiser:
    """Make a denoiser with the same distribution everywhere."""
    log_probs_V = torch.zeros(WORDS).index_copy(0, torch.arange(len(probabilities)), torch.tensor(probabilities)).log()
    return denoiser(lambda tokens_AL, t_A, rows_A: log_probs_V.expand(*tokens_AL.shape, WORDS))


def context(*, timed: bool = False, sharpness: float = 1.0) -> TextDenoiser:
    """Make a denoiser that depends on the position and the tokens of the same text, and with `timed` on the time."""
    table = torch.randn(64, WORDS, generator=torch.Generator().manual_seed(3)) * sharpness

    def words(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor) -> Tensor:
        seen_A = torch.where(tokens_AL < WORDS, tokens_AL + 1, 0).sum(dim=1)
        out_ALV = table[(torch.arange(tokens_AL.shape[1]) * 7 + seen_A[:, None] * 3) % 64]
        return out_ALV * (1 + t_A[:, None, None]) if timed else out_ALV

    return denoiser(words)


def overfit(texts_BL: Tensor) -> TextDenoiser:
    """Make a denoiser that is certain of the words of each text of the request."""
    certain_BLV = 60.0 * torch.nn.functional.one_hot(texts_BL.clamp(max=WORDS - 1), WORDS).float()
    return denoiser(lambda tokens_AL, t_A, rows_A: certain_BLV[rows_A][:, : tokens_AL.shape[1]])


@dataclasses.dataclass
class Exact:
    """Texts of L words with a joint distribution, (V,) · L, and everything about them by enumeration."""

    joint: Tensor

    def __post_init__(self) -> None:
        words, length = self.joint.shape[0], self.joint.dim()
        self.states_SL = torch.cartesian_prod(*[torch.arange(words)] * length).view(-1, length)
        self.p_S = self.joint.flatten()

    def conditional(self, tokens_AL: Tensor) -> Tensor:
        """Compute p(word at each position | the words that are not masked) (A, L, V)."""
        fits_AS = ((tokens_AL[:, None] == self.states_SL) | (tokens_AL[:, None] == MASK)).all(dim=2) * self.p_S
        is_word_SLV = torch.nn.functional.one_hot(self.states_SL, self.joint.shape[0]).double()
        found_ALV = torch.einsum("as,slv->alv", fits_AS.double(), is_word_SLV)
        return found_ALV / found_ALV.sum(dim=2, keepdim=True).clamp_min(1e-300)

    def denoiser(self) -> TextDenoiser:
        missing = (0, WORDS - self.joint.shape[0])

        def words(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor) -> Tensor:
            return torch.nn.functional.pad(self.conditional(tokens_AL), missing).log().clamp_min(-100)

        return denoiser(words)

    def after(self, steps: int, *, unmask: Callable[[int], float], remask: Callable[[int], float]) -> Tensor:
        """Compute the distribution of texts after steps that unmask and remask each position independently (S,)."""
        now = {(MASK,) * self.joint.dim(): 1.0}
        for step in range(steps):
            then: dict[tuple[int, ...], float] = {}
            for state, p in now.items():
                choices = self.conditional(torch.tensor([state]))[0].tolist()
                ends: dict[tuple[int, ...], float] = {(): p}
                for place, token in enumerate(state):
                    if token == MASK:
                        moves = {word: unmask(step) * q for word, q in enumerate(choices[place])}
                        moves[MASK] = 1 - unmask(step)
                    else:
                        moves = {token: 1 - remask(step), MASK: remask(step)}
                    ends = {(*end, word): q * move for end, q in ends.items() for word, move in moves.items() if move}
                for end, q in ends.items():
                    then[end] = then.get(end, 0.0) + q
            now = then
        return torch.tensor([now.get(tuple(state), 0.0) for state in self.states_SL.tolist()], dtype=torch.float64)

    def frequencies(self, tokens_BL: Tensor) -> Tensor:
        """Count how often each text occurs, as a fraction (S,)."""
        same_S = torch.tensor([(tokens_BL == state).all(dim=1).sum() for state in self.states_SL])
        return same_S.double() / len(tokens_BL)


def agrees(found: Tensor, expected: Tensor, *, count: int, errors: float = 5.0) -> None:
    """Fail unless fractions among `count` independent draws lie within some standard errors of the expected ones."""
    error = (expected * (1 - expected) / count).sqrt().clamp_min(1 / count)
    assert ((found - expected).abs() / error).max() < errors, (found, expected)


class Counted:
    """Denoiser that counts the model calls, and those in which each text took part."""

    def __init__(self, inner: Any, count: int) -> None:
        self.calls, self.per_row = 0, torch.zeros(count, dtype=torch.long)
        counted = {
            name: self._counting(value)
            for name, value in vars(inner).items()
            if name in ("logits", "unconditional") and value
        }
        self.denoise = dataclasses.replace(inner, **counted)

    def _counting(self, logits: Any) -> Any:
        def call(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            self.calls, self.per_row = self.calls + 1, self.per_row.index_add(0, rows_A, torch.ones_like(rows_A))
            assert bool((t_A >= 0).all())
            assert bool((t_A <= 1).all())
            return logits(tokens_AL, t_A, rows_A, asked_AL)

        return call


def conforms(sampler: Any, denoise: Any, process: TextProcess | None) -> None:
    """Check what every text sampler promises, on a batch with given tokens and texts of several lengths."""
    tokens_BL = canvas(9, 3, 12, 1, 7)
    tokens_BL[0, 2:5], tokens_BL[2, 0] = torch.tensor([1, 2, 3]), 7
    open_BL, count = tokens_BL == MASK, len(tokens_BL)
    counted = Counted(denoise, count)

    def run(tokens_BL: Tensor, generator: RowGenerator, model: Any = denoise, **more: Any) -> TextSample:
        return sampler.sample(Canvas(denoise=model, tokens=tokens_BL, process=process, generator=generator, **more))

    made = run(tokens_BL, rows(count), counted.denoise)
    assert torch.equal(made.tokens[~open_BL], tokens_BL[~open_BL]), "given tokens and pads stay"
    assert bool((made.tokens[open_BL] < WORDS).all()), "no mask is left, and nothing but words is written"
    assert bool((made.log_probs <= 1e-6).all())
    assert bool(made.log_probs.isfinite().all())
    assert bool((made.log_probs[~open_BL] == 0).all())
    assert bool((made.steps[~open_BL] == -1).all())
    assert bool((made.steps >= -1).all())
    assert made.model_calls == counted.calls
    assert torch.equal(made.calls_per_row, counted.per_row)
    bounds = [sampler.most_calls(int(length)) for length in (tokens_BL != PAD).sum(dim=1)]
    assert bool((made.calls_per_row <= torch.tensor(bounds)).all())

    recorder = Recorder(sampler, count, pad_id=PAD)
    traced = recorder.sample(Canvas(denoise=denoise, tokens=tokens_BL, process=process, generator=rows(count)))
    recorded(recorder, made, traced)
    again, other = run(tokens_BL, rows(count)), run(tokens_BL, rows(count, seed=1))
    assert torch.equal(again.tokens, made.tokens), "the seed decides"
    if getattr(getattr(sampler, "draw", sampler), "temperature", 1.0) > 0:
        assert not torch.equal(other.tokens, made.tokens)
    for alone in ([2], [3, 0]):  # the sample of a text depends on its row, not on its batch or its padding
        some = torch.tensor(alone)
        part_BL = torch.nn.functional.pad(tokens_BL[some], (0, 4), value=PAD)
        shuffled = denoise if not hasattr(denoise, "picked") else denoise.picked(some)
        part = run(part_BL, RowGenerator(0, some), shuffled)
        assert torch.equal(part.tokens[:, : tokens_BL.shape[1]], made.tokens[some])
        assert torch.equal(part.calls_per_row, made.calls_per_row[some])
        assert torch.equal(part.steps[:, : tokens_BL.shape[1]], made.steps[some])
    half_BL = open_BL & (torch.arange(tokens_BL.shape[1]) % 2 == 0)
    half = run(tokens_BL, rows(count), open=half_BL)
    assert torch.equal(half.tokens[~half_BL], tokens_BL[~half_BL]), "positions that are not open stay masks"
    assert bool((half.tokens[half_BL] < WORDS).all())
    nothing = run(made.tokens, rows(count))
    assert torch.equal(nothing.tokens, made.tokens)


def recorded(recorder: Recorder, made: TextSample, traced: TextSample) -> None:
    """Check that tracing changes nothing of a sample, and that the frames lead to it."""
    for name, value in vars(made).items():
        assert torch.equal(torch.as_tensor(getattr(traced, name)), torch.as_tensor(value)), f"tracing changes {name}"
    for row, frames in enumerate(recorder.frames):
        for before, frame in itertools.pairwise(frames):
            grows = len(frame.tokens) > len(before.tokens) + 1
            assert not (grows and (frame.words >= 0).any()), "what is inserted is seen before it is written"
        real_L = made.tokens[row] != recorder.pad_id
        assert frames[-1].tokens == tuple(made.tokens[row][real_L].tolist()), "the last frame is the text"
        assert sum((frame.words >= 0).any() for frame in frames) <= int(made.calls_per_row[row])
        count, seen = int(real_L.sum()), list[Tensor]()
        for frame in frames:
            numbers_LN = torch.from_numpy(frame.numbers)
            seen_L = ~numbers_LN[:, -1].isnan()
            assert bool((numbers_LN[seen_L, :MOST_PROBABLE].diff(dim=1) <= 0).all()), "the most probable word is first"
            assert bool((numbers_LN[seen_L, -1] >= 0).all()), "entropies"
            seen.append(torch.nn.functional.pad(numbers_LN[:, -2], (0, count - len(frame.tokens)), value=torch.nan))
        seen_FL, found_L = torch.stack(seen), made.log_probs[row][real_L].double().exp()
        if len({len(frame.tokens) for frame in frames}) > 1:  # a token may have moved since it was written
            seen_FL = seen_FL.reshape(-1, 1)
        distance_L = (seen_FL - found_L).abs().nan_to_num(2.0).amin(dim=0)
        assert bool((distance_L[made.steps[row][real_L] >= 0] < 1e-6).all()), (
            "with which probability a word was written"
        )


def rebuilds(sampler: Any, process: TextProcess | None) -> None:
    """Check that a sampler writes the texts that the model is certain of, from masks only."""
    texts_BL = torch.randint(WORDS, (6, 10), generator=torch.Generator().manual_seed(1))
    made = sampler.sample(
        Canvas(denoise=overfit(texts_BL), tokens=canvas(*[10] * 6), process=process, generator=rows(6))
    )
    assert torch.equal(made.tokens, texts_BL)
