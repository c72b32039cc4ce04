"""Images in the Python interface: shapes, ranges, batching and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.inference import MMLDLM
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.config import ImageTasksConfig

SIZE = (4, 4, 1)


def make(objective: dict[str, Any] | None = None, *, normaliser: bool = True, batch_tokens: int = 8192) -> MMLDLM:
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, **{f"w{i}": i for i in range(3, 12)}}
    base = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    base.add_special_tokens(["[PAD]", "[MASK]", "[UNK]"])
    tokenizer = TextTokenizer(base, max_length=6)
    shape = DataShape(vocab_size=12, pad_id=0, mask_id=1, max_length=6, image_size=SIZE)
    config = parse_kind(OBJECTIVES, {"kind": "image_text", **(objective or {})}, at="objective")
    of_model = parse_kind(MODELS, {"kind": "image_mmdit", "dim": 16, "depth": 1, "heads": 2}, at="model")
    model = of_model.build(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    generative = config.build(shape).generative_model(model.eval())
    images = Normaliser("one_scale", np.full(16, 0.5), np.full(16, 0.25), False) if normaliser else None
    return MMLDLM(
        generative, config.capabilities(of_model), tokenizer, image_normaliser=images, batch_tokens=batch_tokens
    )


def test_drawn_images_have_the_size_of_the_data_and_lie_between_0_and_1() -> None:
    drawn = make().images.draw(["w3 w4", "w5"], sampler={"kind": "ddim", "steps": 3, "guidance": 2.0})
    assert drawn.pixels.shape == (2, *SIZE)
    assert 0 <= drawn.pixels.min() <= drawn.pixels.max() <= 1
    assert drawn.model_calls.tolist() == [6, 6]
    assert drawn.captions == ("w3 w4", "w5")
    frame = drawn.to_frame()
    assert list(frame.columns) == ["text", "image", "model_calls"]
    assert np.array_equal(np.stack(frame["image"]), drawn.pixels.reshape(2, -1))


def test_one_image_and_one_step_are_enough() -> None:
    model = make()
    assert model.images.generate(1, steps=1).pixels.shape == model.images.draw("w3", steps=1).pixels.shape == (1, *SIZE)
    assert len(model.images.caption(np.zeros((1, *SIZE)), steps=1)) == 1


def test_pixels_beyond_black_and_white_are_clipped() -> None:
    far = torch.tensor([[99.0, -99.0] * 8])
    assert make().images._pixels(far).reshape(-1).tolist() == [1.0, 0.0] * 8


def test_samples_do_not_depend_on_the_batches() -> None:
    many, one = make(), make(batch_tokens=1)
    captions = ["w3 w4", "w5", "w6 w7 w8", "w3"]
    pixels = np.random.default_rng(0).random((4, *SIZE))
    assert np.allclose(many.images.draw(captions, steps=2).pixels, one.images.draw(captions, steps=2).pixels, atol=1e-5)
    assert many.images.caption(pixels).tokens == one.images.caption(pixels).tokens
    assert many.images.generate(4, steps=3).captions == one.images.generate(4, steps=3).captions


def test_another_seed_gives_another_image() -> None:
    model = make()
    a, b = (model.images.draw("w3", steps=2, seed=seed).pixels for seed in (0, 1))
    assert not np.allclose(a, b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.images.caption(np.zeros((2, 5, 4, 1))), r"shape \(n, 4, 4, 1\).*found shape \(2, 5, 4, 1\)"),
        (lambda m: m.images.caption(np.full((1, *SIZE), 255.0)), "pixels between 0 and 1.*Divide"),
        (lambda m: m.images.caption(np.full((1, *SIZE), np.nan)), "pixels between 0 and 1"),
        (lambda m: m.images.caption(np.full((1, *SIZE), -0.01)), "pixels between 0 and 1, found values from -0.01"),
        (lambda m: m.images.caption(np.full((1, *SIZE), 1.01)), "found values from 1.01 to 1.01"),
        (lambda m: m.images.caption(np.zeros((0, *SIZE))), "images: expected at least one image, found none"),
        (lambda m: m.images.caption(np.zeros((1, *SIZE)), length="top-2"), "length 'top-2' ranks captions"),
        (lambda m: m.images.generate(1, length=7), "at most 6 tokens"),
        (lambda m: m.images.draw("w3", sampler={"kind": "ddim", "draws": 2}), "draws 1, found 2"),
        (lambda m: m.images.draw("w3 " * 9), "has 9 tokens, but the model reads at most 6"),
        (lambda m: m.images.generate(0), "n must be at least 1"),
        (lambda m: m.invert(np.zeros((1, 3))), "this run cannot write texts from latents"),
    ],
)
def test_impossible_requests_are_refused(call: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        call(make())


def test_a_mode_that_was_not_trained_and_a_run_without_images_are_refused() -> None:
    only = make({"mode_weights": {"caption_to_image": 1, "image_to_caption": 0, "joint": 0}})
    with pytest.raises(SamplingError, match=r"cannot write captions of images.*modes caption_to_image"):
        only.images.caption(np.zeros((1, *SIZE)))
    with pytest.raises(SamplingError, match="this run has no images"):
        _ = make(normaliser=False).images


def test_a_mean_of_images_is_refused_in_the_parameters() -> None:
    with pytest.raises(ConfigurationError, match=r"image\.draws is 4"):
        parse(ImageTasksConfig, {"image": {"kind": "ddim", "draws": 4}}, at="sampling.images")
    with pytest.raises(ConfigurationError, match="ranks captions"):
        parse(ImageTasksConfig, {"length": "top-3"}, at="sampling.images")
    assert parse(ImageTasksConfig, {"caption": {"kind": "heun", "steps": 3}}, at="x").caption.steps == 3
