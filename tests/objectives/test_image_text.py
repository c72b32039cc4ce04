"""Objectives of captions and images: what each mode noises, the losses, learning, and sampling of what was learned."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.gaussian import convert
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.images.model import Output
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

SHAPE = DataShape(vocab_size=8, pad_id=0, mask_id=1, max_length=4, image_size=(4, 4, 1))
MODEL = {"image_text": "image_mmdit", "image_text_continuous": "image_mmdit_continuous"}
KINDS = tuple(MODEL)
B, P = 12, 16


def objective(kind: str = "image_text", **keys: Any) -> Any:
    return parse_kind(OBJECTIVES, {"kind": kind, **keys}, at="objective").build(SHAPE)


def model(kind: str, **keys: Any) -> Any:
    keys = {"dim": 32, "depth": 2, "heads": 2, **keys}
    config = parse_kind(MODELS, {"kind": MODEL[kind], **keys}, at="model")
    return config.build(SHAPE, generator=torch.Generator().manual_seed(0))


def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Six images, each with captions of its own: the second token names the image."""
    which_B = torch.arange(B) % 6
    images_BP = 2 * torch.randn(6, P, generator=torch.Generator().manual_seed(3))[which_B]
    tokens_BL = torch.stack([torch.full((B,), 7), 2 + which_B, torch.full((B,), 7), torch.zeros(B).long()], dim=1)
    tokens_BL[::2, 3] = 7
    return which_B, images_BP, tokens_BL


def batch() -> Batch:
    _, images_BP, tokens_BL = pairs()
    valid_BL = tokens_BL != 0
    rows_B = torch.arange(B)
    return Batch(tokens_BL, valid_BL, {"images": images_BP}, rows_B, rows_B, B, int(valid_BL.sum()))


def generator(seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(B))


class Spy(nn.Module):
    """Records its arguments and predicts zeros."""

    class config:
        vector_dim = 5

    def forward(self, tokens_BL: Tensor, **given: Any) -> Output:
        self.given = {"tokens_BL": tokens_BL, **given}
        at = given["logits_at"]
        count = () if at is None else (int(at.sum()),)
        logits = torch.zeros(*(count or tokens_BL.shape), SHAPE.vocab_size)
        return Output(logits, torch.zeros(len(tokens_BL), P), torch.zeros(len(tokens_BL), SHAPE.max_length))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["caption_to_image", "image_to_caption", "joint"])
def test_each_mode_noises_what_it_predicts_and_gives_the_rest(kind: str, mode: str) -> None:
    spy, data = Spy(), batch()
    losses = objective(kind, condition_dropout=0.5)(spy, data, generator(), kind=mode, step=0)
    noised_text, noised_image = mode != "caption_to_image", mode != "image_to_caption"
    clean_text = torch.equal(spy.given["tokens_BL"], data.tokens_BL) and "captions_BLe" not in spy.given
    assert clean_text is not noised_text
    assert torch.equal(spy.given["images_BP"], data.fields["images"]) is not noised_image
    assert bool((spy.given["t_text_B"] > 0).all()) is noised_text
    assert bool((spy.given["t_image_B"] > 0).all()) is noised_image
    assert ("text_loss" in losses, "image_loss" in losses) == (noised_text, noised_image)
    assert ("null_text_B" in spy.given) is (mode == "caption_to_image")
    assert ("null_image_B" in spy.given) is (mode == "image_to_caption")
    assert torch.equal(spy.given["length_images_BP"], data.fields["images"])
    if mode == "joint":
        assert not torch.allclose(spy.given["t_text_B"], spy.given["t_image_B"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_of_equal_logits_and_of_a_prediction_of_zero_are_known(kind: str) -> None:
    data = batch()
    made = objective(kind, parameterisation="x0", image_loss="uniform")
    losses = made(Spy(), data, generator(), kind="joint", step=0)
    total, count = losses["text_nll"]
    assert float(total / count) == pytest.approx(math.log(6), rel=1e-5)
    assert made.expected_first_loss()["text_nll"] == pytest.approx(math.log(6))
    total, count = losses["image_loss"]
    assert float(total / count) == pytest.approx(float(data.fields["images"].square().mean()), rel=1e-5)


def test_vectors_of_captions_follow_the_gaussian_process() -> None:
    """The model adds the noise that it receives to signal · vector."""
    spy, made = Spy(), objective("image_text_continuous")
    made(spy, batch(), generator(), kind="image_to_caption", step=0)
    t_B, schedule = spy.given["t_text_B"], GaussianSchedule()
    torch.testing.assert_close(spy.given["signal_B"], schedule.signal(t_B))
    noise_BLe = spy.given["captions_BLe"] / schedule.noise(t_B)[:, None, None]
    assert float(noise_BLe.std()) == pytest.approx(1, abs=0.1)
    assert float(noise_BLe[t_B < t_B.median()].std()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("parameterisation", ["x0", "v", "eps"])
def test_images_and_vectors_of_captions_take_the_same_steps(parameterisation: Any) -> None:
    """A model that is certain of one pair: both samples end at it, whatever the image head predicts."""
    schedule, image_P, vectors = GaussianSchedule(), torch.linspace(-1, 1, P), torch.randn(SHAPE.vocab_size, 5)

    class Certain(Spy):
        unit_vectors = vectors

        def forward(self, tokens_BL: Tensor, **given: Any) -> Output:
            self.given = given
            t_B, x_BP = given["t_image_B"], given["images_BP"]
            scales = {"signal_B": schedule.signal(t_B), "noise_scale_B": schedule.noise(t_B)}
            logits = torch.zeros(*tokens_BL.shape, SHAPE.vocab_size)
            logits[..., 4] = 100.0
            found_BP = convert(image_P.expand_as(x_BP), "x0", parameterisation, x_t_Bd=x_BP, **scales)
            return Output(logits, found_BP, torch.zeros(len(tokens_BL), SHAPE.max_length))

    model = Certain()
    generation = objective("image_text_continuous", parameterisation=parameterisation).generative_model(model)
    start = {"t_max": 0.99} if parameterisation == "eps" else {}
    found = generation.both(
        torch.ones(3, 2).long(), text=None, latent=latent_sampler("ddim", steps=6, **start),
        generator=RowGenerator(0, torch.arange(3)),
    )  # fmt: skip
    torch.testing.assert_close(found.latent.latents, image_P.expand(3, P), atol=1e-3, rtol=0)
    torch.testing.assert_close(model.given["captions_BLe"], vectors[4].expand(3, 2, 5), atol=1e-3, rtol=0)
    assert (found.text.tokens == 4).all()
    assert torch.equal(model.given["images_BP"], found.latent.latents), "the words are those given the drawn image"
    assert not bool(model.given["t_image_B"].any() or model.given["t_text_B"].any())


@pytest.mark.parametrize("kind", KINDS)
def test_filling_examples_change_no_loss(kind: str) -> None:
    data = batch()
    filled = Batch(
        tokens_BL=torch.cat([data.tokens_BL, torch.zeros(2, 4).long()]),
        valid_BL=torch.cat([data.valid_BL, torch.zeros(2, 4).bool()]),
        fields={"images": torch.cat([data.fields["images"], torch.zeros(2, P)])},
        examples_B=torch.cat([data.examples_B, torch.full((2,), -1)]),
        position_B=torch.cat([data.position_B, torch.arange(B, B + 2)]),
        global_size=B, global_tokens=data.global_tokens,
    )  # fmt: skip
    net, made = model(kind), objective(kind)
    a = made(net, data, generator(), kind="joint", step=0)
    b = made(net, filled, RowGenerator(0, torch.arange(B + 2)), kind="joint", step=0)
    for name in made.weights:
        assert torch.allclose(a[name][0], b[name][0], rtol=1e-4), name
        assert a[name][1] == b[name][1], name


def test_every_mode_is_drawn_by_its_weight() -> None:
    made = objective(mode_weights={"caption_to_image": 2, "image_to_caption": 1, "joint": 1})
    found = [made.kind(generator(seed), step=seed) for seed in range(400)]
    assert found.count("caption_to_image") == pytest.approx(200, abs=40)
    assert found.count("joint") == pytest.approx(100, abs=30)
    alone = objective(mode_weights={"caption_to_image": 0, "image_to_caption": 1, "joint": 0})
    assert (alone.kinds, alone.kind(None, step=3)) == (("image_to_caption",), "image_to_caption"), "nothing is drawn"


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one mode"):
        objective(mode_weights={"caption_to_image": 0, "image_to_caption": 0, "joint": 0})
    with pytest.raises(ConfigurationError, match="variance-preserving image_schedule, found 'flow'"):
        objective(image_schedule={"name": "flow"})
    config = parse_kind(OBJECTIVES, {"kind": "image_text", "process": {"kind": "hdlm"}}, at="objective")
    of_model = parse_kind(MODELS, {"kind": "image_mmdit"}, at="model")
    with pytest.raises(ConfigurationError, match="made from the stores token_clusters"):
        config.capabilities(of_model)


@pytest.mark.parametrize("mode", ["caption_to_image", "image_to_caption"])
def test_a_single_mode_trains_every_part_that_is_not_frozen(mode: str) -> None:
    weights = {name: float(name == mode) for name in ("caption_to_image", "image_to_caption", "joint")}
    made, net = objective(mode_weights=weights, condition_dropout=0.5), model("image_text")
    with torch.no_grad():  # adaLN-Zero starts with gates of 0, behind which nothing has a gradient
        for number, parameter in enumerate(net.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    losses = made(net, batch(), generator(), kind=mode, step=0)
    sum(losses[name][0] for name in made.weights if name in losses).backward()  # type: ignore[union-attr]
    without = {part.name for _, part, p in tagged_parameters(net) if p.grad is None or not bool(p.grad.any())}
    assert without - {part.name for _, part, _ in tagged_parameters(net) if part.occasional} <= made.frozen_parts(
        trained=False
    )

    # The null image stands for the image of a caption; only the null of the modality that is never a condition rests.
    nulls = {"caption_to_image": "null_image", "image_to_caption": "null_text"}
    assert {part for part in made.frozen_parts(trained=True) if part.startswith("null_")} == {nulls[mode]}


# -- learning and sampling ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Any:
    """A model that was trained on the six pairs, as a generative model."""
    kind = request.param
    weights = {"caption_to_image": 2, "image_to_caption": 1, "joint": 1}
    made = objective(kind, parameterisation="x0", image_loss="uniform", mode_weights=weights)
    net, data = model(kind).train(), batch()
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.95))
    for step in range(320):
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
            group["lr"] = 4e-3 * (1 - step / 320)
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
            drawn = made.latents_given_texts(
                tokens_BL, sampler=latent_sampler("ddim", guidance=guidance), generator=generator()
            ).latents
            assert (nearest(drawn) == which_B).float().mean() >= 0.9
        sampler = made.default_sampler(conditional=True)
        written = made.write(
            canvases(), canvases() == 1, latents_Bd=images_BP, sampler=sampler, generator=generator()
        )  # fmt: skip
    assert (written.tokens == tokens_BL).float().mean() >= 0.9
    assert torch.equal(written.tokens == 0, tokens_BL == 0)


def test_both_together_agree(trained: Any) -> None:
    _, made = trained
    with made.evaluating():
        both = made.both(
            canvases(), text=text_sampler("ancestral", steps=24), latent=latent_sampler("ddim", steps=24),
            generator=generator(),
        )  # fmt: skip
    named_B = both.text.tokens[:, 1] - 2
    assert (nearest(both.latent.latents) == named_B).float().mean() >= 0.6


def test_a_sample_does_not_depend_on_its_batch(trained: Any) -> None:
    _, made = trained
    _, images_BP, tokens_BL = pairs()
    some = torch.tensor([1, 4])
    few = generator().select(some)
    sampler = made.default_sampler(conditional=True)
    with made.evaluating():
        whole = made.latents_given_texts(tokens_BL, sampler=latent_sampler("ddpm", steps=4), generator=generator())
        part = made.latents_given_texts(tokens_BL[some], sampler=latent_sampler("ddpm", steps=4), generator=few)
        assert torch.allclose(whole.latents[some], part.latents, atol=1e-4)
        a = made.write(canvases(), canvases() == 1, latents_Bd=images_BP, sampler=sampler, generator=generator())
        cut = canvases()[1:2, :3]
        b = made.write(
            cut, cut == 1, latents_Bd=images_BP[1:2], sampler=sampler, generator=generator().select(some[:1])
        )
    assert torch.equal(a.tokens[1:2, :3], b.tokens)
    assert torch.allclose(a.log_probs[1:2, :3], b.log_probs, atol=1e-3)


def test_a_sampler_of_the_other_sort_is_refused(trained: Any) -> None:
    kind, made = trained
    wrong = latent_sampler("ddim") if kind == "image_text" else text_sampler("confidence")
    with made.evaluating(), pytest.raises(SamplingError, match=f"'{wrong.kind}'.*Choose a"):
        made.write(canvases(), canvases() == 1, latents_Bd=pairs()[1], sampler=wrong, generator=generator())


def test_captions_as_vectors_have_no_likelihood_and_no_infilling() -> None:
    made = objective("image_text_continuous").generative_model(model("image_text_continuous"))
    with pytest.raises(SamplingError, match="does not provide likelihoods"):
        made.likelihood(pairs()[2], latents_Bd=None, draws=1, generator=generator())
    with pytest.raises(SamplingError, match="does not provide captions with given tokens"):
        made.write(
            pairs()[2], canvases() == 2, latents_Bd=pairs()[1], sampler=latent_sampler("ddim"), generator=generator()
        )  # fmt: skip
