"""Pieces of samplers against closed forms: guidance at its ends, filters, the pool of a search, kept tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling import search as searching
from mm_ldlm.sampling.denoising import Prediction, TextDenoiser, TextSample
from mm_ldlm.sampling.guidance import guide_log_probs
from mm_ldlm.sampling.logit_filters import filter_logits
from mm_ldlm.sampling.orders import masks_left, top_by_row
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.search import _best, _Pool

MASK, PAD = 8, 9
INF = float("inf")


# -- guidance and filters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.25, 1.0, 3.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_the_condition_excludes_stays_excluded_and_only_that(scale: float, dtype: torch.dtype) -> None:
    conditional = torch.tensor([[0.0, 0.5, 0.3, 0.2]], dtype=dtype).log()
    unconditional = torch.tensor([[0.4, 0.1, 0.2, 0.3]], dtype=dtype).log()
    found = guide_log_probs(conditional, unconditional, scale=scale)
    raw = (scale * conditional + (1 - scale) * unconditional)[0, 1:].double()
    assert torch.isneginf(found[0, 0])
    torch.testing.assert_close(found[0, 1:].double(), raw.log_softmax(0), atol=1e-2 if scale > 9 else 1e-5, rtol=0)


@pytest.mark.parametrize(("scale", "expected"), [(0.5, 0.0), (1.0, 0.5), (2.0, 1.0), (3.0, 1.0), (1000.0, 1.0)])
def test_a_word_that_is_possible_only_under_the_condition(scale: float, expected: float) -> None:
    """Guidance above 1 moves away from the other distribution, and so to what it excludes; no number is NaN."""
    conditional, unconditional = (torch.tensor([p]).log() for p in ([0.5, 0.3, 0.2, 0.0], [0.0, 0.6, 0.4, 0.0]))
    found = guide_log_probs(conditional, unconditional, scale=scale)[0]
    assert float(found[0].exp()) == pytest.approx(expected, abs=1e-6)
    assert not found.isnan().any()
    assert torch.isneginf(found[3])
    assert float(found.exp().sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("k", range(1, 7))
def test_exactly_the_largest_logits_stay(k: int) -> None:
    logits = torch.tensor([[0.1, 2.0, -1.0, 0.7, 1.5], [3.0, 2.0, 1.0, 0.0, -1.0]])
    found = filter_logits(logits, top_k=k, temperature=0.5)
    for row in range(2):
        kept = sorted(range(5), key=lambda i: -float(logits[row, i]))[:k]
        expected = [2 * float(logits[row, i]) if i in kept else -INF for i in range(5)]
        assert found[row].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mass", "kept"),
    [(0.47, [2]), (0.48, [0, 2]), (0.77, [0, 2]), (0.78, [0, 2, 4]), (0.94, [0, 1, 2, 4]), (0.99, [0, 1, 2, 3, 4])],
)
def test_the_smallest_set_of_a_mass_stays(mass: float, kept: list[int]) -> None:
    """In the order of the probabilities, 0.475, 0.3, 0.16, 0.05 and 0.015."""
    p = torch.tensor([[0.3, 0.05, 0.475, 0.015, 0.16]])
    found = filter_logits(p.log(), top_p=mass)
    assert torch.isfinite(found)[0].nonzero().flatten().tolist() == kept
    torch.testing.assert_close(found[0, kept], p.log()[0, kept])


@pytest.mark.parametrize(("mass", "kept"), [(0.6, [2]), (0.62, [0, 2])])
def test_the_mass_is_that_of_the_k_largest(mass: float, kept: list[int]) -> None:
    """Of the two largest, 0.475 is 61 %."""
    p = torch.tensor([[0.3, 0.05, 0.475, 0.015, 0.16]])
    assert torch.isfinite(filter_logits(p.log(), top_k=2, top_p=mass))[0].nonzero().flatten().tolist() == kept


@pytest.mark.parametrize(
    ("counts", "expected"),
    [("linear", [7, 5, 2, 0]), ("cosine", [9, 7, 3, 0])],
)
def test_how_many_masks_are_left_after_each_of_four_steps(counts: Any, expected: list[int]) -> None:
    """10·(1 − n/4) and 10·cos(n·π/8): 9.24, 7.07, 3.83, rounded down."""
    assert [int(masks_left(torch.tensor([10]), step=step, steps=4, counts=counts)) for step in range(4)] == expected
    assert masks_left(torch.tensor([4, 0, 8]), step=0, steps=4, counts="linear").tolist() == [3, 0, 6]


# -- kept tokens -------------------------------------------------------------------------------------------------------


def prediction(**values: Any) -> Prediction:
    shape = next(iter(values.values())).shape
    whole: dict[str, Any] = {"evaluated": torch.ones(shape, dtype=torch.bool), "log_prob": torch.zeros(shape),
                             "margin": None, "entropy": None, "rows": torch.arange(shape[0])}  # fmt: skip
    return Prediction(**{**whole, **values})


def test_tokens_at_the_limit_of_certainty_are_kept_with_those_that_are_due() -> None:
    sampler = text_sampler("uncertainty", certain=0.5)
    entropy = torch.tensor([[0.75, 0.5, 0.25, 2.0], [3.0, 1.0, INF, 2.0]])
    evaluated = torch.isfinite(entropy)
    found = sampler.choose(None, prediction(entropy=entropy, evaluated=evaluated), torch.tensor([1, 2]))
    assert found.tolist() == [[False, True, True, False], [False, True, False, True]]


@pytest.mark.parametrize("order", ["certain_first", "uncertain_first"])
def test_the_score_of_a_position_is_its_uncertainty_times_its_importance(order: Any) -> None:
    entropy, importance = torch.tensor([[0.75, 0.5, INF]]), torch.tensor([[0.2, 0.9, 0.4]])
    sampler = text_sampler("uncertainty", order=order)
    made = prediction(entropy=entropy, importance=importance, evaluated=torch.isfinite(entropy))
    sign = 1 if order == "uncertain_first" else -1
    assert sampler.score(None, made)[0].tolist() == pytest.approx([sign * 0.15, sign * 0.45, -INF])
    plain = sampler.score(None, prediction(entropy=entropy, evaluated=torch.isfinite(entropy)))
    assert plain[0].tolist() == pytest.approx([sign * 0.75, sign * 0.5, -INF])


def test_the_importance_is_asked_for_at_the_time_of_the_step(rows: Any, write: Any) -> None:
    times: list[tuple[list[float], list[float]]] = []
    asked: list[list[float]] = []

    def logits(tokens: Any, t: Any, rows_A: Any, at: Any) -> Any:
        asked.append(t.tolist())
        return torch.zeros(int(at.sum()), 10)

    denoise = TextDenoiser(
        logits=logits, mask_id=MASK, pad_id=PAD, vocab_size=8,
        importance=lambda tokens, t: times.append(t.tolist()) or torch.ones(tokens.shape),
    )  # fmt: skip
    write("uncertainty", denoise, torch.full((2, 6), MASK), rows(2), steps=3)
    assert times == asked
    assert len(times) == 3


def test_a_tie_is_won_by_the_earlier_position() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert top_by_row(scores, torch.tensor([1, 2])).tolist() == [
        [False, True, False, False],
        [True, True, False, False],
    ]


def test_a_threshold_is_a_probability_that_is_exceeded() -> None:
    sampler = text_sampler("threshold", threshold=0.5)
    found = sampler.certain(prediction(log_prob=torch.tensor([[0.5, 0.6, 0.4], [0.1, 0.2, 0.3]]).log()))
    assert found.tolist() == [[False, True, False], [False, False, True]]
    every = text_sampler("threshold", threshold=0.0).certain(prediction(log_prob=torch.tensor([[0.1, 0.0]]).log()))
    assert every.tolist() == [[True, False]]


# -- search ------------------------------------------------------------------------------------------------------------


def pool(cosines: list[list[float]], words: list[list[int]]) -> _Pool:
    tokens = torch.tensor(words)[..., None].expand(-1, -1, 3)
    return _Pool(tokens, -tokens.float(), torch.tensor(cosines))


def test_a_repeated_text_comes_after_every_other_one_however_near_it_is() -> None:
    """The last pool has only repeats beside its first text; they are kept where nothing else is left."""
    made = pool([[0.9, 0.9, -0.95, 0.5], [-1.0, 0.2, 0.2, 0.1], [0.3] * 4], [[1, 1, 2, 3], [4, 5, 6, 7], [8] * 4])
    writable = torch.arange(12).view(3, 4, 1).expand(-1, -1, 3)
    for count in (1, 2, 3):
        best, kept = _best(made, writable, count)
        assert best.tokens[:, :, 0].tolist() == [[1, 3, 2][:count], [5, 6, 7][:count], [8] * count]
        assert best.cosines.tolist() == [
            pytest.approx(row[:count]) for row in ([0.9, 0.5, -0.95], [0.2, 0.2, 0.1], [0.3] * 3)
        ]
        assert torch.equal(best.log_probs, -best.tokens.float())
        assert kept[:, :, 0].tolist() == [[0, 3, 2][:count], [5, 6, 7][:count], [8, 9, 10][:count]]


def test_children_are_drafted_with_the_settings_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where to mask and whether to resize are drawn from streams of their own, for each child of each round."""
    seen: dict[str, list[Any]] = {"resized": [], "least_certain": []}

    def watch(name: str) -> None:
        function = getattr(searching, name)

        def watched(draft: Any, *, generator: Any, **how: Any) -> Any:
            seen[name].append((how, tuple(generator.rows.tolist()), generator._key))
            return function(draft, generator=generator, **how)

        monkeypatch.setattr(searching, name, watched)

    watch("resized")
    watch("least_certain")

    def write(canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
        tokens, ones = torch.where(canvas == MASK, 1, canvas), torch.ones(len(canvas), dtype=torch.long)
        return TextSample(tokens, torch.zeros(tokens.shape) - 1, torch.zeros_like(tokens), ones, 1)

    config = SearchConfig(candidates=2, rounds=2, remask_ratio=0.3, remask_noise=0.7, resize=0.9, good_enough=0.8)
    canvas = torch.full((3, 2, 5), MASK)
    canvas[:, :, 4] = PAD
    searching.search(
        canvas, config=config, write=write, mask_id=MASK, pad_id=PAD, generator=RowGenerator(0, torch.arange(3)),
        nearness=lambda tokens, target: torch.tensor([0.1, 0.9, 0.1])[target],
    )  # fmt: skip
    assert [how for how, _, _ in seen["resized"]] == [
        {"fraction": 0.9, "noise": 0.7, "mask_id": MASK, "pad_id": PAD}
    ] * 4
    assert [how for how, _, _ in seen["least_certain"]] == [{"fraction": 0.3, "noise": 0.7}] * 4
    assert {rows for calls in seen.values() for _, rows, _ in calls} == {(0, 2)}, "the second target is found"
    keys = [key for calls in seen.values() for _, _, key in calls]
    assert len(set(keys)) == len(keys) == 8


def test_a_search_without_resizing_draws_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "resized", lambda *_, **__: pytest.fail("a text was resized"))

    def write(canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
        tokens, ones = torch.where(canvas == MASK, 1, canvas), torch.ones(len(canvas), dtype=torch.long)
        return TextSample(tokens, torch.zeros(tokens.shape), torch.zeros_like(tokens), ones, 1)

    found = searching.search(
        torch.full((1, 2, 5), MASK), config=SearchConfig(candidates=2, rounds=2), write=write, mask_id=MASK, pad_id=PAD,
        generator=RowGenerator(0, torch.arange(1)), nearness=lambda tokens, target: torch.zeros(len(target)),
    )  # fmt: skip
    assert int(found.rounds_taken[0]) == 2


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [({}, False), ({"candidates": 2}, True), ({"rounds": 1}, True), ({"beam": 3, "resize": 0.5, "lengths": 4}, False)],
)
def test_a_search_takes_place_with_several_candidates_or_rounds(settings: dict[str, Any], enabled: bool) -> None:
    assert SearchConfig(**settings).enabled is enabled


# -- texts that end themselves -----------------------------------------------------------------------------------------


def test_a_text_that_has_ended_is_filled_with_the_pads_of_the_model() -> None:
    """The model writes 5, 6, … and ends each text after as many words as its row number says."""

    class Counting:
        begin_id, end_id, pad_id = 11, 10, PAD

        def start(self) -> Any:
            made = SimpleNamespace(rows=torch.arange(3), position=0)
            made.keep = lambda mask: setattr(made, "rows", made.rows[mask])
            return made

        def step(self, cache: Any, token_B: Any) -> Any:
            cache.position += 1
            next_B = torch.where(cache.rows < cache.position, self.end_id, 4 + cache.position)
            return 20.0 * torch.nn.functional.one_hot(next_B, 11).float()

    made = text_sampler("autoregressive", temperature=0.0).sample(
        Counting(), torch.full((3, 5), MASK), process=None, generator=RowGenerator(0, torch.arange(3))
    )
    assert made.tokens.tolist() == [[PAD] * 5, [5, PAD, PAD, PAD, PAD], [5, 6, PAD, PAD, PAD]]
    assert made.steps.tolist() == [[-1] * 5, [0, -1, -1, -1, -1], [0, 1, -1, -1, -1]]
    assert (made.calls_per_row.tolist(), made.model_calls) == ([1, 2, 3], 3)
    assert (made.log_probs[made.tokens == PAD] == 0).all()
