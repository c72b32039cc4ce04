"""Search: never worse than no search, with counted costs."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.toys import MASK, PAD, rows

from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.search import Drafts, SearchConfig, _best, least_certain, search, with_spans, with_swaps

TARGETS = torch.tensor([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [1, 1, 1, 1, 1, 1]])


class Bench:
    """Writes random words, a fraction of which is right, for all targets or each, and more certain there; the cosine is
    the fraction right.
    """

    def __init__(self, right=0.5, certain=-0.1, cost=(3, 3, 3)):
        self.right, self.certain, self.encoded, self.asked, self.cost = right, certain, 0, [], torch.tensor(cost)

    def write(self, canvas, target, generator, how, latents):
        assert torch.equal(latents, PLACES[target])
        self.asked += [how] * len(canvas)
        u = generator.fork("w").uniform(canvas.shape[1])
        good = u < torch.as_tensor(self.right).expand(3)[target][:, None]
        words = torch.where(good, TARGETS[target], (TARGETS[target] + 1) % 6)
        tokens = torch.where(canvas == MASK, words, canvas)
        log_probs = torch.where(canvas == MASK, torch.where(good, self.certain, -2.0), 0.0)
        return TextSample(tokens, log_probs, torch.zeros_like(tokens), self.cost[target], 3)

    def reembed(self, tokens, target):
        self.encoded += len(tokens)
        return (tokens == TARGETS[target]).float().mean(1), PLACES[target]


def without_errors(cosines):
    return cosines, torch.zeros(len(cosines), 1)


PLACES = torch.arange(3.0)[:, None]
"""Latents of three targets, the first of which is 0"""


def run(bench=None, canvas=None, price=0, child=None, at_once=1_000, advance=bool, **config):
    bench = bench or Bench()
    config = SearchConfig(**({"candidates": 4, "rounds": 2} | config))
    canvas = torch.full((3, config.candidates, 6), MASK) if canvas is None else canvas
    return bench, search(
        canvas, config=config, write=bench.write, reembed=bench.reembed, latents_Bd=PLACES, mask_id=MASK, pad_id=PAD,
        generator=rows(3), prices={how: torch.tensor(price if how != "child" or child is None else child)
                                   for how in ("first", "drawn", "child")},
        at_once=at_once, advance=advance,
    )  # fmt: skip


def test_more_search_is_never_worse():
    results = [run(rounds=rounds)[1] for rounds in range(5)]
    for fewer, more in itertools.pairwise(results):
        assert (more.cosines >= fewer.cosines).all()
    first = run(candidates=1, rounds=0)[1]
    assert results[-1].cosines.mean() > first.cosines.mean() + 0.2
    uncertain = [run(Bench(certain=-2.0), candidates=2, rounds=rounds)[1] for rounds in range(6)]
    for fewer, more in itertools.pairwise(uncertain):  # children are often worse here: parents must be able to win
        assert (more.cosines >= fewer.cosines).all()
    for result in results:
        assert (result.cosines >= first.cosines).all()
        assert torch.equal(result.cosines, (result.tokens == TARGETS).float().mean(1))
        assert (result.log_probs < 0).all(), "also of the tokens that a round did not write again"


def test_costs_are_counted():
    steps = []
    bench, result = run(candidates=3, rounds=2, good_enough=2.0, advance=steps.append)
    assert int(result.encoder_calls_per_row.sum()) == bench.encoded
    assert result.model_calls_per_row.tolist() == [3 * 3 * 3] * 3  # three calls a sample, K + R·K samples
    run(candidates=3, rounds=9, good_enough=0.7, advance=steps.append)
    assert sum(steps) == 3 * 2 + 3 * 9, "rounds that are done or not needed"
    few_at_once = run(candidates=3, rounds=2, good_enough=2.0, at_once=2)[1]
    assert all(torch.equal(vars(few_at_once)[name], value) for name, value in vars(result).items())


@given(
    st.integers(5, 90), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9), st.floats(0, 1), st.floats(0.1, 0.9)
)
def test_a_search_within_calls_never_exceeds_them_and_more_calls_are_never_worse(
    calls, candidates, beam, rounds, infill, right
):
    settings = {
        "candidates": candidates,
        "beam": beam,
        "rounds": rounds,
        "infill": infill,
        "swap": infill / 2,
        "good_enough": 0.99,
    }
    cost, found = (1, 3, 5), torch.tensor([1.0, right, right])  # the first target at once
    within, more, free = (
        run(Bench(found, cost=cost), price=cost, calls=most, **settings)[1] for most in (calls, calls + 7, None)
    )  # fmt: skip
    assert int(within.model_calls_per_row.max()) <= calls
    assert (within.model_calls_per_row <= more.model_calls_per_row).all()
    assert (within.cosines <= more.cosines).all()
    assert (more.cosines <= free.cosines).all()
    done = (within.cosines >= 0.99) | (within.model_calls_per_row > calls - torch.tensor(cost))
    assert (done | (within.model_calls_per_row == free.model_calls_per_row)).all(), "all calls that it may make"


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 2))
def test_a_search_is_planned_for_every_number_of_calls(calls, price, lengths):
    planned = SearchConfig.within(calls * price, price=price, lengths=lengths)
    assert planned.enabled
    assert (planned.infill > 0) == (lengths > 1), "a given length stays"
    assert planned.lengths <= min(lengths, planned.candidates)


def test_the_same_text_is_embedded_once_and_candidates_differ():
    assert [run(Bench(right), rounds=0)[0].encoded for right in (1.0, 0.5)] == [3, 3 * 4]


def test_a_beam_holds_distinct_texts():
    texts = torch.tensor([[[1, 2], [1, 2], [3, 4], [1, 2], [5, 6]]])
    zeros = torch.zeros(1, 5, 2)
    kept = _best(Drafts(texts, zeros, zeros == 0, torch.tensor([[0.9, 0.9, 0.5, 0.9, 0.7]]), zeros[..., :1]), 3)
    assert kept.tokens[0].tolist() == [[1, 2], [5, 6], [3, 4]]


@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(1, 2))
def test_a_child_that_is_given_the_error_of_its_parent_corrects_a_model_that_misreads_every_target(targets, shift):
    latents = torch.tensor(targets)[:, None] + 2.0

    def write(canvas, target, generator, how, read):
        tokens = torch.where(canvas == MASK, (read - shift).round().long(), canvas)
        return TextSample(tokens, torch.zeros(tokens.shape), tokens, torch.ones(len(tokens), dtype=torch.long), 1)

    def reembed(tokens, target):
        return 1 - (latents[target] - tokens).abs()[:, 0] / 10, tokens.float()

    found = search(
        torch.full((3, 1, 1), MASK), config=SearchConfig(rounds=2), write=write, reembed=reembed,
        latents_Bd=latents, mask_id=MASK, pad_id=PAD, generator=rows(3),
    )  # fmt: skip
    assert found.tokens.tolist() == [[target + 2] for target in targets]


def test_each_target_has_its_own_rounds_and_calls():
    """The second target is found at once, apart from a given token, and the others never are."""
    canvas = torch.full((3, 4, 6), MASK)
    canvas[:, :, 0] = 7
    _, result = run(Bench(torch.tensor([0.0, 1.0, 0.0])), canvas, rounds=3, good_enough=0.8)
    assert result.model_calls_per_row.tolist() == [3 * (4 + 3 * 4), 3, 3 * (4 + 3 * 4)]


def test_the_best_of_a_beam_decides_whether_a_target_is_good_enough():
    """The first candidate is poor and the second right: no round is needed, whatever else the beam keeps."""
    bench = Bench()

    def write(canvas, target, generator, how, latents):
        bench.right = 0.0 if how == "first" else 1.0
        return bench.write(canvas, target, generator, how, latents)

    config = SearchConfig(candidates=2, rounds=3, beam=2, good_enough=0.9)
    found = search(
        torch.full((3, 2, 6), MASK), config=config, write=write, reembed=bench.reembed, latents_Bd=PLACES, mask_id=MASK, pad_id=PAD,
        generator=rows(3),
    )  # fmt: skip
    assert (found.cosines == 1).all()
    assert found.model_calls_per_row.tolist() == [3 * 2] * 3


def test_only_masks_are_written():
    canvas = torch.full((3, 4, 6), MASK)
    canvas[:, :, 2] = 7
    _, result = run(canvas=canvas)
    assert (result.tokens[:, 2] == 7).all()
    _, same = run(canvas=TARGETS[:1, None].expand(3, 4, 6).contiguous())  # without masks
    assert torch.equal(same.cosines, (TARGETS[0] == TARGETS).float().mean(1)), "each to its own target"
    canvas[:, 0, 2:] = PAD
    _, few = run(Bench(cost=(1, 1, 1)), canvas, price=9, child=1, calls=9, beam=4, rounds=8)
    assert (few.tokens[:, 2:] == PAD).all(), "the canvases of other lengths were not begun"


def test_the_first_text_of_every_length_is_greedy():
    canvas = torch.full((3, 4, 6), MASK)
    canvas[:, 1::2, 5] = PAD  # lengths 6, 5, 6, 5
    assert run(canvas=canvas, rounds=0)[0].asked == ["first"] * 6 + ["drawn"] * 6
    assert run(rounds=0)[0].asked == ["first"] * 3 + ["drawn"] * 9


class Spelling(Bench):
    """A model that fills each mask with the target's token and is uncertain of the tokens that differ from it."""

    def write(self, canvas, target, generator, how, latents):
        words = torch.where(canvas == MASK, TARGETS[target][:, : canvas.shape[1]], canvas)
        wrong = (words != TARGETS[target]) & (words != PAD)
        ones = torch.ones(len(canvas), dtype=torch.long)
        return TextSample(words, torch.where(wrong, -5.0, -0.1), torch.zeros_like(words), ones, 1)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_text_that_starts_too_short_grows_only_with_infill_and_without_given_tokens(missing):
    canvas = torch.full((3, 4, 6), MASK)
    canvas[:, :, 6 - missing :] = PAD
    settings = {"rounds": 25, "remask_ratio": 0.1}
    _, fixed = run(Spelling(), canvas=canvas, **settings)
    assert (fixed.tokens[:, 5] == PAD).all()
    _, grown = run(Spelling(), canvas=canvas, infill=0.6, **settings)
    assert (grown.cosines == 1).all()
    assert torch.equal(grown.tokens, TARGETS)
    held = canvas.clone()
    held[:, :, 2] = 7  # a given token: the text keeps its length
    _, kept = run(Spelling(), canvas=held, infill=1.0, **settings)
    assert (kept.tokens[:, 2] == 7).all()
    assert (kept.tokens[:, 5] == PAD).all()


@given(st.permutations(range(1, 6)), st.integers(0, 9), st.booleans(), st.integers(0, 9))
def test_a_near_text_that_ten_rounds_in_a_row_do_not_improve_is_tried_with_all_its_swaps_unless_a_token_is_given(
    words, seed, given, improving
):
    words, target, number = [0, *words], list(range(6)), itertools.count()
    canvas = torch.tensor([[[words[0] if given else MASK] + [MASK] * 5]])
    spans = ((words[:a], words[a:b], words[b:c], words[c:]) for a, b, c in itertools.combinations(range(1, 7), 3))
    near = not given and any(head + second + first + tail == target for head, first, second, tail in spans)

    def write(canvas, target, generator, how, latents):
        tokens = torch.where(canvas == MASK, torch.tensor(words) * (next(number) >= improving), canvas)
        return TextSample(tokens, torch.zeros(1, 6), tokens, torch.ones(1, dtype=torch.long), 1)

    def reembed(tokens, _):
        return without_errors(0.985 + 0.005 * tokens.any(1) + 0.01 * (tokens == torch.tensor(target)).all(1))

    found = search(
        canvas, config=SearchConfig(rounds=22, swap=1e-9, calls=22, remask_ratio=1.0), write=write,
        latents_Bd=PLACES[:1], mask_id=MASK, reembed=reembed, pad_id=PAD, generator=rows(1, seed=seed),
    )  # fmt: skip
    assert (found.tokens[0].tolist() == target) == (near or words == target)
    calls = found.model_calls_per_row.item()
    assert calls == (1 + improving if words == target else 11 + improving if near else 22), "then children again"


def test_swaps_are_tried_again_whenever_no_round_improves_a_text():
    """Two pairs of words of the second text have to change places, one after the other, and a child is never better."""
    words, targets = torch.tensor([[[5, 4, 3, 2, 1, 0], [0, 2, 1, 3, 5, 4]], [[5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]]])

    def write(canvas, live, generator, how, latents):
        tokens = torch.where(canvas == MASK, words[live] if how == "first" else 0, canvas)
        return TextSample(tokens, torch.zeros(tokens.shape), tokens, torch.ones(len(live), dtype=torch.long), 1)

    found = search(
        torch.full((2, 1, 6), MASK), config=SearchConfig(rounds=30, swap=1e-9, remask_ratio=0.0, good_enough=1.0),
        write=write, latents_Bd=PLACES[:2], mask_id=MASK, pad_id=PAD, generator=rows(2),
        reembed=lambda tokens, live: without_errors(0.985 + 0.015 * (tokens == targets[live]).float().mean(1)),
    )  # fmt: skip
    assert torch.equal(found.tokens, targets)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.floats(0, 1), st.integers(0, 99))
def test_a_swap_moves_words_of_the_parent_and_keeps_given_tokens(lengths, fraction, seed):
    place_L = torch.arange(7)
    real_TL = place_L < torch.tensor(lengths)[:, None]
    parent = Drafts(
        torch.where(real_TL, place_L, PAD),
        -place_L * real_TL * 1.0,
        real_TL,
        *without_errors(torch.zeros(len(lengths))),
    )
    given = parent._replace(writable=real_TL & (place_L != 1))
    other = parent._replace(tokens=torch.full_like(parent.tokens, 8))
    for draft in (parent, given):
        made, again_TL = with_swaps(
            other, real_TL, parent=draft, fraction=fraction, pad_id=PAD, generator=rows(len(lengths), seed=seed)
        )
        for row, length in enumerate(lengths):
            words = made.tokens[row, :length].tolist()
            if words == [8] * length:
                assert torch.equal(again_TL[row], real_TL[row])
                continue
            assert draft is parent or length < 2
            assert sorted(words) == list(range(length)) != words
            assert sum(b != a + 1 for a, b in itertools.pairwise(words)) <= 3, "two spans changed places"
            assert made.log_probs[row, :length].tolist() == [-word for word in words]
            moved = words[0] != 0
            assert again_TL[row].nonzero().squeeze(1).tolist() == ([0, words.index(0)] if moved else [])


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_a_span_gives_way_to_masks_and_masking_takes_its_fraction(lengths, fraction, ratio, seed):
    generator, count = rows(len(lengths), seed=seed), len(lengths)
    place_L = torch.arange(7)
    real_TL = place_L < torch.tensor(lengths)[:, None]
    tokens_TL = torch.where(real_TL, place_L % 5, PAD)
    log_probs_TL = -generator.fork("p").uniform(7) * real_TL
    draft = Drafts(tokens_TL, log_probs_TL, real_TL, *without_errors(torch.zeros(count)))
    made, again_TL = with_spans(
        draft, torch.zeros_like(real_TL), fraction=fraction, widest=ratio, mask_id=MASK, pad_id=PAD, generator=generator
    )
    for row, before in enumerate(lengths):
        after, hole = int((made.tokens[row] != PAD).sum()), int(again_TL[row].sum())
        assert -1 <= after - before <= 2 * (fraction > 0)
        assert (after >= 1) == (before >= 1)
        start = int(again_TL[row].int().argmax()) if hole else None
        kept, words = (
            [*zip(tokens[row, :length].tolist(), log_probs[row, :length].tolist(), strict=True)]
            for tokens, log_probs, length in ((tokens_TL, log_probs_TL, before), (made.tokens, made.log_probs, after))
        )
        gone = before - after + hole
        assert gone <= 1 + ratio * before
        places = range(before) if start is None else [start]
        assert any(words[:at] + words[at + hole :] == kept[:at] + kept[at + gone :] for at in places) or not before
        assert torch.equal(made.writable[row], made.tokens[row] != PAD)
    chosen_TL = least_certain(draft, fraction=ratio, noise=0.0, generator=generator)
    for row, length in enumerate(lengths):
        expected = min(length, max(1, round(length * ratio)))
        assert int(chosen_TL[row].sum()) == expected
        if 0 < expected < length:
            assert log_probs_TL[row][chosen_TL[row]].max() <= log_probs_TL[row][~chosen_TL[row] & real_TL[row]].min()
