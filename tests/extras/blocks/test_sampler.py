"""Blocks from left to right, within the window of the model."""

import itertools
from typing import Any

import pytest
import torch
from tests.sampling.toys import MASK, PAD, build, canvas, context, on, rows, watching

from mm_ldlm.core import ConfigurationError, SamplingError
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.traces import Recorder

INNER = {"kind": "confidence", "steps": 2}


def blocks(block_length: int, **more: Any) -> Any:
    return text_sampler("blocks", block_length=block_length, inner={**INNER, **more})


def test_a_block_is_finished_before_the_next_and_sees_those_before_it() -> None:
    seen: list[Any] = []
    made = blocks(4).sample(on(watching(lambda tokens_AL, t_A: seen.append(tokens_AL[0].clone())), canvas(10)))
    order = made.steps[0].tolist()
    assert all(max(order[start : start + 4]) < min(order[start + 4 :]) for start in (0, 4))
    for tokens in seen:
        first = int((tokens == MASK).nonzero()[0]) // 4 * 4
        assert (tokens[:first] != MASK).all()
        assert (tokens[first + 4 :] == MASK).all()
    assert made.model_calls == len(seen) == blocks(4).most_calls(10) == 6


@pytest.mark.parametrize(("window", "length"), [(4, 9), (8, 8), (8, 21), (10, 21), (21, 21), (None, 21)])
def test_the_model_reads_at_most_its_window_and_all_of_the_block(window: int | None, length: int) -> None:
    reads: list[tuple[int, int]] = []

    def see(tokens_AL: Any, t_A: Any) -> None:
        reads.append((tokens_AL.shape[1], int((tokens_AL[0] != MASK).sum())))

    made = blocks(4).sample(on(watching(see), canvas(length), window=window))
    assert (made.tokens != MASK).all()
    assert max(width for width, _ in reads) == min(window or length, length)
    before = [min(start, length if window is None else window // 4 * 4 - 4) for start in range(0, length, 4)]
    assert [known for _, known in reads[::2]] == before, "each block is read with as many blocks before it as fit"


@pytest.mark.parametrize("window", [8, 10, None])
def test_a_trace_shows_each_block_in_its_text(window: int | None) -> None:
    recorder = Recorder(blocks(4), 1, pad_id=PAD)
    made = recorder.sample(on(context(), canvas(21), window=window))
    (frames,) = recorder.frames
    assert [len(frame.tokens) for frame in frames] == [21] * (made.model_calls + 1)
    for before, frame in itertools.pairwise(frames):
        changed = [old != new for old, new in zip(before.tokens, frame.tokens, strict=True)]
        evaluated = (frame.words[:, 0] >= 0).tolist()
        assert sum(changed) > 0
        assert all(was <= seen for was, seen in zip(changed, evaluated, strict=True))
    assert frames[-1].tokens == tuple(made.tokens[0].tolist())


def test_one_block_is_the_inner_sampler() -> None:
    tokens_BL, inner = canvas(9, 4), text_sampler(**INNER)
    plain = inner.sample(on(context(), tokens_BL, generator=rows(2).fork(0)))
    made = blocks(9).sample(on(context(), tokens_BL))
    for name in ("tokens", "log_probs", "steps", "calls_per_row"):
        assert torch.equal(getattr(made, name), getattr(plain, name))
    assert (made.tokens[1, 4:] == PAD).all()
    begun_BL = tokens_BL.index_fill(1, torch.arange(4), 2)
    assert MASK not in blocks(4).sample(on(context(), begun_BL)).tokens, "a block without masks is left as it is"
    assert blocks(4, guidance=2.0).guidance == 2.0


def test_what_cannot_be_a_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SamplingError, match="block_length 9"):
        blocks(9).sample(on(context(), canvas(20), window=8))
    with pytest.raises(ConfigurationError, match="blocks"):
        text_sampler("blocks", inner={"kind": "blocks", "inner": INNER})
    with pytest.raises(ConfigurationError, match="inner"):
        text_sampler("blocks")
    monkeypatch.setattr(type(blocks(4).inner), "refusal", lambda self, process: "it does not fit")
    assert blocks(4).refusal(build().traits) == "it does not fit"
