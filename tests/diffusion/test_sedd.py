"""SEDD with both graphs: score entropy, bounds and samples of the exact scores of an enumerable distribution."""

from __future__ import annotations

import math

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.sedd.score_entropy import Sedd
from mm_ldlm.sampling.ancestral import reverse_process
from mm_ldlm.sampling.denoising import StateDenoiser, TextDenoiser
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import text_sampler

PAD, MASK, WORDS, V, W = 0, 2, [1, 3, 4], 5, 3
GRAPHS, SCHEDULES = ("absorbing", "uniform"), ("log_linear", "geometric", "cosine")
both_graphs = pytest.mark.parametrize("graph", GRAPHS)


def process(graph: str, schedule: str = "log_linear", **settings: float) -> Sedd:
    given = {"kind": "sedd", "graph": graph, "schedule": {"name": schedule, **settings}}
    return parse_kind(TEXT_PROCESSES, given, at="process").build(vocab_size=V, pad_id=PAD, mask_id=MASK)


def rows(count: int, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def wild(count: int, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, V, generator=torch.Generator().manual_seed(seed)) * scale


def exact_bound(texts, sedd: Sedd, integrate, change=lambda output: output) -> torch.Tensor:
    """The bound of each text (N,): every x_t enumerated, the integral over m by quadrature, and the prior's term."""

    def integrand(m: float) -> torch.Tensor:
        def losses(output, targets, noisy):
            level = torch.full((len(targets),), m, dtype=torch.float64)
            return sedd.score_entropy(output, targets, noisy, level).weighted_M

        return texts.expected(change(texts.output(1 - m, scores=True)), 1 - m, losses)

    prior = sedd.prior_term(torch.ones(1, texts.length).bool())
    return integrate(integrand, 0.0, sedd.largest_level) + prior


def test_the_process_is_chosen_by_its_kind():
    assert process("absorbing").mask_schedule is not None
    assert process("uniform").mask_schedule is None
    assert process("absorbing").words == W
    with pytest.raises(ConfigurationError, match=r"process\.steps' is not known.*kind, graph, schedule, t_min"):
        parse_kind(TEXT_PROCESSES, {"kind": "sedd", "steps": 3}, at="process")
    with pytest.raises(ConfigurationError, match=r"process\.graph"):
        parse_kind(TEXT_PROCESSES, {"kind": "sedd", "graph": "mask"}, at="process")
    with pytest.raises(ConfigurationError, match="t_min must be below 1"):
        parse_kind(TEXT_PROCESSES, {"kind": "sedd", "t_min": 1.0}, at="process")
    times = parse_kind(TEXT_PROCESSES, {"kind": "sedd", "t_min": 0.2}, at="process").build(
        vocab_size=V, pad_id=PAD, mask_id=MASK
    ).times(0.0, torch.arange(4), 4)  # fmt: skip
    assert torch.allclose(times, torch.tensor([0.2, 0.4, 0.6, 0.8]))


# -- the forward process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@both_graphs
def test_tokens_are_replaced_at_the_rate_of_the_schedule(graph, schedule):
    count, sedd = 30_000, process(graph, schedule)
    tokens = torch.tensor([[3, 1, PAD]]).repeat(count, 1)
    t = torch.full((count,), 0.6)
    noisy = sedd.corrupt(tokens, tokens != PAD, t, rows(count))
    alpha = float(sedd.schedule.alpha(t[:1].double()))
    expected = torch.zeros(2, V)
    for place, token in enumerate((3, 1)):
        expected[place, WORDS if graph == "uniform" else MASK] = (1 - alpha) / (W if graph == "uniform" else 1)
        expected[place, token] += alpha
    found = torch.stack([torch.bincount(noisy[:, place], minlength=V) / count for place in (0, 1)])
    assert torch.allclose(found, expected, atol=0.012)
    assert (noisy[:, 2] == PAD).all()
    assert torch.equal(sedd.scored(noisy, tokens != PAD), (tokens != PAD) & ((noisy == MASK) | (graph == "uniform")))


def test_the_uniform_prior_draws_words():
    noise = process("uniform").prior(
        torch.full((9000, 2), MASK), torch.tensor([True, False]).expand(9000, 2), rows(9000)
    )
    assert (noise[:, 1] == MASK).all()
    assert torch.allclose(torch.bincount(noise[:, 0], minlength=V)[WORDS] / 9000, torch.tensor(1 / 3), atol=0.02)


# -- score entropy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noisy", [MASK, 3, 4])
def test_score_entropy_and_its_gradient_vanish_at_the_true_ratios(noisy):
    """At s_y = r_y = q(y | x_0)/q(x_t | x_0), and nowhere else."""
    graph, target, m = ("absorbing" if noisy == MASK else "uniform"), 3, 0.37
    sedd, level = process(graph), torch.tensor([m])
    if graph == "absorbing":
        ratios = torch.tensor([[1e-30, 3.0, 1e-30]])  # in the scaling of the output: W at x_0, and 0
    else:
        q = torch.full((W,), m / W) + (1 - m) * (torch.tensor(WORDS) == target)
        ratios = (q / q[WORDS.index(noisy)])[None]
    output = torch.full((1, V), 7.0)
    output[:, WORDS] = ratios.log()
    output.requires_grad_()

    def loss(given):
        return sedd.score_entropy(given * 1, torch.tensor([target]), torch.tensor([noisy]), level).weighted_M

    (gradient,) = torch.autograd.grad(loss(output), output)
    assert float(loss(output.detach())) == pytest.approx(0, abs=2e-6)
    assert float(gradient.abs().max()) < 2e-6
    for place in range(W):
        for change in (-0.5, 0.5):
            moved = output.detach().clone()
            moved[0, WORDS[place]] += change
            read = WORDS[place] != noisy and float(ratios[0, place]) > 1e-20
            assert (float(loss(moved)) > 1e-3) == read


@pytest.mark.parametrize("schedule", SCHEDULES)
@both_graphs
def test_the_loss_is_its_definition(graph, schedule):
    """σ'(t) Σ over y ≠ x_t of Q(x_t, y)(s_y − r_y log s_y + K(r_y)), in float64, with the scores of the paper."""
    count, generator = 300, torch.Generator().manual_seed(1)
    sedd, t = process(graph, schedule), torch.rand(300, generator=generator, dtype=torch.float64) * 0.98 + 0.01
    targets = torch.tensor(WORDS)[torch.randint(3, (count,), generator=generator)]
    drawn = torch.tensor(WORDS)[torch.randint(3, (count,), generator=generator)]
    noisy = (
        torch.full((count,), MASK)
        if graph == "absorbing"
        else torch.where(torch.arange(count) % 2 == 0, targets, drawn)
    )
    alpha, rate = sedd.schedule.alpha(t)[:, None], -sedd.schedule.alpha_prime(t) / sedd.schedule.alpha(t)
    output = wild(count)
    log_s = output.double()[:, WORDS]
    one_hot = (torch.tensor(WORDS) == targets[:, None]).double()
    if graph == "absorbing":
        log_s, q = log_s - ((1 - alpha) / alpha).log() - math.log(W), one_hot * alpha / (1 - alpha)
        Q = torch.ones(count, W)
    else:
        q = alpha * one_hot + (1 - alpha) / W
        here = torch.tensor(WORDS) == noisy[:, None]
        q, Q = q / q[here][:, None], (~here) / W
    each = log_s.exp() - q * log_s + torch.where(q > 0, q * (q.clamp_min(1e-300).log() - 1), 0.0)
    found = sedd.token_losses(output.clone(), targets, noisy, t.float())
    assert torch.allclose(found.weighted_M.double(), rate * (Q * each).sum(1), rtol=2e-4)
    words = output[:, WORDS].masked_fill(torch.tensor(WORDS) == noisy[:, None], 0.0)
    assert torch.allclose(found.log_norm_M, words.logsumexp(1), atol=1e-5)
    assert torch.allclose(found.nll_M, words.logsumexp(1) - words[one_hot.bool()], atol=1e-5)
    assert torch.equal(found.best_M, torch.tensor(WORDS)[words.argmax(1)])


@both_graphs
def test_the_mean_gradient_vanishes_at_the_true_scores(table, graph):
    """Denoising score entropy has the minimum of score entropy: its mean over x_0 given x_t, at the ratios of p_t."""
    texts, sedd, alpha = table(2, graph), process(graph), 0.55
    exact = texts.output(alpha, scores=True).float()

    def mean_loss(output):
        def losses(given, targets, noisy):
            return sedd.score_entropy(given, targets, noisy, torch.full((len(targets),), 1 - alpha)).weighted_M

        return (texts.p * texts.expected(output, alpha, losses)).sum()

    gradients = []
    for change in (0.0, 0.1):
        output = (exact + change * wild(exact[..., 0].numel()).view_as(exact)).nan_to_num(neginf=-30.0).requires_grad_()
        gradients.append(float(torch.autograd.grad(mean_loss(output), output)[0].abs().max()))
    assert gradients[0] < 1e-6
    assert gradients[1] > 1e-3


def test_a_normalised_score_has_the_loss_of_mdlm():
    """With Σ s = α_t/(1 − α_t), the total of the true scores, the loss of the absorbing graph is w(t)·CE."""
    output = wild(200).log_softmax(-1)
    output[:, WORDS] = output[:, WORDS].log_softmax(-1) + math.log(W)
    targets, noisy = torch.tensor(WORDS).repeat(67)[:200], torch.full((200,), MASK)
    t = torch.linspace(1e-3, 1, 200)
    for schedule in SCHEDULES:
        mdlm = AbsorbingConfig(schedule={"name": schedule}).build(vocab_size=V, pad_id=PAD, mask_id=MASK)
        ours, theirs = (
            p.token_losses(output.clone(), targets, noisy, t).weighted_M for p in (process("absorbing", schedule), mdlm)
        )
        assert torch.allclose(ours, theirs, rtol=1e-3)
        more = process("absorbing", schedule).token_losses(output + 0.3, targets, noisy, t).weighted_M
        assert (more > ours).all()


@both_graphs
def test_the_loss_of_large_outputs_is_finite(graph):
    targets = torch.tensor([3, 3, 1])
    noisy = torch.full((3,), MASK) if graph == "absorbing" else torch.tensor([3, 4, 4])
    for offset in (-1e4, -60.0, 60.0):
        output = (wild(3) + offset).requires_grad_()
        loss = process(graph).token_losses(output * 1, targets, noisy, torch.tensor([1e-3, 0.5, 1.0])).weighted_M
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert torch.isfinite(output.grad).all()
        assert not output.grad[:, [PAD, MASK]].any()


# -- the bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@both_graphs
def test_the_bound_of_the_exact_scores_is_tight_and_that_of_others_larger(table, quadrature, graph, schedule):
    """−log p of every text, which is the bound of MDLM as well; only the uniform prior's own distance is left."""
    texts, sedd = table(2, graph), process(graph, schedule)
    bound = exact_bound(texts, sedd, quadrature)
    assert torch.allclose(bound, texts.nll, atol=3e-3)
    entropy = float((texts.p * texts.nll).sum())
    assert float((texts.p * bound).sum()) == pytest.approx(entropy, abs=5e-4)
    assert float((texts.p * bound).sum()) > entropy - 2e-4
    for change in (lambda output: output + 0.4, lambda output: output * 0.8):
        worse = exact_bound(texts, sedd, quadrature, change)
        assert float((texts.p * worse).sum()) > entropy + 0.01


def test_the_prior_term_is_the_divergence_of_the_prior(table):
    for epsilon in (0.0, 0.3):
        sedd, texts = process("uniform", epsilon=epsilon), table(2, "uniform")
        q_NS = texts.q(epsilon)
        divergence = (q_NS * (q_NS.log() - math.log(1 / W**2))).sum(1)
        found = sedd.prior_term(torch.ones(4, 2).bool())
        assert torch.allclose(found, divergence[:4], atol=1e-12)
        assert float(sedd.prior_term(torch.tensor([[True, False]]))) == pytest.approx(float(divergence[0]) / 2)
    assert float(divergence[0]) > 0.05


@pytest.mark.parametrize("epsilon", [1e-3, 0.3])
@both_graphs
def test_nelbo_draws_have_the_enumerated_mean(table, quadrature, graph, epsilon):
    """For a model that is not exact and receives no time; the bound holds whatever ε is."""
    texts, sedd, copies = table(2, graph), process(graph, epsilon=epsilon), 4000
    output_SLV = texts.output(0.6, scores=True).nan_to_num(neginf=-2.0).clamp(-3, 3)
    tokens = texts.texts.repeat(copies, 1)

    def predict(noisy_BL, t_B, scored_BL):
        assert t_B.dtype == torch.float32
        assert ((t_B >= 0) & (t_B <= 1)).all()
        state_B = (noisy_BL[:, None] == texts.states[None]).all(-1).long().argmax(1)
        return output_SLV[state_B][scored_BL]

    found = sedd.nelbo(predict, tokens, torch.ones_like(tokens).bool(), draws=8, generator=rows(len(tokens)))
    each = found.nll_KB.mean(0).view(copies, -1)
    error = each.std(0) / copies**0.5
    exact = exact_bound(texts, sedd, quadrature, lambda output: output_SLV)
    assert ((each.mean(0) - exact).abs() < 4.5 * error).all()
    assert (error < 0.06 * exact).all()
    largest = 1 if graph == "absorbing" else 1 - epsilon
    assert ((found.noise_KB > 0) & (found.noise_KB <= largest)).all()
    assert float(found.noise_KB.max()) > 0.99 * largest
    assert torch.isfinite(found.cross_entropy_KB).all()
    assert (found.correct_KB <= found.scored_KB).all()


# -- x_0 and the reverse step ------------------------------------------------------------------------------------------


@both_graphs
def test_log_x0_of_the_exact_scores_is_the_posterior(table, graph):
    texts, sedd, t = table(2, graph), process(graph), 0.35
    alpha = float(sedd.schedule.alpha(torch.tensor(t).double()))
    noisy, output = texts.states.flatten(), texts.output(alpha, scores=True).flatten(0, 1).float()
    before = output.clone()
    times = torch.full((len(noisy),), t, dtype=torch.float64)
    found = sedd.log_x0(sedd.x0_logits(output, noisy, times), noisy).exp()
    expected = texts.posterior(alpha).flatten(0, 1)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    assert torch.equal(output, before), "score_step reads the output afterwards"


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("t", [1.0, 0.5, 1e-6])
@pytest.mark.parametrize("schedule", [("log_linear", 1e-3), ("log_linear", 0.0), ("geometric", 1e-3)], ids=str)
@both_graphs
def test_any_output_gives_a_distribution_over_words_and_a_word(graph, schedule, t, scale):
    sedd = process(graph, schedule[0], epsilon=schedule[1])
    output, count = wild(60, scale), 60
    noisy = torch.full((count,), MASK) if graph == "absorbing" else torch.tensor(WORDS).repeat(20)
    t_M = torch.full((count,), t, dtype=torch.float64)
    log_x0 = sedd.log_x0(sedd.x0_logits(output, noisy, t_M), noisy)
    assert torch.allclose(log_x0.exp().sum(1), torch.ones(count), atol=1e-5)
    assert (log_x0[:, [PAD, MASK]] == -torch.inf).all()
    for s in (0.0, t / 2):
        times = {"t_M": t_M, "s_M": torch.full_like(t_M, s), "uniform_M2": rows(count).uniform(2)}
        for drawn in (sedd.score_step(output, noisy, **times), sedd.reverse_step(log_x0, noisy, **times)):
            allowed = WORDS if s == 0 or graph == "uniform" else [*WORDS, MASK]
            assert torch.isin(drawn, torch.tensor(allowed)).all()


@pytest.mark.parametrize("step", ["score_step", "reverse_step"])
@pytest.mark.parametrize("s", [0.3, 0.0])
@pytest.mark.parametrize("noisy", [MASK, 3])
def test_a_step_of_the_exact_scores_draws_from_the_posterior(table, noisy, s, step):
    """p(x_s at a position | x_t), by Bayes' rule over all texts: q(x_t | x_s) q(x_s | x_0) p(x_0)."""
    graph, t, count = ("absorbing" if noisy == MASK else "uniform"), 0.8, 120_000
    texts, sedd = table(1, graph), process(graph)
    alpha_t, alpha_s = (float(sedd.schedule.alpha(torch.tensor(x).double())) for x in (t, s))
    here = int((texts.states[:, 0] == noisy).long().argmax())
    p_s = texts.p @ texts.q(alpha_s)
    between = alpha_t / alpha_s * (texts.states[:, 0] == noisy).double() + (1 - alpha_t / alpha_s) * (
        1.0 if graph == "absorbing" else 1 / W
    )
    expected = torch.zeros(V, dtype=torch.float64).index_add(0, texts.states[:, 0], p_s * between)
    expected /= expected.sum()
    output = texts.output(alpha_t, scores=True)[here].expand(count, -1)
    x_t, times = torch.full((count,), noisy), [torch.full((count,), x, dtype=torch.float64) for x in (t, s)]
    first = output if step == "score_step" else sedd.log_x0(sedd.x0_logits(output, x_t, times[0]), x_t)
    drawn = getattr(sedd, step)(first, x_t, t_M=times[0], s_M=times[1], uniform_M2=rows(count).uniform(2))
    assert torch.allclose(torch.bincount(drawn, minlength=V).double() / count, expected, atol=0.006)


def test_the_analytic_step_reads_the_total_of_the_scores_at_masks():
    """A mask is unmasked with (e^{Δσ} − 1)·Σ s, whereas the step from x_θ takes the total of the true scores."""
    sedd, count = process("absorbing", epsilon=0.0), 40_000
    given = {"t_M": torch.full((count,), 0.8).double(), "s_M": torch.full((count,), 0.6).double()}
    noisy, uniform = torch.full((count,), MASK), rows(count).uniform(2)
    for offset, expected in ((0.0, 0.25), (0.5, 0.25 * math.exp(0.5)), (-1.0, 0.25 * math.exp(-1)), (5.0, 1.0)):
        output = torch.full((count, V), offset)
        drawn = sedd.score_step(output, noisy, **given, uniform_M2=uniform)
        assert float((drawn != MASK).double().mean()) == pytest.approx(expected, abs=0.01)
        log_x0 = sedd.log_x0(sedd.x0_logits(output, noisy, given["t_M"]), noisy)
        drawn = sedd.reverse_step(log_x0, noisy, **given, uniform_M2=uniform)
        assert float((drawn != MASK).double().mean()) == pytest.approx(0.25, abs=0.01)


# -- samples -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "steps", "tolerance"),
    [(20_000, 32, 0.025), pytest.param(1_000_000, 64, 0.008, marks=pytest.mark.slow)],
)
@both_graphs
def test_ancestral_samples_follow_the_distribution(table, graph, count, steps, tolerance):
    texts, sedd = table(2, graph), process(graph)
    found = texts.sampled(text_sampler("ancestral", steps=steps), sedd, count=count)
    distance = 0.5 * float((found - texts.p).abs().sum())
    assert distance < tolerance
    independent = texts.p.view(3, 3).sum(1, keepdim=True) * texts.p.view(3, 3).sum(0)
    assert 0.5 * float((independent.flatten() - texts.p).abs().sum()) > 3 * tolerance


@both_graphs
def test_given_tokens_and_pads_stay_and_draw_settings_have_their_effect(table, graph):
    texts, sedd = table(2, graph), process(graph)
    denoise = texts.denoiser(sedd.schedule, scores=True)
    canvas = torch.tensor([[MASK, 4], [MASK, MASK], [1, 3]]).repeat(500, 1)

    def run(**settings):
        sampler = text_sampler("ancestral", steps=8, **settings)
        return sampler.sample(denoise, canvas, process=sedd, generator=rows(len(canvas))).tokens

    plain, greedy = run(), run(temperature=0.0)
    for tokens in (plain, greedy, run(top_k=1), run(temperature=3.0)):
        assert torch.isin(tokens, torch.tensor(WORDS)).all()
        assert torch.equal(tokens[canvas != MASK], canvas[canvas != MASK])
    assert torch.equal(run(top_k=1), greedy)
    assert not torch.equal(plain, greedy)
    assert not torch.equal(plain, run(temperature=3.0))
    if graph == "uniform":
        return  # its exact scores have no entry for a [MASK] that stays
    closed = torch.tensor([[True, False]]).expand_as(canvas)
    open_first = reverse_process(
        denoise, canvas, process=sedd, steps=4, generator=rows(len(canvas)), draw=Draw(), open_BL=closed
    )
    assert (open_first.tokens[1::3, 1] == MASK).all()


@pytest.mark.parametrize("sampler", ["ancestral", "joint_states"])
@both_graphs
def test_guidance_acts_on_the_scores(graph, sampler):
    """s = s_cond^γ·s_uncond^(1−γ): the samples are those of a model whose scores are these."""
    sedd, count, dim = process(graph), 3000, 2
    given, dropped = wild(4).view(2, 2, V)

    def denoiser(given_LV, dropped_LV):
        def logits(output_LV):
            return lambda tokens_AL, t_A, rows_A, scored_AL: output_LV.expand(len(tokens_AL), -1, -1)[scored_AL]

        def predict(tokens_BL, t_B, states_BLd, t_state_B, scored_BL):
            return logits(given_LV)(tokens_BL, t_B, None, scored_BL), torch.zeros_like(states_BLd)

        states = StateDenoiser(predict=predict, dim=dim, schedule=GaussianSchedule(), dropped=True)
        # The denoiser of a model with states predicts without them.
        first, second = (given_LV, dropped_LV) if sampler == "ancestral" else (dropped_LV, given_LV)
        return TextDenoiser(
            logits=logits(first), unconditional=logits(second), mask_id=MASK, pad_id=PAD, vocab_size=V, states=states
        )

    def sample(denoise, **settings):
        found = text_sampler(sampler, steps=6, **settings).sample(
            denoise, torch.full((count, 2), MASK), process=sedd, generator=rows(count)
        )
        return found.tokens

    found = sample(denoiser(given, dropped), guidance=2.0)
    expected = sample(denoiser(2 * given - dropped, dropped), top_k=W)  # top_k W only chooses the same step
    assert float((found == expected).double().mean()) > 0.999
    assert float((found == sample(denoiser(given, dropped), top_k=W)).double().mean()) < 0.95


def test_samplers_that_unmask_run_the_absorbing_graph_only(table):
    for graph in GRAPHS:
        texts, sedd = table(2, graph), process(graph)
        denoise, canvas = texts.denoiser(sedd.schedule, scores=True), torch.full((50, 2), MASK)
        sampler = text_sampler("random", steps=2)
        if graph == "absorbing":
            tokens = sampler.sample(denoise, canvas, process=sedd, generator=rows(50)).tokens
            assert torch.isin(tokens, torch.tensor(WORDS)).all()
        else:
            with pytest.raises(SamplingError, match=r"'random' needs a process whose only noise is \[MASK\].*'sedd'"):
                sampler.sample(denoise, canvas, process=sedd, generator=rows(50))
        for settings in ({"timestep": "mask_ratio"}, {"skip_idle": True}):
            with pytest.raises(SamplingError, match=r"timestep 'mask_ratio' and skip_idle need .* predicts x_0"):
                text_sampler("ancestral", **settings).sample(denoise, canvas, process=sedd, generator=rows(50))
