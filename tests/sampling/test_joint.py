"""Joint sampling of text and latent from noise."""

from dataclasses import replace

import pytest
import torch
from tests.sampling.toys import PAD, canvas, on, rows

from mm_ldlm.diffusion.schedules import CosineLatents
from mm_ldlm.sampling import joint
from mm_ldlm.sampling.gaussian import LatentDenoiser
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import latent_sampler, text_sampler


def denoiser(received=None):
    """The text follows the sign of the latent, and the latent follows whether the text has a 1."""

    def predict(tokens, z, t, asked, previous):
        if received is not None:
            received.append((t.clone(), int(asked.sum()), previous))
        ones = (tokens == 1).double().sum(1, keepdim=True)
        x0 = torch.where(ones > 0, 2.0, -2.0).expand(len(tokens), 2).float()
        logits = torch.full((*tokens.shape, 10), -60.0)
        logits[..., :2] = 0.0
        logits[..., 1] = z[:, :1] * 5
        return logits[asked], x0

    return LatentDenoiser(
        predict=predict,
        schedule=CosineLatents().build(),
        parameterisation="x0",
    )


def together(denoise, tokens, generator, *, draw=None, **latent):
    canvas, sampler = on(denoise, tokens, generator=generator), latent_sampler("ddim", **latent)
    return joint.together(canvas, dim=2, draw=draw or Draw(), latent=sampler)


@pytest.mark.parametrize(("t_max", "learned"), [(1.0, False), (0.6, True)])
def test_together_takes_both_modalities_down_one_grid(t_max, learned):
    received = []
    denoise = replace(denoiser(received), self_condition=learned)
    text, latent = together(denoise, canvas(6, 3), rows(2), steps=4, t_max=t_max)
    assert [float(t[0]) for t, *_ in received] == pytest.approx([t_max, 0.75 * t_max, 0.5 * t_max, 0.25 * t_max])
    estimated = [previous is not None for *_, previous in received]
    assert estimated == [False, *[learned] * 3], "only a model that was trained on it gets one"
    assert text.model_calls == latent.model_calls == 4
    assert (text.tokens[0] < 2).all()
    assert text.tokens[1, 3:].eq(PAD).all()
    assert text.steps[1].tolist()[3:] == [-1, -1, -1]
    evaluated = [count for _, count, _ in received]
    assert evaluated[0] == 9
    assert evaluated == sorted(evaluated, reverse=True), "an unmasked token is not evaluated again"


def test_together_gives_texts_and_latents_that_belong_together():
    text, latent = together(denoiser(), canvas(*[6] * 400), rows(400), steps=12)
    agree = (latent.latents[:, 0] > 0) == (text.tokens == 1).any(1)
    assert agree.float().mean() > 0.95


def test_together_does_not_depend_on_its_batch_and_obeys_its_draw():
    whole = together(denoiser(), canvas(6, 3, 5), rows(3), steps=4)
    alone = together(denoiser(), canvas(5), rows(3).select(torch.tensor([2])), steps=4)
    assert torch.equal(whole[0].tokens[2, :5], alone[0].tokens[0])
    assert torch.allclose(whole[1].latents[2], alone[1].latents[0])
    cold, warm = (
        together(denoiser(), canvas(*[6] * 20), rows(20), steps=4, draw=Draw(temperature=t)) for t in (0.0, 1.0)
    )
    assert not torch.equal(cold[0].tokens, warm[0].tokens)


def test_the_latent_has_the_marginal_of_every_time():
    """Its estimate is always 0; noise that two steps share would add up."""
    made, seen = denoiser(), []

    def predict(tokens, z, t, asked, previous):
        return seen.append((float(z.std()), t)) or (torch.zeros(int(asked.sum()), 10), torch.zeros_like(z))

    together(replace(made, predict=predict), canvas(*[2] * 4000), rows(4000), steps=5, eta=1.0)
    assert all(std == pytest.approx(float(made.schedule.scales(t)[1][0]), rel=0.04) for std, t in seen)


@pytest.mark.parametrize(("order", "text", "latent", "named"), [
    ("together", {"kind": "confidence"}, {}, "text.kind"),
    ("together", {}, {"kind": "ddpm"}, "latent.kind"),
    ("together", {"steps": 3}, {"steps": 4}, "text.steps"),
    ("together", {"guidance": 2.0}, {}, "text.guidance"),
    ("together", {}, {"guidance": 2.0}, "latent.guidance"),
    ("latent_first", {}, {"draws": 2}, "latent.draws"),
    ("latent_first", {"kind": "confidence", "steps": 3, "guidance": 2.0}, {"kind": "ddpm"}, None),
    ("text_first", {"kind": "confidence"}, {"draws": 2}, None),
    ("together", {}, {}, None),
])  # fmt: skip
def test_an_order_refuses_what_it_would_ignore(order, text, latent, named):
    samplers = (
        text_sampler(**{"kind": "ancestral", "steps": 4} | text),
        latent_sampler(**{"kind": "ddim", "steps": 4} | latent),
    )
    if named is None:
        joint.refuse_samplers(order, *samplers)
    else:
        with pytest.raises(ValueError, match=named) as raised:
            joint.refuse_samplers(order, *samplers)
        assert raised.value.keys == (named, "order")
