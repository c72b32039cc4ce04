"""Search and blocks keep the rows of a batch apart: the same text for several targets, canvases of several lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.blocks import _window
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample
from mm_ldlm.sampling.search import _Encoder, search

MASK, PAD = 8, 9


class Fixed:
    """A model that fills every mask with the word 1; the cosine of a text depends on its target alone, or on pads."""

    def __init__(self, cosines: list[float], *, pads: float = 0.0) -> None:
        self.cosines, self.pads = torch.tensor(cosines), pads
        self.canvases: list[Any] = []
        self.asked: list[tuple[list[int], int]] = []

    def write(self, canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
        self.canvases.append(canvas)
        tokens, ones = torch.where(canvas == MASK, 1, canvas), torch.ones(len(canvas), dtype=torch.long)
        return TextSample(tokens, torch.where(canvas == MASK, -1.0, 0.0), torch.zeros_like(tokens), ones, 1)

    def nearness(self, tokens: Any, target: Any) -> Any:
        self.asked += zip(tokens.tolist(), target.tolist(), strict=True)
        return self.cosines[target] + self.pads * (tokens == PAD).float().mean(1)


def searched(bench: Fixed, canvas: Any, **config: Any) -> Any:
    return search(
        canvas, config=SearchConfig(**({"candidates": canvas.shape[1], "good_enough": 2.0} | config)),
        write=bench.write, nearness=bench.nearness, mask_id=MASK, pad_id=PAD,
        generator=RowGenerator(0, torch.arange(len(canvas))),
    )  # fmt: skip


@pytest.mark.parametrize("rounds", [0, 2])
def test_the_same_text_has_a_cosine_of_its_own_to_each_target(rounds: int) -> None:
    bench = Fixed([0.1, 0.7, 0.4])
    found = searched(bench, torch.full((3, 2, 4), MASK), rounds=rounds)
    assert found.cosines.tolist() == pytest.approx([0.1, 0.7, 0.4])
    assert found.first_cosines.tolist() == pytest.approx([0.1, 0.7, 0.4])
    assert sorted(bench.asked) == [([1] * 4, target) for target in range(3)], "once for each target"
    assert found.encoder_calls_per_row.tolist() == [1, 1, 1]


@pytest.mark.parametrize("order", [[0, 1, 2, 0, 1], [2, 2, 1, 0, 2]])
def test_a_cosine_is_remembered_for_its_text_and_its_target(order: list[int]) -> None:
    bench = Fixed([0.1, 0.7, 0.4])
    encoder = _Encoder(bench.nearness, 3, torch.device("cpu"))
    target = torch.tensor(order)
    texts = torch.tensor([[number % 2, 3] for number in range(len(order))])
    for _ in range(2):
        assert encoder(texts, target).tolist() == pytest.approx(bench.cosines[target].tolist())
    pairs = {(tuple(text), row) for text, row in zip(texts.tolist(), order, strict=True)}
    assert sorted((tuple(text), row) for text, row in bench.asked) == sorted(pairs), "nothing is embedded twice"
    assert encoder.calls_B.tolist() == [sum(row == target for _, row in pairs) for target in range(3)]


def test_the_sentences_that_are_embedded_are_counted_for_their_own_target() -> None:
    """The second target is found with its first text; only the others draw and embed further ones."""

    class Counting(Fixed):
        def write(self, canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
            made = super().write(canvas, target, generator, greedy)
            number = len(self.canvases)
            return TextSample(
                torch.where(canvas == MASK, number, canvas), made.log_probs, made.steps, made.calls_per_row, 1
            )  # fmt: skip

    found = searched(Counting([0.1, 0.95, 0.2]), torch.full((3, 3, 4), MASK), good_enough=0.9, rounds=0)
    assert found.encoder_calls_per_row.tolist() == [3, 1, 3]
    assert found.model_calls_per_row.tolist() == [3, 1, 3]
    assert found.first_cosines.tolist() == pytest.approx([0.1, 0.95, 0.2])


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_each_candidate_is_rewritten_at_the_positions_of_its_own_canvas(beam: int) -> None:
    """The shorter candidates are the nearer ones: their children may not write where only the longest has words."""
    canvas = torch.full((2, 3, 6), MASK)
    canvas[:, 1, 3:], canvas[:, 2, 4:] = PAD, PAD
    canvas[1, 1, 0], canvas[1, 2, 0], canvas[1, 0, 0] = 5, 5, 5  # a given word
    bench = Fixed([0.0, 0.0], pads=1.0)
    found = searched(bench, canvas, rounds=3, beam=beam, remask_ratio=1.0)
    assert found.tokens.tolist() == [[1, 1, 1, PAD, PAD, PAD], [5, 1, 1, PAD, PAD, PAD]]
    for children in bench.canvases[3:]:
        for row, child in enumerate(children.tolist()):
            parents = [
                start for start in canvas[row].tolist() if [t == PAD for t in start] == [t == PAD for t in child]
            ]
            assert parents, "no child is longer or shorter than the canvas of its parent"
            assert child == parents[0], "with a ratio of 1 every writable position is masked again, and no other"


def test_a_beam_may_be_wider_than_the_candidates() -> None:
    found = searched(Fixed([0.3, 0.6]), torch.full((2, 1, 4), MASK), rounds=2, beam=3)
    assert (found.cosines.tolist(), found.rounds_taken.tolist()) == (pytest.approx([0.3, 0.6]), [2, 2])


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "block", "window", "length", "seen"),
    [
        (4, 4, None, 10, (0, 10)),
        (4, 4, 10, 8, (0, 8)),
        (8, 4, 10, 30, (0, 10)),
        (12, 4, 12, 30, (0, 12)),
        (12, 4, 10, 30, (4, 12)),
        (16, 4, 10, 30, (8, 16)),
        (32, 4, 10, 30, (24, 30)),
        (6, 1, 5, 9, (1, 6)),
        (12, 6, 6, 30, (6, 12)),
    ],
)
def test_the_window_of_a_block_is_a_whole_number_of_blocks(
    end: int, block: int, window: int | None, length: int, seen: tuple[int, int]
) -> None:
    found = _window(end, block_length=block, window=window, length=length)
    assert (found.start, found.stop) == seen


def test_blocks_add_up_the_steps_and_calls_and_keep_the_log_probabilities_of_each_text(write: Any, rows: Any) -> None:
    """Ten, three and no masks in blocks of four, two steps each: three blocks, one, and none."""
    log_p = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()

    def logits(tokens: Any, t: Any) -> Any:
        return log_p.expand(*tokens.shape, 4)

    denoise = TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=4)
    tokens = torch.full((3, 10), MASK)
    tokens[1, 3:], tokens[2], tokens[0, 5] = PAD, 2, 3
    found = write("blocks", denoise, tokens, rows(3), block_length=4, inner={"kind": "random", "steps": 2})
    assert found.calls_per_row.tolist() == [6, 2, 0]
    assert found.model_calls == 6
    masked = tokens == MASK
    assert torch.equal(found.tokens[~masked], tokens[~masked])
    assert torch.allclose(found.log_probs[masked], log_p[found.tokens[masked]])
    assert (found.log_probs[~masked] == 0).all()
    assert (found.steps[~masked] == -1).all()
    assert [sorted({*part.tolist()} - {-1}) for part in found.steps[0].split(4)] == [[0, 1], [2, 3], [4, 5]]
    assert sorted({*found.steps[1].tolist()}) == [-1, 0, 1]


def test_a_block_that_fills_the_window_is_written(write: Any, rows: Any, context_denoiser: Any, canvas: Any) -> None:
    inner = {"kind": "confidence", "steps": 1}
    found = write("blocks", context_denoiser(), canvas(13), rows(1), window=6, block_length=6, inner=inner)
    assert (found.tokens < MASK).all()
    with pytest.raises(SamplingError, match="block_length 7 exceeds the 6 positions"):
        write("blocks", context_denoiser(), canvas(13), rows(1), window=6, block_length=7, inner=inner)
