"""Diffusion of texts given latents: the draws of training, condition dropout, agreement with text diffusion where every
latent is dropped, guidance, and a step that learns."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import Output
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch, Objective
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import text_sampler

B, N, V, PAD, MASK, D_LATENT = 12, 8, 20, 0, 1, 5
SHAPE = DataShape(vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=N, latent_dim=D_LATENT)
KINDS = ("latent_dit", "latent_dit_cross")
PROCESS: dict[str, Any] = {"kind": "absorbing", "schedule": {"name": "cosine"}, "t_min": 0.01}
SHARED: dict[str, Any] = {"process": PROCESS, "text_weight": 2.0, "length_weight": 0.5, "z_loss": 1e-3}


def build(kind: str, *, stirred: bool = True, **keys: Any) -> Any:
    """With `stirred`, noise on every parameter, because the heads start at 0."""
    small = {"dim": 16, "depth": 2, "heads": 2, **keys}
    model = parse_kind(MODELS, {"kind": kind, **small}, at="model").build(
        SHAPE, generator=torch.Generator().manual_seed(0)
    )
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters() if stirred else ():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def objective(kind: str = "latent_conditioned", **keys: Any) -> Any:
    return parse_kind(OBJECTIVES, {"kind": kind, **SHARED, **keys}, at="objective").build(SHAPE)


def batch(rows: int = B) -> Batch:
    draw = torch.Generator().manual_seed(2)
    lengths_B = torch.arange(rows) % N + 1
    valid_BL = torch.arange(N) < lengths_B[:, None]
    tokens_BL = torch.randint(2, V, (rows, N), generator=draw).masked_fill(~valid_BL, PAD)
    return Batch(
        tokens_BL=tokens_BL, valid_BL=valid_BL, examples_B=torch.arange(rows), position_B=torch.arange(rows),
        global_size=rows, global_tokens=int(lengths_B.sum()),
        fields={"latents": torch.randn(rows, D_LATENT, generator=draw)},
    )  # fmt: skip


def rows(count: int = B, seed: int = 5) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def losses_of(made: Any, model: nn.Module, data: Batch, draws: RowGenerator) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = made(model, data, draws, kind=made.kind(draws, step=0), step=0)
    return found


class Recorder(nn.Module):
    """Passes calls on to a model and keeps what it was given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, []

    def forward(self, tokens_BL: Tensor, **given: Any) -> Any:
        self.seen.append({"tokens_BL": tokens_BL, **given})
        return self.model(tokens_BL, **given)


class WithoutLatent(nn.Module):
    """A model given latents, with the null latent, as a text denoiser."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BL: Tensor, **given: Any) -> Output:
        null_B = torch.ones(len(tokens_BL), dtype=torch.bool)
        latents_Bd = torch.zeros(len(tokens_BL), D_LATENT)
        logits, _ = self.model(tokens_BL, latents_Bd=latents_Bd, null_latent_B=null_B, **given)
        return Output(logits, self.length_logits())

    def length_logits(self) -> Tensor:
        found: Tensor = self.model.length_logits(torch.zeros(1, D_LATENT), torch.ones(1, dtype=torch.bool))[0]
        return found


# -- training -----------------------------------------------------------------------------------------------------


def test_it_is_an_objective_that_reads_latents() -> None:
    made = objective()
    assert isinstance(made, Objective)
    assert made.fields == ("latents",)
    assert objective(length_weight=0.0).idle_parts == {"length_head"}


def test_the_model_is_given_the_clean_latents(model: Any) -> None:
    recorder, data = Recorder(model), batch()
    losses_of(objective(), recorder, data, rows())
    (call,) = recorder.seen
    assert torch.equal(call["latents_Bd"], data.fields["latents"])
    assert bool((call["t_B"] > 0).all())
    assert bool((call["tokens_BL"] == MASK).any())


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.4])
def test_latents_are_dropped_at_their_fraction(fraction: float) -> None:
    recorder, data = Recorder(build("latent_dit")), batch(2000)
    losses_of(objective(condition_dropout=fraction), recorder, data, rows(2000))
    assert float(recorder.seen[0]["null_latent_B"].float().mean()) == pytest.approx(fraction, abs=0.03 * (fraction > 0))


def test_dropping_changes_nothing_else(model: Any) -> None:
    """The same timesteps and masks at every fraction, and as text diffusion draws them."""
    calls = []
    for fraction in (0.0, 0.5, 1.0):
        calls.append(recorder := Recorder(model))
        losses_of(objective(condition_dropout=fraction), recorder, batch(), rows())
    calls.append(recorder := Recorder(WithoutLatent(model)))
    losses_of(objective("text_diffusion"), recorder, batch(), rows())
    for recorder in calls[1:]:
        for name in ("tokens_BL", "t_B", "valid_BL"):
            assert torch.equal(recorder.seen[0][name], calls[0].seen[0][name]), name
    assert not torch.equal(calls[0].seen[0]["null_latent_B"], calls[1].seen[0]["null_latent_B"])


def test_a_dropped_latent_has_no_influence(model: Any) -> None:
    made, data, recorder = objective(condition_dropout=0.5), batch(), Recorder(model)
    first = losses_of(made, recorder, data, rows())
    dropped_B = recorder.seen[0]["null_latent_B"]
    assert dropped_B.any()
    assert not dropped_B.all()
    for changed_B, same in ((dropped_B, True), (~dropped_B, False)):
        moved = data.fields["latents"] + changed_B[:, None].float()
        second = losses_of(made, model, dataclasses.replace(data, fields={"latents": moved}), rows())
        for name in ("text_loss", "length_loss"):
            assert torch.equal(first[name][0], second[name][0]) == same, name


def test_with_every_latent_dropped_it_is_text_diffusion(model: Any) -> None:
    """Equal losses and gradients; the null latent is what learns."""
    found, gradients = [], []
    for made, one in ((objective(condition_dropout=1.0), model), (objective("text_diffusion"), WithoutLatent(model))):
        model.zero_grad()
        losses = losses_of(made, one, batch(), rows())
        sum(losses[name][0] * weight for name, weight in made.weights.items() if name in losses).backward()  # type: ignore[union-attr]
        found.append({name: [float(x.detach()) for x in value] for name, value in losses.items()})
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() >= {"text_loss", "z_loss", "length_loss", "text_nll_t0"}
    for name, value in found[0].items():
        assert value == pytest.approx(found[1][name], rel=1e-5), name
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-4, atol=1e-4), name
    assert bool((gradients[0]["null_latent.value"] != 0).any())


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_at_the_announced_loss_and_ten_steps_on_one_batch_lower_it(kind: str) -> None:
    model, made, data, seen = build(kind, stirred=False, dim=32, heads=4).train(), objective(z_loss=0.0), batch(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(11):
        losses = losses_of(made, model, data, rows())
        if step == 0:
            value, count = losses["text_nll"]
            assert float((value / count).detach()) == pytest.approx(made.expected_first_loss()["text_nll"], rel=1e-4)
            assert float(losses["length_loss"][0].detach() / B) == pytest.approx(math.log(N), rel=1e-4)
        total = 2.0 * losses["text_loss"][0] / data.global_tokens + 0.5 * losses["length_loss"][0] / B
        seen.append(float(total.detach()))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    assert seen[10] < 0.8 * seen[0]


@pytest.mark.parametrize("kind", KINDS)
def test_two_halves_of_a_batch_have_the_losses_of_the_whole(kind: str) -> None:
    """The noise and the dropping of an example belong to its place in the global batch."""
    made, model, data = objective(condition_dropout=0.4), build(kind), batch()
    whole, parts = losses_of(made, model, data, rows()), []
    for index in (torch.arange(0, B, 2), torch.arange(1, B, 2)):
        half = dataclasses.replace(
            data, tokens_BL=data.tokens_BL[index], valid_BL=data.valid_BL[index], examples_B=index, position_B=index,
            fields={"latents": data.fields["latents"][index]},
        )  # fmt: skip
        parts.append(losses_of(made, model, half, RowGenerator(5, index)))
    for name, (value, count) in whole.items():
        together = sum(float(part[name][0].detach()) for part in parts)
        assert together == pytest.approx(float(value.detach()), rel=1e-4, abs=1e-5), name
        assert sum(float(part[name][1]) for part in parts) == float(count)


# -- sampling and scoring -----------------------------------------------------------------------------------------


def test_without_latents_it_scores_and_writes_as_text_diffusion(model: Any) -> None:
    tokens_BL = batch().tokens_BL
    open_BL = (tokens_BL != PAD) & (torch.arange(N) != 1)
    canvas_BL, likelihoods, texts, lengths = tokens_BL.masked_fill(open_BL, MASK), [], [], []
    for made, one in ((objective(), model), (objective("text_diffusion"), WithoutLatent(model))):
        generation = made.generative_model(one)
        with generation.evaluating():
            likelihoods.append(generation.likelihood(tokens_BL, latents_Bd=None, draws=4, generator=rows()))
            texts.append(
                generation.write(
                    canvas_BL, open_BL, latents_Bd=None, sampler=text_sampler("ancestral", steps=6), generator=rows()
                )
            )
            lengths.append(generation.length_log_probs(None, rows=3))
        assert generation.default_sampler(conditional=True) == text_sampler("confidence", steps=4, temperature=0.0)
    for name in ("nll_KB", "mask_ratio_KB", "masked_KB", "correct_KB"):
        assert torch.allclose(*(getattr(draws, name) for draws in likelihoods), rtol=1e-5), name
    assert float(likelihoods[0].nll_KB.std(0).max()) > 0
    assert torch.equal(texts[0].tokens, texts[1].tokens)
    assert torch.allclose(*lengths, atol=1e-5)


def test_every_text_is_written_and_scored_under_its_own_latent(model: Any) -> None:
    data, generation = batch(), objective().generative_model(model)
    turned = torch.arange(B).flip(0)
    canvas_BL = data.tokens_BL.masked_fill(data.valid_BL, MASK)

    def of(index: Tensor) -> list[Tensor]:
        latents_Bd, draws = data.fields["latents"][index], RowGenerator(5, index)
        with generation.evaluating():
            nll = generation.likelihood(data.tokens_BL[index], latents_Bd=latents_Bd, draws=2, generator=draws).nll_KB
            sample = generation.write(
                canvas_BL[index], data.valid_BL[index], latents_Bd=latents_Bd, generator=draws,
                sampler=text_sampler("threshold", steps=8, threshold=0.5),
            )  # fmt: skip
            lengths = generation.length_log_probs(latents_Bd, rows=len(index))
            each, calls = generation.token_log_probs(data.tokens_BL[index], latents_Bd=latents_Bd, generator=draws)
        assert calls == 4
        return [nll.T, sample.tokens, sample.log_probs, lengths, each]

    for straight, other in zip(of(torch.arange(B)), of(turned), strict=True):
        assert torch.allclose(straight[turned].double(), other.double(), atol=1e-5)
    with generation.evaluating():
        nll = [
            generation.likelihood(data.tokens_BL, latents_Bd=latents_Bd, draws=2, generator=rows()).nll_KB
            for latents_Bd in (data.fields["latents"], data.fields["latents"][turned], None)
        ]
    assert not torch.allclose(nll[0], nll[1], rtol=1e-3)
    assert not torch.allclose(nll[0], nll[2], rtol=1e-3)


def test_the_bound_given_a_latent_is_the_likelihood_under_the_optimal_denoiser() -> None:
    """Two latents, two distributions over words, texts of one word twice: each masked word costs −log p(word given
    latent), and the expected cost is that of both words."""
    p_ZV = torch.rand(2, V, generator=torch.Generator().manual_seed(3))
    p_ZV[:, [PAD, MASK]] = 0.0
    p_ZV /= p_ZV.sum(1, keepdim=True)

    class Optimal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def forward(self, tokens_BL: Tensor, *, latents_Bd: Tensor, logits_at: Tensor, **_: Any) -> Output:
            which_B = (latents_Bd[:, 0] > 0).long()
            logits_BLV = p_ZV.clamp_min(1e-30).log()[which_B][:, None].expand(-1, tokens_BL.shape[1], -1)
            return Output(logits_BLV[logits_at], torch.zeros(1))

    count, word, counts = 400, 5, []
    generation = objective().generative_model(Optimal())
    for z in (0, 1):
        latents_Bd = torch.full((count, D_LATENT), 2.0 * z - 1)
        with generation.evaluating():
            found = generation.likelihood(
                torch.full((count, 2), word), latents_Bd=latents_Bd, draws=8, generator=rows(count)
            )
        counts.append(found.nll_KB / -float(p_ZV[z, word].log()))
    assert abs(float(p_ZV[0, word] / p_ZV[1, word]) - 1) > 0.2
    assert torch.allclose(*counts, rtol=1e-4)
    assert float(counts[0].mean()) == pytest.approx(2.0, rel=0.1)


def test_guidance_of_one_is_no_guidance(model: Any) -> None:
    """Neither the texts nor the number of model calls change; another value changes both."""
    data = batch()
    canvas_BL = data.tokens_BL.masked_fill(data.valid_BL, MASK)

    def write(fraction: float, **keys: Any) -> Any:
        generation = objective(condition_dropout=fraction).generative_model(model)
        sampler = text_sampler("random", steps=4, **keys)
        with generation.evaluating():
            return generation.write(
                canvas_BL, data.valid_BL, latents_Bd=data.fields["latents"], sampler=sampler, generator=rows()
            )

    without, one, two = write(0.0), write(0.1, guidance=1.0), write(0.1, guidance=2.0)
    assert torch.equal(without.tokens, one.tokens)
    assert torch.equal(without.log_probs, one.log_probs)
    assert without.model_calls == one.model_calls
    assert two.model_calls == 2 * one.model_calls
    assert not torch.equal(two.log_probs, one.log_probs)
    with pytest.raises(SamplingError, match=r"guidance 2\.0 needs an unconditional prediction"):
        write(0.0, guidance=2.0)


def test_guidance_is_away_from_the_null_latent(model: Any) -> None:
    data = batch()
    denoiser = objective().generative_model(model).text_denoiser(data.fields["latents"], rows())
    index = torch.tensor([3, 7])
    asked_AL = data.valid_BL[index]
    found = denoiser.unconditional(data.tokens_BL[index], torch.ones(2), index, asked_AL)  # type: ignore[misc]
    expected = WithoutLatent(model)(
        data.tokens_BL[index], valid_BL=data.valid_BL[index], t_B=torch.ones(2), logits_at=asked_AL
    ).logits
    assert torch.equal(found, expected)


def test_without_condition_dropout_there_is_no_null_latent(model: Any) -> None:
    generation = objective(condition_dropout=0.0).generative_model(model)
    tokens_BL = batch().tokens_BL
    with generation.evaluating():
        with pytest.raises(
            SamplingError, match=r"does not provide a null latent, because objective\.condition_dropout was 0"
        ):
            generation.likelihood(tokens_BL, latents_Bd=None, draws=1, generator=rows())
        with pytest.raises(SamplingError, match=r"lengths without a latent.*objective\.condition_dropout 0"):
            generation.length_log_probs(None, rows=2)
        assert generation.length_log_probs(torch.zeros(2, D_LATENT), rows=2).shape == (2, N)
    untrained = objective(length_weight=0.0).generative_model(model)
    with pytest.raises(SamplingError, match=r"distribution of lengths: .*objective\.length_weight 0"):
        untrained.length_log_probs(torch.zeros(2, D_LATENT), rows=2)


def test_texts_alone_refuse_latents() -> None:
    """What `text_diffusion` shares with this objective does not ignore a latent."""
    generation = objective("text_diffusion").generative_model(build("dit"))
    with pytest.raises(SamplingError, match="does not provide texts given latents"):
        generation.likelihood(
            batch().tokens_BL, latents_Bd=torch.zeros(B, D_LATENT), draws=1, generator=rows()
        )  # fmt: skip
