"""Losses and statistics by hand: of a Gaussian diffusion, and of captions that are noised as vectors; what a sample of
such captions records."""

from __future__ import annotations

from typing import Any

import pytest
import test_ccdd as ccdd
import torch
from test_image_text import SHAPE, P, Spy, batch, canvases, generator, model, objective, pairs
from torch import Tensor, nn

from mm_ldlm.diffusion.gaussian import to_x0
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.ccdd.model import Output
from mm_ldlm.objectives.gaussian_loss import gaussian_loss
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

T = torch.tensor([0.1, 0.3, 0.45, 0.7, 0.9, 0.95])
REAL = torch.tensor([True, True, True, True, True, False])
X0, NOISE, FOUND = (torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1, 2))


@pytest.mark.parametrize("gamma", [0.5, 5.0])
@pytest.mark.parametrize("weight", ["min_snr", "uniform"])
@pytest.mark.parametrize("kind", ["eps", "x0", "v", "flow"])
def test_the_loss_the_cosine_the_noise_level_and_the_error_by_time_are_as_defined(
    kind: Any, weight: Any, gamma: float
) -> None:
    schedule = GaussianSchedule(name="flow" if kind == "flow" else "linear")
    s, n = schedule.signal(T)[:, None], schedule.noise(T)[:, None]
    x_t = s * X0 + n * NOISE
    want, x0_hat = {
        "eps": (NOISE, (x_t - n * FOUND) / s), "x0": (X0, FOUND), "v": (s * NOISE - n * X0, s * x_t - n * FOUND),
        "flow": (NOISE - X0, (x_t - n * FOUND) / (s + n)),
    }[kind]  # fmt: skip
    found = gaussian_loss(
        FOUND, X0, x_t, NOISE, T, REAL, schedule=schedule, parameterisation=kind, weight=weight, gamma=gamma,
        name="latent",
    )  # fmt: skip

    def close(name: str, values: Tensor, count: int = 5) -> None:
        assert float(found[name][0]) == pytest.approx(float(values.sum()), rel=1e-4)
        assert int(found[name][1]) == count

    error = (FOUND - want).square().mean(1)
    in_x0 = (s / n).square()[:, 0].clamp(max=gamma) * (x0_hat - X0).square().mean(1)
    close("latent_loss", (in_x0 if weight == "min_snr" else error)[REAL])
    close("latent_cosine", ((x0_hat * X0).sum(1) / (x0_hat.norm(dim=1) * X0.norm(dim=1)))[REAL])
    close("noise_level", n[REAL])
    for quarter, rows in enumerate(([0], [1, 2], [3], [4])):
        close(f"latent_error_t{quarter}", error[rows], len(rows))
    assert set(found) == {"latent_loss", "latent_cosine", "noise_level", *(f"latent_error_t{i}" for i in range(4))}


@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_captions_as_vectors_are_scored_at_every_token(fixed_shapes: bool) -> None:
    """A model that prefers the word 7: right at every 7, wrong elsewhere, whatever it gives to [MASK] and [PAD]."""

    class Prefers(Spy):
        def forward(self, tokens_BL: Tensor, **given: Any) -> Any:
            out = super().forward(tokens_BL, **given)
            out.logits[..., 7], out.logits[..., :2] = 2.0, 9.0
            return out

    made, spy, data = objective("image_text_continuous"), Prefers(), batch()
    made.fixed_shapes = fixed_shapes
    found = made(spy, data, generator(), kind="image_to_caption", step=0)
    assert (spy.given["logits_at"] is None) is fixed_shapes
    tokens, t_B = data.tokens_BL, spy.given["t_text_B"]
    norm = torch.logsumexp(torch.tensor([2.0, *[0.0] * (SHAPE.vocab_size - 3)]), 0)
    nll_BL = torch.where(tokens == 7, norm - 2.0, norm).masked_fill(~data.valid_BL, 0.0)
    count = data.global_tokens
    assert [float(x) for x in found["text_loss"]] == pytest.approx([float(nll_BL.sum()), count], rel=1e-5)
    assert [float(x) for x in found["text_nll"]] == pytest.approx([float(nll_BL.sum()), count], rel=1e-5)
    assert [float(x) for x in found["text_accuracy"]] == [int((tokens == 7).sum()), count]
    for quarter in range(4):
        rows = ((t_B * 4).long().clamp(max=3) == quarter).nonzero()[:, 0]
        expected = [float(nll_BL[rows].sum()), int(data.valid_BL[rows].sum())]
        assert [float(x) for x in found[f"text_nll_t{quarter}"]] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_a_sample_of_captions_as_vectors_records_its_words_steps_and_calls(guidance: float) -> None:
    made = objective("image_text_continuous").generative_model(model("image_text_continuous"))
    canvas_BL, sampler = canvases(), latent_sampler("ddim", steps=3, guidance=guidance)
    open_BL = canvas_BL == 1
    assert not bool(open_BL.all())
    with made.evaluating():
        found = made.write(canvas_BL, open_BL, latents_Bd=pairs()[1], sampler=sampler, generator=generator())
        both = made.both(canvas_BL, text=None, latent=latent_sampler("ddim", steps=3), generator=generator())
    calls = 3 * (2 if guidance != 1.0 else 1) + 1  # the last call rounds the vectors to words
    for sample, expected in ((found, calls), (both.text, 4)):
        assert sample.model_calls == expected
        assert sample.calls_per_row.tolist() == [expected] * len(canvas_BL)
        assert torch.equal(sample.steps, torch.where(open_BL, 0, -1))
        assert bool((sample.tokens[open_BL] > 1).all())
        assert bool((sample.tokens[~open_BL] == SHAPE.pad_id).all())
        assert bool((sample.log_probs[open_BL] < 0).all())
        assert not bool(sample.log_probs[~open_BL].any())
    assert both.model_calls == 4


@pytest.mark.parametrize("kind", ["image_text", "image_text_continuous"])
@pytest.mark.parametrize("given", [True, False])
def test_a_caption_is_written_given_a_clean_image_or_the_null_image(kind: str, given: bool) -> None:
    seen: list[dict[str, Any]] = []

    class Seen(Spy):
        unit_vectors = torch.randn(SHAPE.vocab_size, 5)

        def forward(self, tokens_BL: Tensor, **arguments: Any) -> Any:
            seen.append(arguments)
            return super().forward(tokens_BL, **{"logits_at": None, **arguments})

    spy = Seen()
    made, canvas_BL, images_BP = objective(kind).generative_model(spy), canvases(), pairs()[1]
    sampler = text_sampler("ancestral", steps=3) if kind == "image_text" else latent_sampler("ddim", steps=3)
    spy.unused = nn.Parameter(torch.zeros(1))
    with made.evaluating():
        made.write(
            canvas_BL, canvas_BL == 1, latents_Bd=images_BP if given else None, sampler=sampler, generator=generator()
        )  # fmt: skip
    times = [float(call["t_text_B"][0]) for call in seen]
    assert times == pytest.approx([1, 2 / 3, 1 / 3] + ([] if kind == "image_text" else [0.0]))
    for call in seen:
        assert not bool(call["t_image_B"].any())
        if given:
            assert call["null_image_B"] is None
            assert torch.isin(call["images_BP"], images_BP).all()
        else:
            assert bool(call["null_image_B"].all())


@pytest.mark.parametrize("weight", ["uniform", "min_snr"])
@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_the_error_of_token_states_is_that_of_the_texts_that_keep_them(fraction: float, weight: str) -> None:
    """The model predicts 0, so that the error of a token is the mean square of its state, whatever its weight is."""
    data, seen = ccdd.batch(ccdd.drawn(40)), dict[str, Tensor]()

    def zeros(tokens_BL: Tensor, **given: Any) -> Output:
        seen.update(given)
        return Output(torch.zeros(int(given["logits_at"].sum()), 5), torch.zeros(40, 2, 2), torch.zeros(2))

    found = ccdd.objective(condition_dropout=fraction, timesteps="separate", state_loss=weight)(
        zeros, data, ccdd.rows(40), kind="text", step=0
    )
    kept_B, t_B = ~seen["null_state_B"], seen["t_state_B"]
    assert bool(kept_B.all()) is (fraction == 0)
    square_B = data.fields["token_states"].square().mean(2).sum(1)
    for name, rows in {
        "": kept_B, **{f"_t{i}": kept_B & ((t_B * 4).long().clamp(max=3) == i) for i in range(4)}
    }.items():  # fmt: skip
        expected = [float(square_B[rows].sum()), 2 * int(rows.sum())]
        assert [float(x) for x in found[f"state_error{name}"]] == pytest.approx(expected, rel=1e-5)
    assert int(found["state_loss"][1]) == data.global_tokens


@pytest.mark.parametrize("kind", ["x0", "v", "eps"])
def test_the_estimate_of_a_caption_is_its_expected_vector_in_the_parameterisation_of_the_image(kind: Any) -> None:
    vectors, schedule, seen = torch.randn(SHAPE.vocab_size, 5), GaussianSchedule(), list[float]()

    class Certain(Spy):
        unit_vectors = vectors

        def forward(self, tokens_BL: Tensor, **given: Any) -> Any:
            out = super().forward(tokens_BL, **{"logits_at": None, **given})
            out.logits[..., 4] = 100.0
            return out

    class Once:
        def sample(self, denoise: Any, *, dim: int, generator: Any) -> LatentSample:
            for t in (0.2, 0.6, 0.95):
                t_B = torch.full((3,), t)
                z_Bd = torch.randn(3, dim, generator=torch.Generator().manual_seed(1))
                scales = {"signal_B": schedule.signal(t_B), "noise_scale_B": schedule.noise(t_B)}
                x0_Bd = to_x0(denoise.predict(z_Bd, t_B, None), denoise.parameterisation, x_t_Bd=z_Bd, **scales)
                torch.testing.assert_close(x0_Bd[:, P:].view(3, 2, 5), vectors[4].expand(3, 2, 5), atol=1e-4, rtol=1e-4)
                seen.append(t)
            return LatentSample(torch.zeros(3, dim), torch.zeros(1, 3, dim), 1)

    made = objective("image_text_continuous", parameterisation=kind).generative_model(Certain())
    made.both(torch.ones(3, 2).long(), text=None, latent=Once(), generator=RowGenerator(0, torch.arange(3)))
    assert len(seen) == 3
