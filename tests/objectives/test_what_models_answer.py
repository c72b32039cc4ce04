"""What a trained run answers is what its model says of that row: lengths, likelihoods, log-probabilities of tokens,
importance and classes, each given the row's own condition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_every_option import ABSORBING, REAL, batch, built, generator, part
from torch import Tensor

from mm_ldlm.families.atat.objective import importance_statistics

GIVEN = {"latent_conditioned": "latents", "multimodal": "latents", "image_text": "images"}
"""kind of objective with a condition → its field"""
TIMES = {
    "text_diffusion": ("t_B",), "adaptive_masking": ("t_B",), "latent_conditioned": ("t_B",),
    "ccdd": ("t_text_B", "t_state_B"), "multimodal": ("t_text_B", "t_latent_B"),
    "image_text": ("t_text_B", "t_image_B"), "image_text_continuous": ("t_text_B", "t_image_B"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def generation(kind: str, **options: Any) -> tuple[Any, Any]:
    options = options if kind in ("image_text_continuous", "classification") else {**ABSORBING, **options}
    _, made, model = built(kind, options)
    return made.generative_model(model), model


def trained_lengths(kind: str, model: Any, given: Tensor | None) -> Tensor:
    """What the length head gives where training asks it, (B, N)."""
    data = part(batch(), slice(REAL))
    keys: dict[str, Any] = dict.fromkeys(TIMES[kind], torch.full((REAL,), 0.3))
    null_B = torch.full((REAL,), given is None)
    clean = data.fields[GIVEN.get(kind, "latents")] if given is None else given
    if kind == "ccdd":
        keys |= {"states_BLd": data.fields["token_states"]}
    elif kind == "latent_conditioned":
        keys |= {"latents_Bd": clean, "null_latent_B": null_B}
    elif kind == "multimodal":
        noised = torch.ones_like(clean)
        keys |= {"latents_Bd": noised, "length_latents_Bd": clean, "null_length_B": null_B, "heads": ("length",)}
    elif kind in GIVEN:
        noised = torch.ones_like(clean)
        keys |= {"images_BP": noised, "length_images_BP": clean, "null_length_B": null_B, "heads": ("length",)}
    out = model(data.tokens_BL, valid_BL=data.valid_BL, **keys)
    found = next(getattr(out, name) for name in dir(out) if name.startswith("length_logits"))
    return torch.log_softmax(found.expand(REAL, -1), dim=1)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", ["text_diffusion", "adaptive_masking", "ccdd", *GIVEN])
def test_lengths_are_drawn_from_what_training_teaches(kind: str, given: bool) -> None:
    made, model = generation(kind)
    condition = batch().fields[GIVEN[kind]][:REAL] if given and kind in GIVEN else None
    found_BN = made.length_log_probs(condition, rows=REAL)
    assert found_BN.shape == (REAL, 6)
    torch.testing.assert_close(found_BN, trained_lengths(kind, model, condition), rtol=1e-5, atol=1e-5)
    assert (found_BN[:-1] - found_BN[1:]).abs().amax(1).gt(1e-3).all() == (condition is not None)


# -- each row under its own condition ----------------------------------------------------------------------------------

ASKED: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "likelihood": lambda made, tokens, given: (
        made.likelihood(tokens, latents_Bd=given, draws=2, generator=generator(REAL)).nll_KB.T
    ),
    "tokens": lambda made, tokens, given: made.token_log_probs(tokens, latents_Bd=given, generator=generator(REAL))[0],
    "lengths": lambda made, tokens, given: made.length_log_probs(given, rows=len(tokens)),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", GIVEN)
def test_an_answer_changes_with_the_condition_of_its_own_row_alone(kind: str, asked: str) -> None:
    made, _ = generation(kind)
    data = part(batch(), slice(REAL))
    given = data.fields[GIVEN[kind]]
    before = ASKED[asked](made, data.tokens_BL, given)
    for row in (0, 3):
        changed = given.clone()
        changed[row] += 2
        after = ASKED[asked](made, data.tokens_BL, changed)
        differs = (after - before).flatten(1).abs().amax(1) > 1e-6
        assert differs.nonzero().flatten().tolist() == [row]


@pytest.mark.parametrize("kind", GIVEN)
def test_guidance_is_away_from_the_prediction_without_a_condition(kind: str) -> None:
    made, _ = generation(kind)
    data = part(batch(), slice(REAL))
    given, rows = data.fields[GIVEN[kind]], torch.tensor([4, 1, 1, 0])
    asked_AL = data.valid_BL[rows]
    noisy_AL = torch.where(asked_AL, 1, 0)
    query = (noisy_AL, torch.tensor([0.9, 0.1, 0.4, 0.4]), rows, asked_AL)
    denoiser = made.text_denoiser(given, generator(REAL))
    unknown = made.text_denoiser(None, generator(REAL))
    torch.testing.assert_close(denoiser.unconditional(*query), unknown.logits(*query))
    own = made.text_denoiser(given[rows], generator(REAL)).logits(*query[:2], torch.arange(4), asked_AL)
    torch.testing.assert_close(denoiser.logits(*query), own)
    assert not torch.allclose(denoiser.logits(*query), unknown.logits(*query), atol=1e-3)


# -- the fields of a likelihood, and what a sampler is given ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["text_diffusion", "latent_conditioned", "multimodal", "image_text", "ccdd"])
def test_a_likelihood_has_the_draws_of_its_process_under_their_names(kind: str) -> None:
    made, _ = generation(kind)
    data = part(batch(), slice(REAL))
    given = data.fields[GIVEN[kind]] if kind in GIVEN else None
    found = made.likelihood(data.tokens_BL, latents_Bd=given, draws=3, generator=generator(REAL))
    logits = made.text_denoiser(given, generator(REAL)).logits
    expected = made.process.nelbo(
        lambda noisy, t, scored: logits(noisy, t, torch.arange(REAL), scored), data.tokens_BL, data.valid_BL,
        draws=3, generator=generator(REAL),
    )  # fmt: skip
    names = {
        "nll_KB": "nll_KB", "mask_ratio_KB": "noise_KB", "masked_KB": "scored_KB", "correct_KB": "correct_KB",
        "cross_entropy_KB": "cross_entropy_KB",
    }  # fmt: skip
    for own, name in names.items():
        torch.testing.assert_close(getattr(found, own), getattr(expected, name), rtol=1e-6, atol=1e-6)
    lengths_B = data.valid_BL.sum(1)
    assert bool((found.correct_KB <= found.masked_KB).all() and (found.masked_KB <= lengths_B).all())
    assert bool((found.masked_KB > found.correct_KB).any() and (found.nll_KB >= found.cross_entropy_KB).all())
    assert bool(((found.mask_ratio_KB > 0) & (found.mask_ratio_KB <= 1)).all())
    many = found.mask_ratio_KB.flatten().argsort()
    masked = (found.masked_KB / lengths_B).flatten()[many]
    assert masked[12:].mean() > masked[:12].mean(), "more noise, more masks"


@pytest.mark.parametrize("kind", ["text_diffusion", "latent_conditioned", "multimodal", "autoregressive", "ccdd"])
def test_a_sampler_is_given_the_canvas_its_open_positions_and_the_longest_text(kind: str) -> None:
    seen: dict[str, Any] = {}
    sampler = SimpleNamespace(sample=lambda model, canvas, **keys: seen.update(model=model, canvas=canvas, **keys))
    made = built(kind, {})[1].generative_model(None) if kind == "autoregressive" else generation(kind)[0]
    canvas, open_BL = torch.tensor([[1, 5, 1], [1, 1, 0]]), torch.tensor([[True, False, True], [True, True, False]])
    draws = generator(2)
    given = torch.zeros(2, 4) if kind in GIVEN else None
    made.write(canvas, open_BL, latents_Bd=given, sampler=sampler, generator=draws)
    assert seen["canvas"] is canvas
    assert seen["open_BL"] is open_BL
    assert (seen["window"], seen["generator"], seen["process"]) == (6, draws, made.process)
    assert (made.process is None) == (kind == "autoregressive")


@pytest.mark.parametrize(
    ("kind", "process", "given", "alone"),
    [
        ("text_diffusion", "absorbing", ("confidence", 4, 0.0), ("confidence", 32, 1.0)),
        ("text_diffusion", "gidd", ("ancestral", 4, 0.0), ("ancestral", 32, 1.0)),
        ("multimodal", "absorbing", ("confidence", 4, 0.0), ("confidence", 32, 1.0)),
        ("latent_conditioned", "uniform", ("ancestral", 4, 0.0), ("ancestral", 32, 1.0)),
        ("ccdd", "absorbing", ("confidence", 4, 0.0), ("joint_states", 32, 1.0)),
        ("image_text_continuous", None, ("ddim", 20, None), ("ddim", 20, None)),
    ],
)
def test_the_default_samplers(kind: str, process: str | None, given: Any, alone: Any) -> None:
    options = {} if process is None else {"process": {"kind": process}}
    made, _ = generation(kind, **options)
    for conditional, expected in ((True, given), (False, alone)):
        sampler = made.default_sampler(conditional=conditional)
        assert (sampler.kind, sampler.steps, getattr(sampler, "temperature", None)) == expected


# -- importance --------------------------------------------------------------------------------------------------------


def test_the_importance_of_a_token_does_not_depend_on_the_padding_of_its_canvas() -> None:
    made, _ = generation("adaptive_masking", time_sharpening=False)
    tokens = torch.tensor([[5, 1, 7, 0, 0], [3, 4, 1, 9, 2]])
    asked = made.text_denoiser(None, generator(2)).importance
    whole, t_B = asked(tokens, torch.full((2,), 0.5)), torch.full((1,), 0.5)
    torch.testing.assert_close(whole[:1, :3], asked(tokens[:1, :3], t_B))
    torch.testing.assert_close(whole[1:], asked(tokens[1:], t_B))


def test_the_statistics_of_the_importance_leave_out_what_fills_the_texts() -> None:
    importance = torch.tensor([[0.3, 0.8, 0.1, 0.9], [0.4, 0.05, 0.95, 0.0]])
    valid = torch.tensor([[True, True, False, False], [True, False, False, False]])
    found = {name: float(total / count) for name, (total, count) in importance_statistics(importance, valid).items()}
    assert found["importance_min"] == pytest.approx(0.3)
    assert found["importance_max"] == pytest.approx(0.8)
    assert found["importance_std"] == pytest.approx((((0.2**2) + 0.3**2 + 0.1**2) / 3) ** 0.5)


# -- classes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classification", "pairwise_classification"])
def test_the_labels_of_examples_that_fill_a_batch_are_not_read(kind: str) -> None:
    _, made, model = built(kind, {})
    data = batch()
    labels = data.fields["labels"].clone()
    labels[REAL:] = 2
    first = made(model, data, generator(), kind="classes", step=0)
    for label in (2, -1, 99) if kind == "classification" else (2, -1):
        labels[REAL:] = label
        other = dataclasses.replace(data, fields={**data.fields, "labels": labels.clone()})
        assert made(model, other, generator(), kind="classes", step=0) == first


def test_a_pair_is_compared_text_by_text_each_with_its_own_length() -> None:
    _, made, model = built("pairwise_classification", {})
    data = part(batch(), slice(REAL))
    second_BL = data.fields["pair_tokens"].clone()
    second_BL[:2] = torch.tensor([[5, 6, 7, 0, 0, 0], [4, 0, 0, 0, 0, 0]])
    found = made.generative_model(model).class_logits(data.tokens_BL, second_BL=second_BL)
    for row in range(REAL):
        sides = [side[row][side[row] != 0][None] for side in (data.tokens_BL, second_BL)]
        if not all(side.numel() for side in sides):
            continue
        features = [model.features(side, valid_BL=torch.ones_like(side, dtype=torch.bool)) for side in sides]
        torch.testing.assert_close(found[row : row + 1], made.head(*features), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("features", ["latents", "trunk"])
def test_a_classifier_answers_with_the_logits_of_its_training(features: str) -> None:
    _, made, model = built("classification", {"features": features})
    data = part(batch(), slice(REAL))
    latents = data.fields["latents"]
    given: dict[str, Any] = {"latents_Bd": latents} if features == "latents" else {"tokens_BL": data.tokens_BL}
    found = made.generative_model(model).class_logits(**given)
    torch.testing.assert_close(found, made.batch_logits(model, data))
    total, count = made(model, data, generator(REAL), kind="classes", step=0)["class_nll"]
    expected = -found.log_softmax(1).gather(1, data.fields["labels"]).sum()
    assert (float(total), int(count)) == (pytest.approx(float(expected), rel=1e-5), REAL)
