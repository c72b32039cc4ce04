"""The Gaussian modality of an objective: its noise, its loss, and the modes of its steps."""

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from tests.components import SHAPE, random_batch, root_of
from tests.objectives.test_objective import losses_of

from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.text_and_modality import GaussianModality, value_times
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

each_parameterisation = pytest.mark.parametrize(
    "options",
    [
        {"parameterisation": kind, "latent_loss": loss, "min_snr_gamma": 0.5, "t_min": 0.2}
        for kind in ("eps", "x0", "v")
        for loss in ("uniform", "min_snr")
    ] + [{"parameterisation": "flow", "latent_schedule": {"kind": "flow"}}],
    ids=str,
)  # fmt: skip


def modality_of(options: dict[str, Any]) -> GaussianModality:
    return root_of("multimodal", options).objective.modality


@each_parameterisation
def test_pitfall_07_the_loss_sees_the_magnitude_of_the_prediction(options: dict[str, Any]) -> None:
    """It is 0 for the target alone; of its double, it is the weighted square of the target."""
    modality, batch = modality_of(options), random_batch(examples=6)
    noisy = modality.corrupt(batch, RowGenerator(0, batch.position_B))
    target_Bd = gaussian.target(modality.parameterisation, noisy.x0_Bd, noisy.noise_Bd, noisy.scales)
    torch.testing.assert_close(modality.x0(target_Bd, noisy.x_t_Bd, noisy.t_B), noisy.x0_Bd, rtol=1e-2, atol=1e-2)

    def loss(prediction_Bd: torch.Tensor) -> float:
        total, count = modality.losses(prediction_Bd, noisy, batch.real_B)["latent_loss"]
        assert int(count) == 6
        return float(total)

    assert loss(target_Bd) == 0
    found = modality.losses(target_Bd, noisy, batch.real_B)
    torch.testing.assert_close(found["noise_level"][0], noisy.scales.noise_B.sum())
    quarters = torch.bincount((4 * noisy.t_B).long(), minlength=4)
    assert [int(found[f"latent_error_t{quarter}"][1]) for quarter in range(4)] == quarters.tolist()
    assert float(found["latent_cosine"][0]) == pytest.approx(6, abs=0.05), "of the estimated latent to the true one"
    unit = loss(target_Bd + 1)
    assert loss(target_Bd + 3) == pytest.approx(9 * unit, rel=1e-4)
    w_B = gaussian.loss_weight(
        options.get("latent_loss", "min_snr"), noisy.scales.snr_B, parameterisation=modality.parameterisation,
        gamma=options.get("min_snr_gamma", 5.0),
    )  # fmt: skip
    assert unit == pytest.approx(float(w_B.sum()), rel=1e-4)
    assert loss(2 * target_Bd) == pytest.approx(float((w_B * target_Bd.square().mean(1)).sum()), rel=1e-4)
    assert float(noisy.t_B.min()) >= options.get("t_min", 1e-3)


def test_times_of_the_values_are_spread_over_the_batch_whatever_the_order_of_the_texts() -> None:
    batch = random_batch(examples=16)
    for seed in range(5):
        t_B = value_times(batch, RowGenerator(seed, batch.position_B), t_min=1e-3)
        cells = ((t_B - 1e-3) / (1 - 1e-3) * 8).long().clamp(max=7)
        assert Counter(cells.tolist()) == dict.fromkeys(range(8), 2)
        assert not torch.equal(t_B.argsort(), torch.arange(16))


@pytest.mark.parametrize(
    "weights", [{"l2t": 1, "t2l": 3, "unconditional": 0}, {"l2t": 1, "t2l": 1, "unconditional": 2}]
)
def test_the_modes_of_the_steps_have_their_frequencies(weights: dict[str, int]) -> None:
    objective = root_of("multimodal", {"mode": "mixed", "loss_type_weights": weights}).objective
    drawn = Counter(objective.kind(RowGenerator(seed, torch.arange(2)), step=0) for seed in range(2000))
    for mode, weight in weights.items():
        assert drawn[mode] / 2000 == pytest.approx(weight / sum(weights.values()), abs=0.04)
    options = {"mode": "sequential", "loss_type_weights": weights, "sequential_steps": 2}
    objective = root_of("multimodal", options).objective
    turns = [objective.kind(RowGenerator(0, torch.arange(2)), step=step) for step in range(12)]
    assert turns == ([mode for mode, weight in weights.items() if weight for _ in range(2)] * 3)[:12]


# -- what the model is given --------------------------------------------------------------------------------------------


def calls_of(root: Any) -> list[dict[str, Any]]:
    """The named arguments of every call of the model from now on, and whether it keeps a graph."""
    calls: list[dict[str, Any]] = []
    root.model.register_forward_pre_hook(
        lambda module, args, named: calls.append({**named, "graph": torch.is_grad_enabled()}), with_kwargs=True
    )
    return calls


def test_a_dropped_condition_trains_the_marginal_of_lengths() -> None:
    root, batch = root_of("multimodal", {"condition_dropout": 1.0}), random_batch()
    other = dataclasses.replace(batch, fields={**batch.fields, "latents": batch.fields["latents"] + 1})
    losses, same = (losses_of(root, each, "l2t") for each in (batch, other))
    torch.testing.assert_close(losses["length_loss"], same["length_loss"])


def test_given_every_latent_the_lengths_are_learned_from_the_clean_ones() -> None:
    root, batch = root_of("multimodal", {"condition_dropout": 0.0}), random_batch()
    for mode in root.objective.kinds:
        losses = (losses_of(root, batch, mode, seed=seed)["length_loss"] for seed in range(2))
        torch.testing.assert_close(*losses)


def test_the_first_estimate_of_self_conditioning_is_made_in_half_of_the_steps_without_a_graph() -> None:
    options = {"mode": "t2l", "self_condition": True, "_model": {"self_condition": True}}
    root, batch, found = root_of("multimodal", options, stirred=False), random_batch(), Counter[tuple[bool, ...]]()
    calls = calls_of(root)
    for seed in range(40):
        calls.clear()
        losses_of(root, batch, "t2l", seed=seed)
        found[tuple(call["graph"] for call in calls)] += 1
        z_Bd, t_B, first = calls[0]["latents_Bd"], calls[0]["t_latent_B"], len(calls) == 2
        signal, _ = root.objective.modality.schedule.scales(t_B).like(z_Bd)  # type: ignore[operator, union-attr]
        expected_Bd = signal * z_Bd * first  # of the initial prediction v = 0
        torch.testing.assert_close(calls[-1]["self_condition_Bd"], expected_Bd)
        losses_of(root, batch, "l2t", seed=seed)
    assert found.keys() == {(True,), (False, True)}
    assert min(found.values()) > 8
    assert len(calls) - 1 in (1, 2), "a given latent is not estimated"
    made, draw, two = root.objective.generative_model(root.model), RowGenerator(0, torch.arange(4)), {"steps": 2}
    for request, samplers in (
        (made.latents_given_texts, {"sampler": latent_sampler("ddim", **two)}),
        (made.latents_given_lengths, {"sampler": latent_sampler("ddim", **two)}),
        (made.both, {"text": text_sampler("ancestral", **two), "latent": latent_sampler("ddim", **two)}),
    ):
        calls.clear()
        with made.evaluating():
            request(torch.where(batch.valid_BL, SHAPE.mask_id, SHAPE.pad_id), generator=draw, **samplers)
        signal, _ = root.objective.modality.schedule.scales(calls[0]["t_latent_B"]).like(calls[0]["latents_Bd"])
        torch.testing.assert_close(calls[1]["self_condition_Bd"], signal * calls[0]["latents_Bd"], atol=1e-4, rtol=0)


def test_what_is_unknown_is_pure_noise_without_a_null_and_the_null_with_one() -> None:
    batch, generator = random_batch(), RowGenerator(0, torch.arange(4))
    asked = (batch.tokens_BL, torch.full((4,), 0.5), torch.arange(4), batch.valid_BL)
    for dropout in (0.0, 0.5):
        root = root_of("multimodal", {"condition_dropout": dropout})
        made, calls = root.objective.generative_model(root.model), calls_of(root)
        made.text_denoiser(None, generator).logits(*asked)
        assert calls[0]["t_latent_B"].tolist() == [1.0 if dropout == 0 else 0.0] * 4
        assert (calls[0]["null_latent_B"] is None) == (dropout == 0)
        made.latents_given_lengths(batch.tokens_BL, sampler=latent_sampler("ddim", steps=1), generator=generator)
        assert calls[1]["t_text_B"].tolist() == calls[0]["t_latent_B"].tolist()
        zeros_Bd = torch.zeros_like(batch.fields["latents"])
        assert not torch.allclose(made.length_logits(None, rows=4), made.length_logits(zeros_Bd, rows=4))
        logits = made.text_denoiser(batch.fields["latents"], generator).logits
        part = logits(*(each[[2, 0]] for each in asked))
        torch.testing.assert_close(part, torch.cat([logits(*(each[[row]] for each in asked)) for row in (2, 0)]))
    calls.clear()
    made.latents_given_texts(
        batch.tokens_BL, sampler=latent_sampler("ddim", steps=1, guidance=2.0), generator=generator
    )
    assert [None if call["null_text_B"] is None else bool(call["null_text_B"].all()) for call in calls] == [None, True]
