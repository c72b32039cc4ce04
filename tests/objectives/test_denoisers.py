"""What samplers of latents and images receive from a model: its options, the condition, and the null of a condition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling import joint
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

SHAPE = DataShape(vocab_size=8, pad_id=0, mask_id=1, max_length=4, latent_dim=5, image_size=(2, 3, 1))
TOKENS = torch.tensor([[3, 4, 5], [6, 0, 0]])
CANVAS = torch.tensor([[1, 1, 1], [1, 0, 0]])
# kind → (name of its schedule, of the time, of the noised vector and of its head, and the vector's dimension)
KINDS = {
    "multimodal": ("latent_schedule", "t_latent_B", "latents_Bd", "latent", 5),
    "image_text": ("image_schedule", "t_image_B", "images_BP", "image", 6),
}
OPTIONS: dict[str, dict[str, Any]] = {"multimodal": {"self_condition": True}, "image_text": {}}


class Recorder(nn.Module):
    """Records its arguments."""

    def forward(self, tokens_BL: Tensor, **given: Any) -> Any:
        self.given = {"tokens": tokens_BL, **given}
        logits, vectors = torch.zeros(4, 8), given.get("latents_Bd", given.get("images_BP"))
        return SimpleNamespace(logits=logits, logits_BLV=logits, latent_Bd=vectors, images_BP=vectors)


class Asked:
    """A sampler that keeps what it receives."""

    def sample(self, denoise: Any, *, dim: int, generator: Any) -> str:
        self.denoise, self.dim = denoise, dim
        return "the sample"


def generation(kind: str, **keys: Any) -> tuple[Any, Recorder]:
    schedule = {KINDS[kind][0]: {"name": "linear"}}
    config = parse_kind(
        OBJECTIVES, {"kind": kind, "parameterisation": "x0", **schedule, **OPTIONS[kind], **keys}, at="o"
    )
    model = Recorder()
    return config.build(SHAPE).generative_model(model), model


def predict(kind: str, model: Recorder, function: Any) -> dict[str, Any]:
    """Ask for a prediction at times of their own; return what the model received, without what all calls share."""
    _, time, vector, head, dim = KINDS[kind]
    x, t_B, previous = torch.randn(2, dim), torch.tensor([0.25, 0.75]), torch.randn(2, dim)
    assert function(x, t_B, previous) is x
    given = dict(model.given)
    assert given.pop("heads") == (head,)
    assert torch.equal(given.pop(time), t_B)
    assert given.pop(vector) is x
    if kind == "multimodal":
        assert given.pop("self_condition_Bd") is previous
    assert torch.equal(given.pop("valid_BL"), given["tokens"] != 0)
    return given


@pytest.mark.parametrize("kind", KINDS)
def test_a_latent_is_drawn_given_its_text_and_guided_away_from_the_null_text(kind: str) -> None:
    made, model = generation(kind)
    sampler = Asked()
    assert made.latents_given_texts(TOKENS, sampler=sampler, generator=None) == "the sample"
    denoise = sampler.denoise
    assert (denoise.parameterisation, denoise.schedule.name, sampler.dim) == ("x0", "linear", KINDS[kind][-1])
    assert denoise.self_condition == (kind == "multimodal")
    for function, null in ((denoise.predict, False), (denoise.unconditional, True)):
        given = predict(kind, model, function)
        assert given["tokens"] is TOKENS
        assert given["t_text_B"].tolist() == [0, 0]
        assert (given["null_text_B"] is not None and bool(given["null_text_B"].all())) == null
    made, _ = generation(kind, condition_dropout=0.0)
    made.latents_given_texts(TOKENS, sampler=sampler, generator=None)
    assert sampler.denoise.unconditional is None


@pytest.mark.parametrize("learned", [True, False])
def test_a_latent_of_no_text_reads_the_null_text_or_noise_alone(learned: bool) -> None:
    made, model = generation("multimodal", condition_dropout=0.1 if learned else 0.0)
    sampler = Asked()
    made.latents_given_lengths(CANVAS, sampler=sampler, generator=RowGenerator(0, torch.arange(2)))
    assert made.latents_need_lengths is not learned
    given = predict("multimodal", model, sampler.denoise.predict)
    assert given["t_text_B"].tolist() == ([0, 0] if learned else [1, 1])
    assert (given["null_text_B"] is not None) == learned
    assert given["tokens"].tolist() == ([[1], [1]] if learned else CANVAS.tolist())
    assert sampler.denoise.unconditional is None
    assert (sampler.denoise.parameterisation, sampler.denoise.schedule.name) == ("x0", "linear")
    assert sampler.denoise.self_condition


@pytest.mark.parametrize("learned", [True, False])
def test_a_text_without_a_latent_reads_the_null_latent_or_noise_at_the_time_of_noise(learned: bool) -> None:
    made, model = generation("multimodal", condition_dropout=0.1 if learned else 0.0)
    noise = RowGenerator(0, torch.arange(2)).fork("unknown latent").normal(5)
    latents, rows, t_A = torch.randn(2, 5), torch.tensor([1, 0, 1]), torch.tensor([0.25, 0.5, 0.75])
    canvas = CANVAS[rows]
    for source in (None, latents):
        denoise = made.text_denoiser(source, RowGenerator(0, torch.arange(2)))
        denoise.logits(canvas, t_A, rows, canvas == 1)
        given, null = model.given, source is None and learned
        assert given["t_text_B"].tolist() == t_A.tolist()
        assert given["t_latent_B"].tolist() == [float(source is None and not learned)] * 3
        expected = torch.zeros(3, 5) if null else (noise if source is None else latents)[rows]
        assert torch.equal(given["latents_Bd"], expected)
        assert (given["null_latent_B"] is not None) == null
        assert (denoise.unconditional is not None) == (learned and source is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_both_together_have_the_options_of_the_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, time, vector, head, dim = KINDS[kind]
    made, model = generation(kind)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        joint, "together", lambda denoise, canvas, **keys: seen.update(d=denoise, canvas=canvas, **keys)
    )
    text, latent = text_sampler("ancestral", steps=3, temperature=0.5), latent_sampler("ddim", steps=3, eta=0.2)
    made.both(CANVAS, text=text, latent=latent, generator="generator")
    assert (seen["canvas"] is CANVAS, seen["dim"], seen["draw"]) == (True, dim, text.draw)
    assert (seen["latent"], seen["generator"]) == (latent, "generator")
    denoise = seen["d"]
    assert (denoise.parameterisation, denoise.latent_schedule.name) == ("x0", "linear")
    assert (denoise.process, denoise.self_condition) == (made.process, kind == "multimodal")
    x, t_B, s_B, asked_BL, previous = (
        torch.randn(2, dim),
        torch.rand(2),
        torch.rand(2),
        CANVAS == 1,
        torch.randn(2, dim),
    )
    logits, found = denoise.predict(TOKENS, t_B, x, s_B, asked_BL, previous)
    assert logits.shape == (4, 8)
    assert found is x
    given = model.given
    assert [given[name] is value for name, value in (("t_text_B", t_B), (time, s_B), (vector, x))] == [True] * 3
    assert given["logits_at"] is asked_BL
    assert given["heads"] == ("text", head)
    assert given.get("null_text_B") is None
    assert given.get("self_condition_Bd") is (previous if kind == "multimodal" else None)
