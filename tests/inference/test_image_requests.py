"""Requests for images and captions in full: every field of the result, every use by its own name."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scripted import ABLE, MASK, Scripted, Words

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.families.images.requests import VALUES_PER_TOKEN, ImageWriter
from mm_ldlm.inference import memory
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

SIZE = (2, 3, 1)
SHAPE = SimpleNamespace(pad_id=20, mask_id=MASK, vocab_size=23, max_length=9, image_size=SIZE)


class Painter(Scripted):
    """Paints the number of words, plus a slope over the pixels, and writes captions as `Scripted`."""

    shape, dim = SHAPE, 6

    def latents_given_texts(self, tokens_BL: Any, *, sampler: Any, generator: Any) -> LatentSample:
        self.asked.append((tokens_BL, sampler, generator))
        count_B = (tokens_BL != 20).sum(1).float()
        found_BP = count_B[:, None] * 0.25 + torch.arange(6) * 0.125
        return LatentSample(found_BP, found_BP[None], sampler.steps)

    def both(self, canvas_BL: Any, *, text: Any, latent: Any, generator: Any) -> Any:
        made = super().both(canvas_BL, text=text, latent=latent, generator=generator)
        length_B = (canvas_BL == MASK).sum(1).float()
        found_BP = length_B[:, None] * 0.25 + torch.arange(6) * 0.125
        return SimpleNamespace(text=made.text, latent=LatentSample(found_BP, found_BP[None], 3), model_calls=17)


def writer(**capabilities: Any) -> ImageWriter:
    """Pixels are 0.5 + standardised values / 4."""
    normaliser = Normaliser("one_scale", np.full(6, 0.5), np.full(6, 0.25), False)
    able = dataclasses.replace(ABLE, **capabilities)
    return ImageWriter(Painter(), able, Words(), normaliser, batch_tokens=100)  # type: ignore[arg-type]


def pixels_of(words: int) -> Any:
    """The picture of a text of so many words, row by row of a picture that is wider than high."""
    return np.clip(0.5 + (words * 0.25 + np.arange(6) * 0.125) / 4, 0, 1).reshape(SIZE)


def test_images_of_captions_in_the_order_of_the_captions() -> None:
    made = writer()
    assert made.size == SIZE
    found = made.draw(["w1", "w2 w3 w4", "w5 w6"], steps=4, seed=9)
    np.testing.assert_allclose(found.pixels, np.stack([pixels_of(count) for count in (1, 3, 2)]), rtol=1e-6)
    assert (found.pixels.dtype, found.captions) == (np.float32, ("w1", "w2 w3 w4", "w5 w6"))
    assert found.model_calls.tolist() == [4] * 3
    ((_, sampler, generator),) = made.model.asked  # type: ignore[attr-defined]
    assert (sampler, generator.seed, generator.rows.tolist()) == (latent_sampler("ddim", steps=4), 9, [1, 2, 0])


def test_captions_of_images_in_the_order_of_the_images() -> None:
    """The scripted model writes the number of masks + the second pixel, standardised; the first one is the length."""
    pixels = np.full((2, *SIZE), 0.5)
    pixels[0, 0, 0], pixels[1, 0, 0] = 1.0, 0.75
    pixels[0, 0, 1] = 1.0
    found = writer().caption(pixels, sampler="margin", steps=3)
    assert (found.tokens, found.texts) == (((4, 4), (1,)), ("w4 w4", "w1"))
    assert found.log_probs.tolist() == [-0.25 * 3 * 2, -0.25]
    assert (found.model_calls.tolist(), found.encoder_calls.tolist()) == ([20, 10], [0, 0])
    assert found.sources == (None, None)
    assert (found.cosines, found.latents, found.latent_norms, found.unknown) == (None,) * 4


def test_images_and_captions_together() -> None:
    made = writer()
    found = made.generate(2, steps=5, length=3, seed=9)
    np.testing.assert_allclose(found.pixels, np.stack([pixels_of(3)] * 2), rtol=1e-6)
    assert (found.captions, found.model_calls.tolist()) == (("w3 w3 w3",) * 2, [17, 17])
    (_, text, latent, generator), *_ = made.model.asked  # type: ignore[attr-defined]
    assert (text, latent) == (text_sampler("ancestral", steps=5), latent_sampler("ddim", steps=5))
    assert generator.seed == 9


BLANK = np.zeros((1, *SIZE))
ASKED: dict[str, tuple[str, Any]] = {
    "draw": ("caption_to_image", lambda m, **how: m.draw(["w1"], **how)),
    "draw_tokens": ("caption_to_image", lambda m, **how: m.draw_tokens([[1]], ["w1"], **how)),
    "caption": ("image_to_caption", lambda m, **how: m.caption(BLANK, **how)),
    "generate": ("image_text", lambda m, **how: m.generate(1, **how)),
}


@pytest.mark.parametrize("method", ASKED)
def test_each_request_is_a_use_of_its_own(method: str) -> None:
    use, ask = ASKED[method]
    made = writer(uses=ABLE.uses - {use})
    with pytest.raises(SamplingError) as error:
        ask(made)
    assert str(error.value) == made.capabilities.refusal(use)  # type: ignore[arg-type]
    ask(writer(uses=frozenset({use})), steps=2)


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"seed": -1}, "seed must be at least 0, found -1"), ({"seed": 1.5}, "seed: expected an integer, found 1.5"),
        ({"steps": 0}, "steps must be at least 1, found 0"), ({"steps": 10_001}, "steps must be at most 10,000"),
    ],
)  # fmt: skip
def test_the_seed_and_the_steps_of_every_request_are_checked(method: str, how: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        ASKED[method][1](writer(), **how)


@pytest.mark.parametrize("method", ["caption", "generate"])
def test_a_length_that_was_not_learned_is_refused_for_its_own_use(method: str) -> None:
    use, ask = ASKED[method]
    made = writer(untrained_lengths={use: "it has learned no lengths"})
    with pytest.raises(SamplingError, match="it has learned no lengths"):
        ask(made, length="sample")
    ask(made, length=2, steps=2)
    other = {"image_to_caption": "image_text", "image_text": "image_to_caption"}[use]
    ask(writer(untrained_lengths={other: "it has learned no lengths"}), length="sample", steps=2)


@pytest.mark.parametrize("method", ["caption", "generate"])
@pytest.mark.parametrize(
    ("length", "message"),
    [
        (10, "at most 9 tokens, the model's maximum length; found a request for 10"),
        (0, "at least 1 token, found 0"),
        ("top-2", "length 'top-2' ranks captions; use 'argmax', 'sample' or a number"),
    ],
)
def test_the_lengths_of_captions_fit_the_model(method: str, length: Any, message: str) -> None:
    ask = ASKED[method][1]
    with pytest.raises(SamplingError, match=message):
        ask(writer(), length=length)
    for fits in (9, "top-1", "argmax"):
        ask(writer(), length=fits, steps=2)


@pytest.mark.parametrize("batch_tokens", [1, 9, 100, 4096])
def test_a_batch_of_images_counts_their_values(batch_tokens: int) -> None:
    """Four values of a picture count as one token; a batch holds at least one text of the maximum length."""
    normaliser = Normaliser("one_scale", np.full(6, 0.5), np.full(6, 0.25), False)
    model: Any = Painter()
    model.dim = 240
    made = ImageWriter(model, ABLE, Words(), normaliser, batch_tokens=batch_tokens)  # type: ignore[arg-type]
    expected = max(9, batch_tokens * 9 // (9 + 60))
    assert VALUES_PER_TOKEN == 4
    assert (made._captions.batch_tokens, made._images.batch_tokens) == (expected, expected)


@pytest.mark.parametrize(
    ("ask", "texts"),
    [
        (lambda m: m.draw(["w1", "w2"]), "draw: 2"), (lambda m: m.draw_tokens([[1]], ["w1"]), "draw: 1"),
        (lambda m: m.caption(np.zeros((3, *SIZE))), "caption: 3"), (lambda m: m.generate(4), "generate: 4"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_the_memory_is_named(ask: Any, texts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 9 tokens and five copies of 6 float32 numbers take 1,000 + 9·160 + 4·30 bytes."""
    made, needed = writer(), int(texts[-1]) * (1_000 + 9 * 160 + 4 * 5 * 6)
    monkeypatch.setattr(memory, "free_bytes", lambda: float(needed))
    ask(made)
    made.model.asked.clear()  # type: ignore[attr-defined]
    monkeypatch.setattr(memory, "free_bytes", lambda: float(needed - 1))
    with pytest.raises(SamplingError, match=rf"^{texts} texts of up to 9 tokens: expected a request that fits"):
        ask(made)
    assert made.model.asked == [], "nothing was computed"  # type: ignore[attr-defined]


def pixels(**places: float) -> Any:
    """Two pictures of grey; `first` and `last` are a pixel of the first one and of the second one."""
    made = np.full((2, *SIZE), 0.5)
    made[0, 0, 0, 0], made[1, -1, -1, -1] = places.get("first", 0.5), places.get("last", 0.5)
    return made


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.draw(["w1", "w2 " * 10]),
         "texts[1] has 10 tokens, but the model reads at most 9 (tokenizer.max_length): 'w2 w2 w2 w2 w2 w2 w2 w2 w2 w2 "
         "'. Shorten or split it."),
        (lambda m: m.draw(["w1", " "]), "texts[1] is empty. Remove it, or add words."),
        (lambda m: m.draw("w1", sampler={"kind": "ddim", "draws": 2}),
         "expected an image sampler with draws 1, found 2: a mean of images is not a sample. Set draws to 1."),
        (lambda m: m.draw_tokens([[1], [21]], ["a", "b"]),
         "ids[1]: expected ids of words, found 21, which is [MASK]. Remove it."),
        (lambda m: m.caption(np.zeros((1, 3, 2, 1))),
         "expected images of shape (n, 2, 3, 1), as in training, found shape (1, 3, 2, 1). Resize them, for example by "
         "mm_ldlm.families.images.store.resize."),
        (lambda m: m.caption(np.zeros(SIZE)),
         "expected images of shape (n, 2, 3, 1), as in training, found shape (2, 3, 1). Resize them, for example by "
         "mm_ldlm.families.images.store.resize."),
        (lambda m: m.caption(np.zeros((0, *SIZE))), "images: expected at least one image, found none."),
        (lambda m: m.caption("a picture"),
         "images: expected real numbers, found str with values of dtype <U9. Give an array of numbers or "
         "one column of vectors."),
        (lambda m: m.caption(pixels(first=-0.25, last=1.5)),
         "expected pixels between 0 and 1, found values from -0.25 to 1.5. Divide grey levels of 8 bits by 255."),
        (lambda m: m.caption(pixels(last=-0.001)),
         "expected pixels between 0 and 1, found values from -0.001 to 0.5. Divide grey levels of 8 bits by 255."),
        (lambda m: m.caption(pixels(first=np.nan)),
         "expected pixels between 0 and 1, found values from nan to nan. Divide grey levels of 8 bits by 255."),
        (lambda m: m.caption(pixels(), length="top-2"),
         "length 'top-2' ranks captions; use 'argmax', 'sample' or a number."),
        (lambda m: m.generate(0), "n must be at least 1, found 0."),
    ],
)  # fmt: skip
def test_a_refusal_has_every_part_of_its_message(ask: Any, message: str) -> None:
    with pytest.raises(SamplingError) as error:
        ask(writer())
    assert str(error.value) == message


def test_black_and_white_are_pixels() -> None:
    assert len(writer().caption(pixels(first=0.0, last=1.0), length=2)) == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, text_sampler("confidence", steps=3, temperature=0.0)),
        ({"steps": 5}, text_sampler("confidence", steps=5, temperature=0.0)),
        ({"sampler": "margin"}, text_sampler("margin")),
        ({"sampler": "ddim", "steps": 5}, latent_sampler("ddim", steps=5)),
        ({"sampler": {"kind": "margin", "steps": 2}}, text_sampler("margin", steps=2)),
        ({"sampler": text_sampler("random", steps=9), "steps": 4}, text_sampler("random", steps=4)),
    ],
)
def test_a_caption_is_written_with_the_default_or_with_the_settings_of_its_kind(given: Any, expected: Any) -> None:
    made = writer()
    made.caption(pixels(), length=2, seed=6, **given)
    ((_, _, sampler, generator),) = made.model.asked  # type: ignore[attr-defined]
    assert (sampler, generator.seed) == (expected, 6)
