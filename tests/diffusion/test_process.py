"""What every text process of the registry has to keep, whatever its noise."""

import math
from typing import Any, get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.components import PROCESSES, SHAPE, labelled, process_of, stores_of
from torch import Tensor

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.nelbo import Likelihood, integrate
from mm_ldlm.diffusion.process import TEXT_PROCESSES, TextProcess
from mm_ldlm.diffusion.random import RowGenerator

V, L, PAD = SHAPE.vocab_size, SHAPE.max_length, SHAPE.pad_id
WORDS = torch.tensor(SHAPE.word_ids)
TIMES = (1e-3, 0.3, 0.8, 1.0)
each_process = pytest.mark.parametrize(("kind", "options"), **labelled(PROCESSES))


def rows(count: int, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def texts(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    valid_BL = torch.arange(L) < torch.randint(0, L + 1, (count, 1), generator=draw)
    tokens_BL = WORDS[torch.randint(len(WORDS), (count, L), generator=draw)]
    return tokens_BL.masked_fill(~valid_BL, PAD), valid_BL


def outputs(count: int, scale: float = 3.0) -> Tensor:
    """Random outputs of a model."""
    return torch.randn(count, V, generator=torch.Generator().manual_seed(0)) * scale


def certain(targets_M: Tensor) -> Tensor:
    """log x_θ of a model that knows the token."""
    return torch.where(targets_M[:, None] == torch.arange(V), 0.0, -torch.inf)


# -- corruption ---------------------------------------------------------------------------------------------------------


@each_process
def test_pitfall_09_pads_are_never_touched_never_scored_and_cost_nothing(kind: str, options: dict[str, Any]) -> None:
    process, (tokens_BL, valid_BL) = process_of(kind, options), texts(300)
    for t in TIMES:
        noisy_BL = process.corrupt(tokens_BL, valid_BL, torch.full((300,), t), rows(300))
        assert torch.equal(noisy_BL[~valid_BL], tokens_BL[~valid_BL])
        assert not bool((noisy_BL[valid_BL] == PAD).any())
        assert not bool((process.scored(noisy_BL, valid_BL) & ~valid_BL).any())
    everything = process.scored(torch.full_like(tokens_BL, process.mask_id), valid_BL)
    assert torch.equal(everything, valid_BL), "every process predicts a mask"
    open_BL = torch.arange(L) % 2 == 0
    drawn_BL = process.prior(tokens_BL, open_BL.expand_as(tokens_BL), rows(300))
    assert torch.equal(drawn_BL[:, ~open_BL], tokens_BL[:, ~open_BL])


@each_process
def test_noise_begins_at_the_text_grows_and_ends_at_the_prior(kind: str, options: dict[str, Any]) -> None:
    process, count = process_of(kind, options), 20_000
    tokens_BL = torch.full((count, 1), int(WORDS[1]))
    valid_BL, ids = torch.ones_like(tokens_BL, dtype=torch.bool), V + process.noise_ids + 1

    def fractions(noisy_BL: Tensor) -> Tensor:
        return torch.bincount(noisy_BL[:, 0], minlength=ids).double() / count

    kept = [float(fractions(process.corrupt(tokens_BL, valid_BL, torch.full((count,), t), rows(count)))[WORDS[1]])
            for t in (1e-3, 0.3, 0.6, 1.0)]  # fmt: skip
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 0.95
    last = fractions(process.corrupt(tokens_BL, valid_BL, torch.ones(count), rows(count)))
    prior = fractions(process.prior(tokens_BL, valid_BL, rows(count, 1)))
    assert float((last - prior).abs().sum()) / 2 < 0.02


@each_process
def test_positions_are_noised_independently(kind: str, options: dict[str, Any]) -> None:
    process, count = process_of(kind, options), 20_000
    tokens_BL = torch.full((count, 2), int(WORDS[1]))
    noisy_BL = process.corrupt(tokens_BL, tokens_BL != PAD, torch.full((count,), 0.4), rows(count))
    correlation = torch.corrcoef((noisy_BL == tokens_BL).double().T)[0, 1]
    assert abs(float(correlation)) < 4 / math.sqrt(count)


@each_process
@settings(max_examples=10)
@given(u=st.floats(0, 1, exclude_max=True), total=st.integers(1, 50))
def test_training_times_are_spread_over_the_global_batch(
    kind: str, options: dict[str, Any], u: float, total: int
) -> None:
    process = process_of(kind, options)
    whole = process.times(u, torch.arange(total), total)
    parts = [process.times(u, part, total) for part in torch.arange(total).split(total // 2 + 1)]
    assert torch.equal(whole, torch.cat(parts)), "ranks draw parts of one comb"
    assert bool(((whole >= process.t_min) & (whole <= 1)).all())
    many = process.times(0.5, torch.arange(10_000), 10_000)
    for limit in (0.25, 0.5, 0.75):
        expected = total * float((many <= limit).double().mean())
        assert abs(int((whole <= limit).sum()) - expected) <= 1.01


# -- loss ---------------------------------------------------------------------------------------------------------------


@each_process
@pytest.mark.parametrize("t", [1e-6, 1e-3, 0.5, 1.0])
def test_pitfall_12_losses_and_gradients_are_finite_for_every_output(
    kind: str, options: dict[str, Any], t: float
) -> None:
    process, (tokens_BL, valid_BL) = process_of(kind, options), texts(200)
    noisy_BL = process.corrupt(tokens_BL, valid_BL, torch.full((200,), max(t, 0.3)), rows(200))
    scored_BL = process.scored(noisy_BL, valid_BL)
    targets_M, noisy_M = tokens_BL[scored_BL], noisy_BL[scored_BL]
    for scale in (0.0, 1.0, 10.0):
        output_MV = outputs(len(targets_M), scale).requires_grad_()
        found = process.token_losses(output_MV * 1, targets_M, noisy_M, torch.full((len(targets_M),), t))
        found.weighted_M.sum().backward()
        assert bool(found.weighted_M.isfinite().all())
        assert bool(found.log_norm_M.isfinite().all())
        assert bool(output_MV.grad.isfinite().all())
        special = [i for i in range(V) if i not in SHAPE.word_ids]
        assert not bool(output_MV.grad[:, special].any()), "nothing is learned about [PAD] and [MASK]"
        assert {found.weighted_M.dtype, found.nll_M.dtype} == {torch.float32}


@each_process
def test_the_first_loss_is_the_logarithm_of_the_number_of_words(kind: str, options: dict[str, Any]) -> None:
    process, (tokens_BL, valid_BL) = process_of(kind, options), texts(50)
    noisy_BL = process.corrupt(tokens_BL, valid_BL, torch.full((50,), 0.7), rows(50))
    scored_BL = process.scored(noisy_BL, valid_BL)
    zeros_MV, t_M = torch.zeros(int(scored_BL.sum()), V), torch.full((int(scored_BL.sum()),), 0.7)
    found = process.token_losses(zeros_MV, tokens_BL[scored_BL], noisy_BL[scored_BL], t_M)
    if (expected := process.initial_nll()) is not None:
        assert expected == pytest.approx(math.log(len(WORDS)))
        assert torch.allclose(found.nll_M, torch.full_like(found.nll_M, expected), atol=1e-5)


# -- reverse process ----------------------------------------------------------------------------------------------------


@each_process
def test_pitfall_11_x0_is_a_distribution_over_words(kind: str, options: dict[str, Any]) -> None:
    process, (tokens_BL, valid_BL) = process_of(kind, options), texts(100)
    for t in TIMES:
        noisy_BL = process.corrupt(tokens_BL, valid_BL, torch.full((100,), t), rows(100))
        noisy_M = noisy_BL[valid_BL]
        output_MV, t_M = outputs(len(noisy_M), 20.0), torch.full(noisy_M.shape, t, dtype=torch.float64)
        given_MV = output_MV.clone()
        log_x0_MV = process.log_x0(process.x0_logits(output_MV, noisy_M, t_M), noisy_M)
        assert not process.traits.predicts_scores or torch.equal(output_MV, given_MV), "a step reads the scores again"
        assert torch.allclose(log_x0_MV.exp().sum(-1), torch.ones(len(noisy_M)), atol=1e-4)
        words_MV = torch.isfinite(log_x0_MV[:, SHAPE.word_ids].logsumexp(-1))
        assert bool(words_MV.all())
        assert bool(torch.isneginf(log_x0_MV[noisy_M != PAD][:, [PAD, SHAPE.mask_id]]).all())


@each_process
@pytest.mark.parametrize(("t", "s"), [(0.8, 0.3), (1.0, 0.6), (0.5, 0.0), (1.0, 0.0)])
def test_a_reverse_step_that_knows_the_token_keeps_the_marginals(
    kind: str, options: dict[str, Any], t: float, s: float
) -> None:
    """Σ over x_t of q(x_s | x_t, x_0) q(x_t | x_0) = q(x_s | x_0), for the exact posterior only; at s = 0 it is x_0."""
    process, count = process_of(kind, options), 40_000
    token = int(WORDS[2])
    tokens_BL = torch.full((count, 1), token)
    valid_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
    generator = rows(count)
    if t == 1:
        noisy_M = process.prior(tokens_BL, valid_BL, generator.fork("t"))[:, 0]
    else:
        noisy_M = process.corrupt(tokens_BL, valid_BL, torch.full((count,), t), generator.fork("t"))[:, 0]
    t_M, s_M = (torch.full((count,), x, dtype=torch.float64) for x in (t, s))
    drawn_M = process.reverse_step(
        certain(tokens_BL[:, 0]), noisy_M, t_M=t_M, s_M=s_M, uniform_M2=generator.fork("step").uniform(2)
    )
    if s == 0:
        assert bool((drawn_M == token).all())
        return
    expected_M = process.corrupt(tokens_BL, valid_BL, torch.full((count,), s), generator.fork("s"))[:, 0]
    ids = V + process.noise_ids + 1
    found, expected = (torch.bincount(x, minlength=ids).double() / count for x in (drawn_M, expected_M))
    assert float((found - expected).abs().max()) < 4.5 * math.sqrt(0.5 / count)


@each_process
@pytest.mark.parametrize("step", ["reverse_step", "score_step"])
def test_the_last_step_leaves_words_only_and_final_tokens_stay(kind: str, options: dict[str, Any], step: str) -> None:
    process, count = process_of(kind, options), 500
    canvas_BL = process.prior(torch.full((count, 1), process.mask_id), torch.ones(count, 1).bool(), rows(count))
    noisy_M, output_MV = canvas_BL[:, 0], outputs(count)
    times = {"t_M": torch.full((count,), 0.7).double(), "s_M": torch.zeros(count).double()}
    given = output_MV if step == "score_step" else process.log_x0(
        process.x0_logits(output_MV.clone(), noisy_M, times["t_M"]), noisy_M
    )  # fmt: skip
    drawn_M = getattr(process, step)(given, noisy_M, uniform_M2=rows(count).uniform(2), **times)
    assert bool(torch.isin(drawn_M, WORDS).all())
    if process.mask_schedule is not None:
        words_M = WORDS.repeat(count)[:count]
        kept_M = process.reverse_step(
            process.log_x0(output_MV.clone(), words_M), words_M, uniform_M2=rows(count).uniform(2), **times
        )
        assert torch.equal(kept_M, words_M)


# -- likelihood ---------------------------------------------------------------------------------------------------------


def nelbo(process: TextProcess, tokens_BL: Tensor, valid_BL: Tensor, generator: RowGenerator) -> Likelihood:
    """Draw the bound of a model whose prediction depends on the position only."""
    table_LV = torch.randn(2 * L, V, generator=torch.Generator().manual_seed(5))

    def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
        assert t_B.dtype == torch.float32
        return table_LV[scored_BL.nonzero()[:, 1]].clone()

    return process.nelbo(predict, tokens_BL, valid_BL, draws=4, generator=generator)


@each_process
def test_the_nelbo_of_a_text_is_its_own(kind: str, options: dict[str, Any]) -> None:
    """It depends neither on the batch nor on padding, and comes with consistent statistics."""
    process, (tokens_BL, valid_BL) = process_of(kind, options), texts(8)
    found = nelbo(process, tokens_BL, valid_BL, rows(8))
    fields = ("nll_KB", "mask_ratio_KB", "masked_KB", "correct_KB", "cross_entropy_KB")
    for row in range(8):
        kept, one = int(valid_BL[row].sum()), slice(row, row + 1)
        tokens_1l = torch.nn.functional.pad(tokens_BL[one, :kept], (0, 3), value=PAD)
        valid_1l = torch.nn.functional.pad(valid_BL[one, :kept], (0, 3))
        alone = nelbo(process, tokens_1l, valid_1l, rows(8).select(torch.tensor([row])))
        for name in fields:
            torch.testing.assert_close(getattr(alone, name)[:, 0], getattr(found, name)[:, row])
    assert {getattr(found, name).dtype for name in fields} == {torch.float64}
    assert bool(((found.mask_ratio_KB > 0) & (found.mask_ratio_KB <= 1)).all())
    assert bool((found.correct_KB <= found.masked_KB).all())
    assert bool((found.masked_KB <= valid_BL.sum(1)).all())
    assert bool((found.nll_KB[:, valid_BL.sum(1) == 0] == 0).all())
    levels_KB, seen, scored = [torch.full((8,), 0.5, dtype=torch.float64)] * 2, list[Tensor](), list[Tensor]()

    def watch(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
        seen.append(noisy_BL)
        scored.append(scored_BL.sum(1).double())
        return 9.0 * torch.nn.functional.one_hot(tokens_BL[scored_BL], V)

    drawn = integrate(process, watch, tokens_BL, valid_BL, levels_KB, rows(8))
    assert not torch.equal(*seen), "every draw has noise of its own"
    assert torch.equal(drawn.masked_KB, torch.stack(scored)), "only positions that are scored count"
    assert torch.equal(drawn.correct_KB, drawn.masked_KB), "the model is right everywhere"


@each_process
def test_the_nelbo_bounds_the_entropy_of_independent_words(kind: str, options: dict[str, Any]) -> None:
    """No model of equal logits is better than log W per token, and a score model with these logits is exact."""
    process, count = process_of(kind, options), 4000
    tokens_BL = WORDS[torch.randint(len(WORDS), (count, 2), generator=torch.Generator().manual_seed(1))]

    def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
        return torch.zeros(int(scored_BL.sum()), V)

    found = process.nelbo(predict, tokens_BL, tokens_BL != PAD, draws=4, generator=rows(count))
    error = float(found.nll_KB.mean(0).std()) / math.sqrt(count)
    if process.mask_schedule is not None or process.traits.only_masks:
        assert float(found.mask_ratio_KB.mean()) == pytest.approx(float(found.masked_KB.mean()) / 2, abs=0.02)
    exact = 2 * math.log(len(WORDS))
    assert float(found.nll_KB.mean()) == pytest.approx(exact, abs=max(5 * error, 1e-3))


@each_process
def test_the_likelihood_does_not_depend_on_the_weights_of_training(kind: str, options: dict[str, Any]) -> None:
    tokens_BL, valid_BL = texts(6)
    hints = get_type_hints(type(parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")))
    found = [
        nelbo(process_of(kind, {**options, "loss_weighting": name}), tokens_BL, valid_BL, rows(6)).nll_KB
        for name in get_args(hints.get("loss_weighting"))
    ]
    assert all(torch.equal(found[0], other) for other in found)


@each_process
def test_a_configuration_declares_the_properties_of_its_process(kind: str, options: dict[str, Any]) -> None:
    config, process = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process"), process_of(kind, options)
    assert config.only_masks == (process.mask_schedule is not None)
    noisy_BL = process.corrupt(*texts(2000), torch.full((2000,), 0.6), rows(2000))
    tokens_BL, valid_BL = texts(2000)
    changed = noisy_BL[valid_BL & (noisy_BL != tokens_BL)]
    assert config.revises == bool(torch.isin(changed, WORDS).any())
    assert sorted(stores_of(config)) == sorted(config.stores)
    assert set(process.state_dict()) == set(), "checkpoints contain what was learned, and nothing was"
