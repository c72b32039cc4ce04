"""Requests for images and captions: batching changes nothing, results are pixels, and impossible requests are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.families.images.builds import KINDS, MODEL, model
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm import MMLDLM
from mm_ldlm.core import ConfigurationError, SamplingError, parse, parse_kind
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.families.images.config import ImagesConfig
from mm_ldlm.families.images.requests import NORMALISER
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES

SIZE = (4, 4, 1)
CAPTIONS = ("w1 w2", "w3", "w4 w5 w6", "w1")
PIXELS = np.random.default_rng(0).random((4, *SIZE))
Refuses = Callable[..., Any]


def loaded(kind: str = "image_text", *, images: bool = True, batch_tokens: int = 4096, **objective: Any) -> MMLDLM:
    """A model of images with random weights; its captions have the words w0 … w9."""
    base = Tokenizer(models.WordLevel({f"w{i}": i for i in range(10)} | {"[UNK]": 10}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = TextTokenizer(base, max_length=6)
    ids = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id, "mask_id": tokenizer.mask_id}
    shape = DataShape(**ids, max_length=6, fields={"images": SIZE})
    config = parse_kind(OBJECTIVES, {"kind": kind, **objective}, at="objective")
    made = config.build(shape).generative_model(model(MODEL[kind], shape, spread=0.1))
    able = config.capabilities(parse_kind(MODELS, {"kind": MODEL[kind]}, at="model"))
    normaliser = Normaliser("one_scale", np.full(16, 0.5), np.full(16, 0.25), False, rows=9)
    parts = Parts(made, able, tokenizer, {NORMALISER: normaliser} if images else {})
    return MMLDLM(parts, batch_tokens=batch_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_do_not_depend_on_the_batches_but_on_the_seed(kind: str) -> None:
    many, one = loaded(kind).images, loaded(kind, batch_tokens=1).images
    drawn, again = (each.draw(CAPTIONS, steps=2) for each in (many, one))
    np.testing.assert_allclose(drawn.pixels, again.pixels, atol=1e-5)
    assert not np.allclose(drawn.pixels, many.draw(CAPTIONS, steps=2, seed=1).pixels)
    written, other = (each.caption(PIXELS, steps=2) for each in (many, one))
    assert written.tokens == other.tokens
    assert written.texts == tuple(" ".join(f"w{i}" if i < 10 else "[UNK]" for i in row) for row in written.tokens)
    both, parts = (each.generate(4, steps=3) for each in (many, one))
    assert both.captions == parts.captions
    np.testing.assert_allclose(both.pixels, parts.pixels, atol=1e-4)
    for found in (drawn, both):
        assert found.pixels.shape == (4, *SIZE)
        assert 0 <= found.pixels.min() < found.pixels.max() <= 1, "values that were drawn outside are clipped"
        table = found.to_frame()
        assert list(table["text"]) == list(found.captions)
        np.testing.assert_array_equal(np.stack(table["image"]), found.pixels.reshape(4, -1))
    assert drawn.captions == CAPTIONS


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda m: m.images.caption(np.zeros((2, 5, 4, 1))), "(2, 5, 4, 1)"),
        (lambda m: m.images.caption(np.zeros(SIZE)), "(4, 4, 1)"),
        (lambda m: m.images.caption(np.zeros((0, *SIZE))), "(0, 4, 4, 1)"),
        (lambda m: m.images.caption(np.full((1, *SIZE), 255.0)), "255"),
        (lambda m: m.images.caption(np.full((1, *SIZE), np.nan)), "nan"),
        (lambda m: m.images.caption(np.full((1, *SIZE), -0.01)), "-0.01"),
        (lambda m: m.images.caption("a picture"), "str"),
        (lambda m: m.images.caption(PIXELS, length="longest"), "longest"),
        (lambda m: m.images.caption(PIXELS, sampler="ddim"), "ddim"),
        (lambda m: m.images.generate(1, length=7), "7"),
        (lambda m: m.images.generate(0), "0"),
        (lambda m: m.images.draw("w3", sampler={"kind": "ddim", "draws": 2}), "2"),
        (lambda m: m.images.draw("w3 " * 9), "9"),
        (lambda m: m.images.draw(["w3", " "]), "[1]"),
        (lambda m: m.images.draw_tokens([[99]], ["w3"]), "99"),
        (lambda m: m.invert(np.zeros((1, 3))), "l2t"),
    ],
)
def test_impossible_requests_are_refused(ask: Any, named: str, refuses: Refuses) -> None:
    with refuses(SamplingError, named):
        ask(loaded())


def test_what_was_not_trained_is_refused(refuses: Refuses) -> None:
    only = {"caption_to_image": 1, "image_to_caption": 0, "joint": 0}
    with refuses(SamplingError, "image_to_caption"):
        loaded(mode_weights=only).images.caption(PIXELS)
    with refuses(SamplingError, "image_text"):
        loaded(mode_weights=only).images.generate(1)
    with refuses(SamplingError, "length_weight"):
        loaded(length_weight=0).images.caption(PIXELS)
    with refuses(SamplingError, "confidence"):
        loaded("image_text_continuous").images.caption(PIXELS, sampler="confidence")
    with refuses(SamplingError, "digits"):
        _ = loaded(images=False).images
    assert len(loaded(length_weight=0).images.caption(PIXELS, length=2, steps=2)) == 4


@pytest.mark.parametrize(
    "sampling",
    [{"image": {"kind": "ddim", "draws": 4}}, {"length": "longest"}, {"caption": {"kind": "ddim", "draws": 2}}],
)
def test_parameters_that_give_no_samples_are_refused(sampling: dict[str, Any], refuses: Refuses) -> None:
    with refuses(ConfigurationError, "images.sampling"):
        parse(ImagesConfig, {"sampling": sampling}, at="images")
