"""Requests for images and captions, and their evaluation: batching changes nothing, results are pixels, refusals."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.families.images.builds import KINDS, MODEL, model
from tests.inference.runs import tokenizer

from mm_ldlm import MMLDLM
from mm_ldlm.core import ConfigurationError, SamplingError, parse, parse_kind
from mm_ldlm.data.dataset_manifest import commit
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.latents.store import KIND, schema, table
from mm_ldlm.data.store import write_store
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.families.images.config import ImagesConfig, ImageTasksConfig
from mm_ldlm.families.images.requests import NORMALISER
from mm_ldlm.families.images.sources import CAPTIONS, NAMES
from mm_ldlm.families.images.suite import ImagesSuite, label_in, pictures
from mm_ldlm.families.images.tasks import CaptionToImage, ImageText, ImageToCaption
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.base import MODELS, DataShape
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

SIZE = (4, 4, 1)
ASKED = ("w1 w2", "w3", "w4 w5 w6", "w1")
PIXELS = np.random.default_rng(0).random((4, *SIZE))
Refuses = Callable[..., Any]


def loaded(kind: str = "image_text", *, images: bool = True, batch_tokens: int = 4096, **objective: Any) -> MMLDLM:
    """A model of images with random weights; its captions have the words w0 … w9."""
    words = tokenizer(10, 6)
    ids = {"vocab_size": words.vocab_size, "pad_id": words.pad_id, "mask_id": words.mask_id}
    shape = DataShape(**ids, max_length=6, fields={"images": SIZE})
    config = parse_kind(OBJECTIVES, {"kind": kind, **objective}, at="objective")
    made = config.build(shape).generative_model(model(MODEL[kind], shape, spread=0.1))
    able = config.capabilities(parse_kind(MODELS, {"kind": MODEL[kind]}, at="model"))
    normaliser = Normaliser("one_scale", np.full(16, 0.5), np.full(16, 0.25), False, rows=9)
    parts = Parts(made, able, words, {NORMALISER: normaliser} if images else {})
    return MMLDLM(parts, batch_tokens=batch_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_do_not_depend_on_the_batches_but_on_the_seed(kind: str) -> None:
    run = loaded(kind)
    many, one = run.images, loaded(kind, batch_tokens=1).images
    drawn, again = (each.draw(ASKED, steps=2) for each in (many, one))
    np.testing.assert_allclose(drawn.pixels, again.pixels, atol=1e-5)
    assert not np.allclose(drawn.pixels, many.draw(ASKED, steps=2, seed=1).pixels)
    written, other = (each.caption(PIXELS, steps=2) for each in (many, one))
    assert written.tokens == other.tokens
    assert max(drawn.model_calls.max(), written.model_calls.max()) <= 3
    random = "ddim" if run.model.process is None else "ancestral"
    assert len({many.caption(PIXELS, sampler=random, steps=2, seed=seed, length=6).tokens for seed in (0, 1)}) == 2
    drawn_lengths = {
        tuple(map(len, many.caption(PIXELS, steps=1, length="sample", seed=seed).tokens)) for seed in range(4)
    }
    assert len(drawn_lengths) > 1
    found = run.traced().images.caption(PIXELS, steps=2)
    assert found.tokens == written.tokens
    if found.traces is None:
        assert run.model.process is None, "captions that are noised as vectors have no words on the way"
    else:
        ends = [[word for word in trace.steps[-1].words if word != "[PAD]"] for trace in found.traces]
        assert ends == [text.split() for text in written.texts]
    assert written.texts == tuple(" ".join(f"w{i}" if i < 10 else "[UNK]" for i in row) for row in written.tokens)
    both, parts = (each.generate(4, steps=3) for each in (many, one))
    assert both.captions == parts.captions
    assert both.model_calls.max() <= 4
    assert {len(text.split()) for text in many.generate(3, steps=1, length=2).captions} == {2}
    np.testing.assert_allclose(both.pixels, parts.pixels, atol=1e-4)
    for found in (drawn, both):
        assert found.pixels.shape == (4, *SIZE)
        assert 0 <= found.pixels.min() < found.pixels.max() <= 1, "values that were drawn outside are clipped"
        table = found.to_frame()
        assert list(table["text"]) == list(found.captions)
        np.testing.assert_array_equal(np.stack(table["image"]), found.pixels.reshape(4, -1))
    assert drawn.captions == ASKED


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda m: m.images.caption(np.zeros((2, 5, 4, 1))), "(2, 5, 4, 1)"),
        (lambda m: m.images.caption(np.zeros(SIZE)), "(4, 4, 1)"),
        (lambda m: m.images.caption(np.zeros((0, *SIZE))), "(0, 4, 4, 1)"),
        (lambda m: m.images.caption(np.full((1, *SIZE), 255.0)), "255"),
        (lambda m: m.images.caption(np.full((1, *SIZE), np.nan)), "nan"),
        (lambda m: m.images.caption(np.full((1, *SIZE), -0.01)), "-0.01"),
        (lambda m: m.images.caption("a picture"), "a picture"),
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
    for dropout in (0.0, 0.5, 1.0):
        able = loaded(condition_dropout=dropout).capabilities
        found = "image_to_caption" in able, *(reason is None for reason in able.untrained_lengths.values())
        assert found == (dropout < 1, dropout < 1, dropout > 0), "given an image, and without one"
        assert ("score" in able, "image_to_caption" in able.guided) == (dropout > 0, dropout > 0)
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


# -- evaluation of images ----------------------------------------------------------------------------------------------


@given(name=st.sampled_from(NAMES), other=st.sampled_from(NAMES), form=st.sampled_from(CAPTIONS))
def test_a_caption_has_a_label_if_it_contains_exactly_one(name: str, other: str, form: str) -> None:
    caption = form.format(name)
    assert label_in(caption, NAMES) == label_in(f"  {caption.upper()} ", NAMES) == name
    assert label_in(f"{caption} or {other}", NAMES) == (name if name == other else None)
    assert label_in(form.format(f"{name}s"), NAMES) is None, "only whole words"


@given(shape=st.sampled_from([(3, 5, 1), (4, 2, 3)]), seed=st.integers(0, 99))
def test_pictures_show_the_pixels(shape: tuple[int, ...], seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (3, *shape))
    found = pictures((pixels / 255).reshape(3, -1), ["a", "b", "c"], shape, count=2)
    assert [picture["caption"] for picture in found] == ["a", "b"]
    for picture, expected in zip(found, pixels, strict=False):
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["png"])))).reshape(shape)
        np.testing.assert_array_equal(shown, expected)


TEXTS = [f"w{row % 20} w{row // 20}" for row in range(60)]


@pytest.fixture
def shown(write_dataset: Callable[..., Any], tmp_path: Path) -> Any:
    """Examples of two classes; a fourth of the held-out images shows the other class."""
    row_n = np.arange(60)
    plain = write_dataset(tmp_path, TEXTS, [("test", "train", "train")[row % 3] for row in row_n])
    pixels_n4 = np.zeros((60, 4), np.float32)
    pixels_n4[:, 0], pixels_n4[:, 2] = (row_n + (row_n % 12 == 0)) % 2, 0.3 * (row_n % 3 > 0)
    ids = plain.records.table(row_n).column("id").to_pylist()
    write_store(
        tmp_path / "images", [table(ids, pixels_n4)], kind=KIND, schema=schema(4, "float32"),
        fingerprints={"records": plain.records.manifest.fingerprint}, meta={"dim": 4, "image_size": [2, 2, 1]},
    )  # fmt: skip
    return commit(tmp_path / "dataset", stores={name: tmp_path / name for name in (*plain.names, "images")})


def test_a_task_passes_its_parameters_on(shown: Any) -> None:
    asked, named = list[Any](), latent_sampler("ddim", steps=3)
    own = ImageTasksConfig(image=named, caption=text_sampler("random"), length=2, joint_count=5, joint_steps=6)
    sections: Any = {"sampling": SimpleNamespace(rows=4, split="test"), "images": ImagesConfig(sampling=own)}

    def ask(first: Any, *_: Any, **how: Any) -> None:
        asked.append((first if isinstance(first, int) else len(first), how))
        raise LookupError

    model: Any = SimpleNamespace(images=SimpleNamespace(draw_tokens=ask, caption=ask, generate=ask))
    for task in (CaptionToImage, ImageToCaption, ImageText):
        with pytest.raises(LookupError):
            task("any", **sections).sample(model, shown, seed=7)
    caption = {"sampler": own.caption, "length": 2, "seed": 7}
    assert asked == [(4, {"sampler": named, "seed": 7}), (4, caption), (5, {"steps": 6, "seed": 7})]


def test_samples_are_compared_with_held_out_examples_by_a_classifier_of_training_images(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the examples has no label."""
    label_n = [None if row % 5 == 4 else f"w{row % 2}" for row in range(60)]
    ids, held = shown.records.table(np.arange(60)).column("id").to_pylist(), shown.rows("test")
    monkeypatch.setattr("mm_ldlm.families.images.suite._labels", lambda dataset, rows: [label_n[row] for row in rows])
    known = [row for row in held if label_n[row] is not None]
    own_n4 = np.stack([[row % 2, 0, 0, 0] for row in held]) + np.float32(0.1)
    same = {"id": [ids[row] for row in held], "model_calls": [2] * len(held)}
    written = [TEXTS[row] if row % 2 else TEXTS[1] for row in held]
    samples = {
        "caption_to_image": pd.DataFrame({**same, "image": list(own_n4), "source": written}),
        "image_to_caption": pd.DataFrame(
            {
                **same,
                "text": [text.upper() for text in written],
                "tokens": shown.tokenizer.encode(written),
                "model_calls": 3,
            }
        ),
        "image_text": pd.DataFrame(
            {"image": list(own_n4), "text": [f"a w{row % 2}" for row in held], "model_calls": 2}
        ),
    }
    config = parse(EvaluationConfig, {"bootstrap": {"replicates": 20}}, at="evaluation")
    found, _ = ImagesSuite().evaluate(Evaluation(loaded(), shown, samples, config, 0, {"images": ImagesConfig()}))
    numbers = {name: getattr(value, "value", value) for name, value in ImagesSuite().numbers(found).items()}
    numbers = {name: value["value"] if isinstance(value, dict) else value for name, value in numbers.items()}
    assert found["classifier"]["trained_on"] == sum(label is not None for label in label_n) - len(known)
    assert (found["classifier"]["real_images"], found["image_to_caption"]["model_calls"]) == (len(known), 3)
    expected = {
        "images.classifier_accuracy": np.mean([row % 12 != 0 for row in known]),
        "caption_to_image.accuracy": 1.0,
        "caption_to_image.nearest_training.generated": (0.07 / 4) ** 0.5,
        "caption_to_image.nearest_training.real": 0.15,
        "image_to_caption.exact_match": np.mean(held % 2),
        "image_to_caption.attested": np.mean(held % 2 == 0),
        "image_text.agreement": 1.0,
        "image_to_caption.accuracy": np.mean(
            [
                label_in(text, ("w0", "w1")) == label_n[row]
                for row, text in zip(held, written, strict=True)
                if label_n[row]
            ]
        ),
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_a_run_on_the_digits_is_sampled_scored_and_reported(run_kedro: Callable[..., Any], workshop: Path) -> None:
    """Few steps: the scores are low, but every number, figure and picture is there."""
    run_kedro("run", "--env=digits+test", "--params=data=data/digits")
    (path,) = (workshop / "data/digits").rglob("08_reporting/metrics.json")
    numbers = json.loads(path.read_text())
    assert numbers["images.classifier_accuracy"] > 0.9
    assert {headline.key for headline in ImagesSuite().headlines({})} <= numbers.keys()
    assert all(0 <= numbers[key] <= 1 for key in numbers if key.endswith((".accuracy", ".attested", ".agreement")))
    (report,) = (workshop / "data/digits").rglob("08_reporting/report.html")
    assert report.read_text().count("data:image/png;base64,") > 20
