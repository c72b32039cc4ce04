"""CCDD: the draws of training, dropped states, and, with the exact model of a small distribution, what the text loss
and the likelihood bound, and what the joint sampler draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.ccdd.model import Output
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch, Objective
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import text_sampler

WORDS, MASK, PAD, N, D = 3, 3, 4, 2, 2
SHAPE = DataShape(vocab_size=5, pad_id=PAD, mask_id=MASK, max_length=N, state_dim=D)
JOINT = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64)
PAIRS = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))
CODE = torch.tensor([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]], dtype=torch.float64)
"""The state of each word."""
ENTROPY = float(-(JOINT * JOINT.log()).sum())


class Exact(nn.Module):
    """The exact predictions of the distribution `JOINT`, whose states are `CODE`."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.seen: list[dict[str, Tensor]] = []

    def forward(
        self, tokens_BL: Tensor, *, valid_BL: Any, t_text_B: Tensor, states_BLd: Tensor, t_state_B: Tensor,
        null_state_B: Tensor | None = None, logits_at: Tensor | None = None, heads: Any = ("text", "state"),
    ) -> Output:  # fmt: skip
        nothing_B = torch.zeros_like(t_text_B).bool()
        null_B = nothing_B if null_state_B is None else null_state_B
        self.seen.append({"t_text": t_text_B, "t_state": t_state_B, "z": states_BLd, "null": null_B})
        possible_BPL = (tokens_BL[:, None] == MASK) | (tokens_BL[:, None] == PAIRS[None])
        weight_BP = torch.where(possible_BPL.all(-1), JOINT.flatten().log(), -torch.inf)
        schedule = GaussianSchedule()
        signal_B, noise_B = schedule.signal(t_state_B.double()), schedule.noise(t_state_B.double())
        off_BPLd = states_BLd[:, None].double() - signal_B[:, None, None, None] * CODE[PAIRS]
        near_BP = -off_BPLd.square().sum((2, 3)) / (2 * noise_B[:, None] ** 2)
        if null_state_B is not None:
            near_BP = torch.where(null_state_B[:, None], 0.0, near_BP)
        p_BP = (weight_BP + near_BP).softmax(-1)
        one_hot_PLV = nn.functional.one_hot(PAIRS, WORDS).double()
        p_BLV = torch.einsum("bp,plv->blv", p_BP, one_hot_PLV)
        logits_BLV = nn.functional.pad(p_BLV.clamp_min(1e-300).log(), (0, 2), value=9.0).float()
        states = torch.einsum("bp,pld->bld", p_BP, CODE[PAIRS]).float()
        return Output(logits_BLV if logits_at is None else logits_BLV[logits_at], states, torch.zeros(N))

    def length_logits(self) -> Tensor:
        return torch.zeros(N)


def objective(**keys: Any) -> Any:
    keys = {"length_weight": 0.0, "process": {"kind": "absorbing", "t_min": 1e-4}, **keys}
    return parse_kind(OBJECTIVES, {"kind": "ccdd", **keys}, at="objective").build(SHAPE)


def batch(pairs: Tensor) -> Batch:
    count = len(pairs)
    return Batch(
        tokens_BL=pairs, valid_BL=torch.ones_like(pairs, dtype=torch.bool), examples_B=torch.arange(count),
        position_B=torch.arange(count), global_size=count, global_tokens=2 * count,
        fields={"token_states": CODE[pairs].float()},
    )  # fmt: skip


def stirred_model() -> Any:
    """With noise on every parameter, because the heads start at 0."""
    config = parse_kind(MODELS, {"kind": "ccdd", "dim": 16, "depth": 1, "heads": 2}, at="model")
    model = config.build(SHAPE, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model


def drawn(count: int) -> Tensor:
    return PAIRS[torch.multinomial(JOINT.flatten(), count, True, generator=torch.Generator().manual_seed(0))]


def rows(count: int, seed: int = 5) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def losses_of(made: Any, model: nn.Module, data: Batch, seed: int = 5) -> dict[str, float]:
    found = made(model, data, rows(len(data.tokens_BL), seed), kind="text", step=0)
    return {name: float(total / count) for name, (total, count) in found.items() if float(count)}


# -- training ---------------------------------------------------------------------------------------------------------


def test_it_is_an_objective_that_reads_token_states() -> None:
    made, config = objective(), objective().config
    assert isinstance(made, Objective)
    assert made.fields == ("token_states",)
    model = parse_kind(MODELS, {"kind": "dit"}, at="model")
    with pytest.raises(ConfigurationError, match="text_and_states_denoiser"):
        config.capabilities(model)


@pytest.mark.parametrize("timesteps", ["shared", "separate"])
def test_tokens_and_states_have_shared_or_separate_timesteps(timesteps: str) -> None:
    model = Exact()
    losses_of(objective(timesteps=timesteps, condition_dropout=0.0), model, batch(drawn(64)))
    (seen,) = model.seen
    same = torch.isclose(seen["t_text"].float(), seen["t_state"].float())
    assert bool(same.all()) if timesteps == "shared" else int(same.sum()) < 8


def test_a_text_whose_states_are_dropped_has_no_state_loss() -> None:
    data = batch(drawn(200))
    assert "state_error" not in losses_of(objective(condition_dropout=1.0), Exact(), data)
    made = objective(condition_dropout=0.5)
    found = made(Exact(), data, rows(200), kind="text", step=0)
    assert 0 < int(found["state_error"][1]) < 400
    assert float(found["state_error"][1]) == pytest.approx(200, abs=60)


def test_dropped_states_have_the_time_of_pure_noise() -> None:
    """In training as in scoring, so that the model of the text alone is trained where it is used."""
    made, model = objective(condition_dropout=0.5), Exact()
    losses_of(made, model, batch(drawn(64)))
    seen = model.seen[0]
    assert 0 < int(seen["null"].sum()) < 64
    assert (seen["t_state"][seen["null"]] == 1).all()
    assert torch.equal(seen["t_state"][~seen["null"]], seen["t_text"][~seen["null"]].float())

    model.seen.clear()
    made.generative_model(model).likelihood(PAIRS, latents_Bd=None, draws=2, generator=rows(9))
    assert model.seen
    for seen in model.seen:
        assert seen["null"].all()
        assert (seen["t_state"] == 1).all()
        assert (seen["t_text"] < 1).any()


@pytest.mark.parametrize("weight", ["uniform", "min_snr"])
def test_the_state_loss_is_weighted_by_the_snr(weight: str) -> None:
    class Zero(Exact):
        """Predicts the mean state, 0."""

        def forward(self, *args: Any, **given: Any) -> Output:
            found = super().forward(*args, **given)
            assert found.states_BLd is not None
            return found._replace(states_BLd=torch.zeros_like(found.states_BLd))

    model, data = Zero(), batch(drawn(64))
    loss = losses_of(objective(state_loss=weight, condition_dropout=0.0), model, data)["state_loss"]
    t_B, schedule = model.seen[0]["t_state"], GaussianSchedule()
    snr_B = (schedule.signal(t_B) / schedule.noise(t_B)).square()
    weight_B = snr_B.clamp(max=5) if weight == "min_snr" else torch.ones_like(snr_B)
    error_BL = CODE[data.tokens_BL].square().mean(2)
    assert loss == pytest.approx(float((weight_B[:, None] * error_BL).mean()), rel=1e-4)


def test_states_are_padded_to_the_length_of_the_tokens() -> None:
    data = batch(drawn(3))
    data.fields["token_states"] = data.fields["token_states"][:, :1]  # type: ignore[index]
    model = Exact()
    losses_of(objective(), model, data)
    assert model.seen[0]["z"].shape == (3, 2, D)


@pytest.mark.parametrize("heads", [("text",), ("state",)])
def test_gradients_reach_every_part_from_its_own_loss(heads: tuple[str, ...]) -> None:
    model = stirred_model()
    found = objective(condition_dropout=0.5)(model, batch(drawn(8)), rows(8), kind="text", step=0)
    found[f"{heads[0]}_loss"][0].backward()
    reached = {
        name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.abs().sum())
    }
    assert {"text_embedding", "state_encoder", "state_time", "time", "blocks", f"{heads[0]}_head"} <= reached
    assert {"text", "state"} - set(heads) == {
        name.removesuffix("_head") for name in ("text_head", "state_head") if name not in reached
    }
    # A text whose states are dropped has a text loss and no state loss.
    assert ("null_state" in reached) == (heads == ("text",))


# -- what is bounded --------------------------------------------------------------------------------------------------


def test_the_text_loss_given_noised_states_is_no_bound_and_the_likelihood_with_dropped_states_is() -> None:
    data = batch(drawn(6000))
    joint = losses_of(objective(condition_dropout=0.0), Exact(), data)["text_loss"] * 2
    assert joint < 0.6 * ENTROPY, "the states of the clean text give its tokens away"
    dropped = losses_of(objective(condition_dropout=1.0), Exact(), data)["text_loss"] * 2
    assert dropped == pytest.approx(ENTROPY, rel=0.05)
    generation = objective().generative_model(Exact())
    found = generation.likelihood(data.tokens_BL, latents_Bd=None, draws=4, generator=rows(6000))
    assert float(found.nll_KB.mean()) == pytest.approx(ENTROPY, rel=0.03)


def test_the_likelihood_reads_the_learned_vector_of_dropped_states() -> None:
    model = stirred_model()
    generation = objective().generative_model(model)

    def nll() -> Tensor:
        with torch.no_grad():
            found: Tensor = generation.likelihood(PAIRS, latents_Bd=None, draws=1, generator=rows(9)).nll_KB
        return found

    before = nll()
    assert torch.equal(before, nll())
    model.null_state.value.data += 1.0
    assert not torch.allclose(before, nll())


def test_without_dropout_there_is_no_likelihood() -> None:
    made = objective(condition_dropout=0.0)
    model = parse_kind(MODELS, {"kind": "ccdd"}, at="model")
    assert made.config.capabilities(model).uses == {"unconditional"}
    assert objective(length_weight=0.1).config.capabilities(model).uses == {"unconditional", "infill", "score"}
    with pytest.raises(SamplingError, match="condition_dropout 0"):
        made.generative_model(Exact()).likelihood(PAIRS, latents_Bd=None, draws=1, generator=rows(9))


def test_states_that_are_always_dropped_are_refused() -> None:
    model = parse_kind(MODELS, {"kind": "ccdd"}, at="model")
    with pytest.raises(ConfigurationError, match=r"condition_dropout' is 1, which drops the states of every text"):
        objective(condition_dropout=1.0).config.capabilities(model)


# -- the joint sampler ------------------------------------------------------------------------------------------------


def write(count: int, *, made: Any = None, seed: int = 5, canvas_BL: Tensor | None = None, **keys: Any) -> Any:
    canvas_BL = torch.full((count, 2), MASK) if canvas_BL is None else canvas_BL
    sampler = text_sampler("joint_states", **keys)
    generation = (made or objective()).generative_model(Exact())
    return generation.write(
        canvas_BL, canvas_BL == MASK, latents_Bd=None, sampler=sampler, generator=rows(len(canvas_BL), seed)
    )


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_exact_model_draws_the_distribution(eta: float) -> None:
    tokens = write(6000, steps=48, eta=eta).tokens
    found = torch.zeros(3, 3).index_put_((tokens[:, 0], tokens[:, 1]), torch.ones(6000), accumulate=True) / 6000
    assert float((found - JOINT).abs().max()) < 0.02


def test_given_tokens_stay_and_decide_the_others() -> None:
    canvas_BL = torch.tensor([[0, MASK]]).repeat(3000, 1)
    tokens = write(3000, steps=48, canvas_BL=canvas_BL).tokens
    assert (tokens[:, 0] == 0).all()
    share = torch.bincount(tokens[:, 1], minlength=3) / 3000
    assert torch.allclose(share.double(), JOINT[0] / JOINT[0].sum(), atol=0.05)


def test_a_sample_does_not_depend_on_padding() -> None:
    model = stirred_model()
    generation = objective().generative_model(model)

    def tokens(canvas_BL: Tensor) -> Tensor:
        sampler = text_sampler("joint_states", steps=4)
        found: Tensor = generation.write(
            canvas_BL, canvas_BL == MASK, latents_Bd=None, sampler=sampler, generator=rows(len(canvas_BL))
        ).tokens
        return found

    with torch.no_grad():
        assert torch.equal(tokens(torch.tensor([[MASK, PAD]]))[:, :1], tokens(torch.tensor([[MASK]])))


def test_guidance_needs_dropped_states_and_costs_a_second_call() -> None:
    plain, guided = write(500, steps=4), write(500, steps=4, guidance=3.0)
    assert (plain.model_calls, guided.model_calls) == (4, 8)
    assert guided.calls_per_row.tolist() == [8] * 500
    assert not torch.equal(plain.tokens, guided.tokens)
    with pytest.raises(SamplingError, match="guidance 3"):
        write(2, steps=2, guidance=3.0, made=objective(condition_dropout=0.0))
    write(2, steps=2, made=objective(condition_dropout=0.0))


def test_a_model_without_states_is_refused() -> None:
    made = parse_kind(OBJECTIVES, {"kind": "text_diffusion"}, at="objective").build(SHAPE)
    canvas_BL = torch.full((1, 2), MASK)
    with pytest.raises(SamplingError, match="'joint_states' needs a model with a continuous state"):
        made.generative_model(Exact()).write(
            canvas_BL, canvas_BL == MASK, latents_Bd=None, sampler=text_sampler("joint_states"), generator=rows(1)
        )
