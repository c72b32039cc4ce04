"""Objectives of captions and images: what each mode noises, learning, and sampling of what was learned."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.families.images.builds import KINDS, MODEL, B, batch, generator, model, objective, pairs
from torch import Tensor, nn

from mm_ldlm.core import ConfigurationError, SamplingError, parse_kind
from mm_ldlm.models.base import MODELS
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

STEPS = 200
MODES = ("caption_to_image", "image_to_caption", "joint")
Refuses = Callable[..., Any]


class Spy(nn.Module):
    """Passes calls on to a model, and records their arguments and results."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.config = net, net.config

    def forward(self, tokens_BL: Tensor, **asked: Any) -> Any:
        self.asked = {"tokens_BL": tokens_BL, **asked}
        self.found = self.net(tokens_BL, **asked)
        return self.found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_noises_what_it_predicts_and_gives_the_rest(kind: str, mode: str) -> None:
    spy, data = Spy(model(MODEL[kind])), batch()
    made = objective(kind, condition_dropout=0.5)
    losses = made(spy, data, generator(), kind=mode, step=0)
    noised_text, noised_image = mode != "caption_to_image", mode != "image_to_caption"
    asked = spy.asked
    clean_text = torch.equal(asked["tokens_BL"], data.tokens_BL) and "captions_BLe" not in asked
    assert clean_text is not noised_text
    assert torch.equal(asked["latents_Bd"], data.fields["images"]) is not noised_image
    assert bool((asked["t_text_B"] > 0).all()) is noised_text
    assert bool((asked["t_latent_B"] > 0).all()) is noised_image
    assert ("text_loss" in losses, "image_loss" in losses) == (noised_text, noised_image)
    if mode == "joint":
        assert not torch.allclose(asked["t_text_B"], asked["t_latent_B"])
    if noised_text:  # every logit is 0 at the start, so that the words are equally probable
        total, count = losses["text_nll"]
        assert float(total / count) == pytest.approx(math.log(6), rel=1e-5)
        assert made.expected_first_loss()["text_nll"] == pytest.approx(math.log(6))


def test_vectors_of_captions_follow_the_gaussian_process() -> None:
    spy, made = Spy(model("image_mmdit_continuous")), objective("image_text_continuous")
    made(spy, batch(), generator(), kind="image_to_caption", step=0)
    scales, t_B = made.modality.schedule.scales(spy.asked["t_text_B"]), spy.asked["t_text_B"]
    torch.testing.assert_close(spy.asked["signal_B"], scales.signal_B)
    noise_BLe = spy.asked["captions_BLe"] / scales.noise_B[:, None, None]
    assert float(noise_BLe.std()) == pytest.approx(1, abs=0.1)
    assert float(noise_BLe[t_B < t_B.median()].std()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_pitfall_10_a_single_mode_trains_every_part_that_is_not_frozen(kind: str, mode: str) -> None:
    weights = dict.fromkeys(MODES, 0) | {mode: 1}
    made, net = objective(kind, mode_weights=weights, condition_dropout=0.5), model(MODEL[kind], spread=0.1)
    losses = made(net, batch(), generator(), kind=mode, step=0)
    sum(losses[name][0] for name in made.weights.keys() & losses.keys()).backward()
    without = {part.name for _, part, p in tagged_parameters(net) if p.grad is None or not bool(p.grad.any())}
    occasional = {part.name for _, part, _ in tagged_parameters(net) if part.occasional}
    assert without - occasional <= made.frozen_parts(trained=False)
    rests = {"caption_to_image": {"null_image"}, "image_to_caption": {"null_text"}, "joint": set()}
    assert {part for part in made.frozen_parts(trained=True) if part.startswith("null_")} == rests[mode]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"mode_weights": dict.fromkeys(MODES, 0)}, "mode_weights"),
        ({"image_schedule": {"kind": "flow"}}, "flow"),
    ],
)
def test_options_that_cannot_work_are_refused(keys: dict[str, Any], named: str, refuses: Refuses) -> None:
    of_model = parse_kind(MODELS, {"kind": "image_mmdit"}, at="model")
    with refuses(ConfigurationError, named):
        parse_kind(OBJECTIVES, {"kind": "image_text", **keys}, at="objective").capabilities(of_model)


# -- learning and sampling ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Any:
    """A model that was trained on the six pairs, as a generative model."""
    kind = request.param
    weights = {"caption_to_image": 2, "image_to_caption": 1, "joint": 1}
    made = objective(kind, parameterisation="x0", image_loss="uniform", mode_weights=weights)
    net, data = model(MODEL[kind], depth=1).train(), batch()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, betas=(0.9, 0.95))
    for step in range(STEPS):
        stream = generator(step)
        losses = made(net, data, stream, kind=made.kind(stream, step=step), step=step)
        loss = sum(
            made.weights[name] * losses[name][0] / data.normaliser(made.units[name])
            for name in made.weights
            if name in losses
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / STEPS)
    return kind, made.generative_model(net)


def nearest(images_BP: Tensor) -> Tensor:
    """The image of `pairs` that each image is nearest to."""
    return torch.cdist(images_BP, pairs()[1][:6]).argmin(dim=1)


def canvases() -> Tensor:
    return torch.where(pairs()[2] != 0, 1, 0)


def test_captions_give_their_images_and_images_their_captions(trained: Any) -> None:
    _, made = trained
    which_B, images_BP, tokens_BL = pairs()
    with made.evaluating():
        for guidance in (1.0, 1.5):
            sampler = latent_sampler("ddim", guidance=guidance)
            drawn = made.latents_given_texts(tokens_BL, sampler=sampler, generator=generator()).latents
            assert (nearest(drawn) == which_B).float().mean() >= 0.8
        sampler = made.default_sampler(conditional=True)
        written = made.write(
            canvases(), canvases() == 1, latents_Bd=images_BP, sampler=sampler, generator=generator()
        )  # fmt: skip
    assert (written.tokens == tokens_BL).float().mean() >= 0.9
    assert made.process is not None or written.model_calls == sampler.steps + 1
    assert torch.equal(written.tokens == 0, tokens_BL == 0)


def test_captions_are_rounded_given_their_clean_images() -> None:
    spy, sampler = Spy(model("image_mmdit_continuous", spread=0.1)), latent_sampler("ddim", steps=2)
    spy.text_embedding, calls = spy.net.text_embedding, list[Any]()
    spy.register_forward_pre_hook(lambda module, args, named: calls.append(named), with_kwargs=True)
    made: Any = objective("image_text_continuous").generative_model(spy)
    asked: Any = {"generator": generator(), "latents_Bd": pairs()[1], "sampler": sampler}
    with made.evaluating():
        written = made.write(canvases(), canvases() == 1, **asked)
        assert (written.model_calls, bool(written.log_probs[canvases() == 0].any())) == (len(calls), False)
        assert not torch.cat([call["t_latent_B"] for call in calls]).any(), "the image has no noise"
        assert torch.equal(calls[-1]["latents_Bd"], pairs()[1])
        _, drawn = made.both(canvases(), text=None, latent=sampler, generator=generator())
    assert torch.equal(calls[-1]["latents_Bd"], drawn.latents)


def test_both_together_agree(trained: Any) -> None:
    _, made = trained
    text, latent = text_sampler("ancestral", steps=24), latent_sampler("ddim", steps=24)
    with made.evaluating():
        written, drawn = made.both(canvases(), text=text, latent=latent, generator=generator())
    assert (nearest(drawn.latents) == written.tokens[:, 1] - 2).float().mean() >= 0.6


def test_only_captions_that_are_tokens_are_scored_and_infilled(trained: Any, refuses: Refuses) -> None:
    kind, made = trained
    if kind == "image_text":
        found = made.likelihood(pairs()[2], latents_Bd=None, draws=2, generator=generator())
        assert found.nll_KB.shape == (2, B)
        assert bool((found.nll_KB >= 0).all())
        return
    asked = {"latents_Bd": pairs()[1], "generator": generator()}
    with made.evaluating(), refuses(SamplingError):
        made.likelihood(pairs()[2], latents_Bd=None, draws=1, generator=generator())
    with made.evaluating(), refuses(SamplingError):
        made.write(pairs()[2], canvases() == 2, sampler=latent_sampler("ddim"), **asked)
