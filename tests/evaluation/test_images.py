"""The suite `images`: real images and true captions score as such, exchanged ones do not; pictures; the report."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.data import Dataset, commit, sentences
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.corpus.tokens import build_tokenizer, tokenize_records
from mm_ldlm.data.index import write_index, write_quarantine
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.data.latents.normaliser_fit import fit
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore
from mm_ldlm.evaluation.config import BootstrapConfig, ImagesSuiteConfig
from mm_ldlm.evaluation.report import page
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.families.images import suite
from mm_ldlm.families.images.decoding import ImageLimits
from mm_ldlm.families.images.store import ImagesConfig, store_images
from mm_ldlm.objectives.capabilities import Capabilities


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of 400 digits, made by the functions of the pipelines."""
    root = tmp_path_factory.mktemp("digits")
    config = {"sources": [{"kind": "digits", "max_samples": 400}], "splits": {"test": 0.25}, "progress": False}
    records, refused, _ = ingest(
        parse(IngestionConfig, config, at="ingestion"), seed=0, workspace=root / "records", quarantine=root / "refused"
    )
    records.write(root / "records")
    refused.write(root / "refused")
    store, limits = ShardStore.open(root / "records"), TokenizerConfig(max_length=12, reduce_vocabulary=True)
    tokenizer = build_tokenizer(store, limits)
    tokenizer.save(root / "tokenizer")
    tokenize_records(store, tokenizer, limits, root / "tokens").write(root / "tokens")
    size = ImagesConfig(height=8, width=8, channels=1)
    store_images(store, config=size, limits=ImageLimits(), workspace=root / "images")
    tokens = ShardStore.open(root / "tokens")
    write_quarantine(store, {}, root / "quarantine")
    write_index(store, tokens, None, ShardStore.open(root / "quarantine"), root / "index")
    rows = np.arange(len(store))
    normaliser = fit(
        LatentStore.open(root / "images"), rows=rows, config=NormaliserConfig(kind="one_scale"), unit_norm=False
    )
    normaliser.save(root / "image_normaliser")
    names = ("records", "tokens", "index", "tokenizer", "images", "image_normaliser")
    return commit(root / "dataset", stores={name: root / name for name in names})


def test_one_scale_standardises_all_pixels_by_one_number(digits: Dataset) -> None:
    normaliser = digits.require("image_normaliser")
    vectors = digits.require("images").take(slice(None))
    z = normaliser.standardise(vectors)
    assert np.unique(normaliser.scale_d).size == 1
    assert np.abs(z.mean(0)).max() < 1e-4
    assert z.var(0, ddof=1).mean() == pytest.approx(1, rel=1e-3)
    assert np.allclose(normaliser.invert(z), vectors, atol=1e-5)


def tables(dataset: Dataset, *, shift: int) -> dict[str, Any]:
    """Samples that are the held-out images and captions themselves, each given to the record `shift` places on."""
    rows = dataset.rows("test")
    held, pixels = sentences.read_sentences(dataset, rows), sentences.images_of(dataset, rows).reshape(len(rows), -1)
    about = {"id": list(held.ids), "source": list(held.texts), "model_calls": 1}
    place = np.roll(np.arange(len(rows)), shift)
    drawn = pd.DataFrame({**about, "image": list(pixels[place])})
    texts = [held.texts[i] for i in place]
    written = pd.DataFrame({**about, "text": texts, "tokens": [held.tokens[i] for i in place]})
    both = pd.DataFrame({"text": texts, "image": list(pixels), "model_calls": 1})
    return {"drawn": drawn, "written": written, "both": both}


def evaluated(dataset: Dataset, **some: Any) -> dict[str, Any]:
    return suite.evaluate(
        dataset, **some, config=ImagesSuiteConfig(pictures=3), bootstrap=BootstrapConfig(replicates=50), seed=0
    )


def test_real_images_and_true_captions_score_like_real_ones(digits: Dataset) -> None:
    found = evaluated(digits, **tables(digits, shift=0))
    real = found["classifier"]["real_accuracy"]["value"]
    assert real > 0.9
    assert found["caption_to_image"]["accuracy"]["value"] == real
    assert found["image_text"]["agreement"]["value"] == real
    assert found["image_to_caption"]["accuracy"]["value"] == found["image_to_caption"]["exact_match"]["value"] == 1
    distances = found["caption_to_image"]["nearest_training"]
    assert distances["generated"] == distances["real"]
    assert distances["real"]["value"] > 0.05


def test_exchanged_images_and_captions_score_low(digits: Dataset) -> None:
    found = evaluated(digits, **tables(digits, shift=1))
    assert found["caption_to_image"]["accuracy"]["value"] < 0.4
    assert found["image_to_caption"]["accuracy"]["value"] < 0.4
    assert found["image_text"]["agreement"]["value"] < 0.4


def test_copies_of_training_images_have_distance_zero(digits: Dataset) -> None:
    some = tables(digits, shift=0)
    train = sentences.images_of(digits, digits.rows("train")).reshape(-1, 64)
    some["drawn"]["image"] = list(train[: len(some["drawn"])])
    assert evaluated(digits, **some)["caption_to_image"]["nearest_training"]["generated"]["value"] == 0


def test_a_caption_is_attested_in_any_case_and_every_count_is_that_of_its_table(digits: Dataset) -> None:
    some = tables(digits, shift=0)
    train = sentences.read_sentences(digits, digits.rows("train")).texts
    texts = [train[0].upper(), "never written", *[train[1]] * (len(some["written"]) - 2)]
    some["written"] = some["written"].assign(text=texts)
    some = {name: table.assign(model_calls=3 + place) for place, (name, table) in enumerate(some.items())}
    some["both"] = some["both"].head(9)
    found = evaluated(digits, **some)
    held = len(digits.rows("test"))
    assert found["image_to_caption"]["attested"]["value"] == pytest.approx((held - 1) / held)
    counts = (
        found["caption_to_image"]["images"],
        found["image_to_caption"]["captions"],
        found["image_text"]["samples"],
    )
    assert counts == (held, held, 9)
    calls = [found[name]["model_calls"] for name in ("caption_to_image", "image_to_caption", "image_text")]
    assert calls == [3, 4, 5]
    assert (found["classifier"]["trained_on"], found["classifier"]["real_images"]) == (len(digits.rows("train")), held)
    assert (found["size"], len(found["labels"])) == ([8, 8, 1], 10)
    assert {len(found[name]["pictures"]) for name in ("caption_to_image", "image_to_caption", "image_text")} == {3}


@pytest.mark.parametrize(
    ("caption", "label"),
    [
        ("a picture of a Seven", "seven"),
        ("seven or eight", None),
        ("a seventh", None),
        ("", None),
        ("hot dog", "hot dog"),
    ],
)
def test_the_label_in_a_caption_is_the_only_one_that_it_contains(caption: str, label: str | None) -> None:
    assert suite.label_in(caption, ["seven", "eight", "hot dog"]) == label


def test_pictures_keep_their_pixels() -> None:
    pixels = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    with Image.open(io.BytesIO(base64.b64decode(suite.png(pixels)))) as image:
        assert np.abs(np.asarray(image) / 255 - pixels).max() <= 0.5 / 255 + 1e-6
    assert len(suite.pictures([pixels.ravel()] * 5, ["x"] * 5, (4, 5, 3), count=2)) == 2


def test_a_run_without_images_is_skipped_in_the_words_of_its_capabilities() -> None:
    class Model:
        capabilities = Capabilities(uses=frozenset({"score"}), trained_as="objective toy")

    empty = pd.DataFrame()
    assert suite.skip_reason(Model(), [empty] * 3) == Model.capabilities.refusal("caption_to_image")
    Model.capabilities = Capabilities(uses=frozenset(suite.TASKS), trained_as="objective toy")
    assert "sampling.tasks" in str(suite.skip_reason(Model(), [empty] * 3))


def test_the_report_shows_the_pictures_with_escaped_captions(digits: Dataset) -> None:
    some = tables(digits, shift=0)
    some["both"]["text"] = "<b>seven</b>"
    found = evaluated(digits, **some)
    nothing: dict[str, Any] = {"skipped": "not here"}
    inputs = ReportInputs(
        title="T", run={}, run_config={}, metrics={"caption_to_image.accuracy": 0.97}, inversion=nothing, sts={},
        likelihood={}, latents=nothing, generation=nothing, inversion_rows=pd.DataFrame(), unconditional=pd.DataFrame(),
        images=found,
    )  # fmt: skip
    text = page.render(inputs, {})
    assert text.count("data:image/png;base64,") == 9
    assert "<b>seven" not in text
    assert "97.0 %" in text
    assert "Images of held-out captions" in text
    without = page.render(ReportInputs(**{**vars(inputs), "images": {"skipped": "no images"}}), {})
    assert 'id="images"' not in without
