"""Seeds, limits and the bootstrap of the parameters reach each part of a suite; progress is shown where it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.data import sentences
from mm_ldlm.data.sentences import Sentences, sample_rows
from mm_ldlm.evaluation import retrieval
from mm_ldlm.evaluation.bootstrap import mean_interval, proportion_interval
from mm_ldlm.evaluation.config import (
    BootstrapConfig,
    ClassificationEvalConfig,
    ImagesSuiteConfig,
    InversionConfig,
    LatentsConfig,
    LikelihoodConfig,
    StsConfig,
    SweepPoint,
)
from mm_ldlm.evaluation.samples import no_rows
from mm_ldlm.evaluation.sts import ratio_to, score_encoder
from mm_ldlm.evaluation.sts_sets import StsSource, from_pairs
from mm_ldlm.evaluation.suites import inversion, latents, likelihood, sts
from mm_ldlm.families.classification import suite as classification
from mm_ldlm.families.images import suite as images
from mm_ldlm.inference.results import Scores
from mm_ldlm.sampling.registry import text_sampler

BOOTSTRAP = BootstrapConfig(replicates=30, level=0.7)
OPTIONS: dict[str, Any] = {"replicates": 30, "level": 0.7, "seed": 5}


# -- images ------------------------------------------------------------------------------------------------------------


class Pictures:
    """60 images of 2 × 1 pixels, whose label is that of the first pixel; the row is in the second one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pixels = np.stack([np.arange(60) % 2, np.arange(60) / 60], axis=1).astype(np.float32)
        self.images = SimpleNamespace(manifest=SimpleNamespace(meta={"image_size": [2, 1, 1]}))
        self.read: list[list[int]] = []

        def images_of(_: Any, rows: Any) -> Any:
            self.read.append(rows.tolist())
            return self.pixels[rows].reshape(-1, 2, 1, 1)

        for name, function in {
            "split_rows": lambda _, split: {"train": np.arange(40), "test": np.arange(40, 60)}[split],
            "images_of": images_of,
            "labels_of": lambda _, rows: [f"kind {row % 2}" for row in rows],
            "rows_of_ids": lambda _, ids: np.array([int(name) for name in ids]),
            "read_sentences": lambda _, rows: SimpleNamespace(tokens=[(int(row),) for row in rows]),
            "texts_of_split": lambda _, split: ["A text of kind 0"] * (split == "train"),
        }.items():
            monkeypatch.setattr(sentences, name, function)

    def require(self, name: str) -> Any:
        return {"images": self.images}[name]


def test_the_images_suite_draws_its_rows_with_the_seed_and_its_intervals_with_the_bootstrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The samples are wrong in known places: images 1 and 4, captions 2 and 3, agreement in none but two."""
    data = Pictures(monkeypatch)
    ids = [50, 47, 44, 41, 58, 55]
    about = {"id": [str(row) for row in ids], "model_calls": [1, 2, 3, 4, 5, 9], "source": [f"s{row}" for row in ids]}
    made = data.pixels[ids].copy()
    made[[1, 4], 0] = 1 - made[[1, 4], 0]
    texts = [f"a text of kind {row % 2 if place not in (2, 3) else 1 - row % 2}" for place, row in enumerate(ids)]
    drawn = pd.DataFrame({**about, "image": list(made)})
    written = pd.DataFrame({**about, "text": texts, "tokens": [(row if row > 50 else 0,) for row in ids]})
    both = pd.DataFrame({"text": texts, "image": list(made), "model_calls": 8})
    found = images.evaluate(
        data, drawn=drawn, written=written, both=both,  # type: ignore[arg-type]
        config=ImagesSuiteConfig(classifier_rows=13, pictures=4), bootstrap=BOOTSTRAP, seed=5,
    )  # fmt: skip
    train, test = sample_rows(np.arange(40), 13, seed=5), sample_rows(np.arange(40, 60), 13, seed=5)
    assert data.read[:2] == [train.tolist(), test.tolist()]
    assert (found["size"], found["labels"]) == ([2, 1, 1], ["kind 0", "kind 1"])
    assert found["classifier"] == {
        "trained_on": 13, "real_images": 13, "real_accuracy": proportion_interval(np.ones(13), **OPTIONS).as_dict(),
    }  # fmt: skip

    def hits(*wrong: int) -> Any:
        return proportion_interval(np.array([float(place not in wrong) for place in range(6)]), **OPTIONS).as_dict()

    def near(some: Any) -> Any:
        distance = np.sqrt(((some[:, None] - data.pixels[train]) ** 2).mean(2)).min(1)
        return pytest.approx(mean_interval(distance, **OPTIONS).as_dict(), abs=1e-6)

    one, two, three = (found[task] for task in ("caption_to_image", "image_to_caption", "image_text"))
    assert (one["images"], one["model_calls"], one["accuracy"]) == (6, 4.0, hits(1, 4))
    assert one["nearest_training"] == {"generated": near(made), "real": near(data.pixels[ids])}
    assert (two["captions"], two["model_calls"], two["accuracy"]) == (6, 4.0, hits(2, 3))
    assert (two["exact_match"], two["attested"]) == (hits(0, 1, 2, 3), hits(1, 2, 5))
    assert (three["samples"], three["model_calls"], three["agreement"]) == (6, 8.0, hits(1, 2, 3, 4))
    for entry, captions, vectors in (
        (one, about["source"], made), (two, texts, data.pixels[ids]), (three, texts, made)
    ):  # fmt: skip
        assert [picture["caption"] for picture in entry["pictures"]] == captions[:4]
        expected = [images.png(vector.reshape(2, 1, 1)) for vector in vectors[:4]]
        assert [picture["png"] for picture in entry["pictures"]] == expected


def test_pixels_beyond_black_and_white_do_not_wrap_around() -> None:
    beyond, ends = (np.array(values, np.float32).reshape(2, 2, 1) for values in ([-0.5, 1.5, 0, 1], [0, 1, 0, 1]))
    assert images.png(beyond) == images.png(ends)


# -- STS ---------------------------------------------------------------------------------------------------------------


class Digits:
    """An encoder, a sampler and a regression whose vectors are three functions of the number in "w3"."""

    tokenizer = SimpleNamespace(unk_id=-1, encode=lambda texts: [[0] for _ in texts])
    max_length, no_encoder = 5, None
    capabilities = SimpleNamespace(refusal=lambda use: None, reads_latents=True)

    def encode(self, texts: Any) -> Any:
        return np.array([[1.0, float(text[1:]), 2.0] for text in texts])

    def embed_tokens(self, ids: Any, texts: Any, *, sampler: Any, **_: Any) -> Any:
        turn = 1.0 if sampler == "one_step" else 2.0
        return SimpleNamespace(latents=np.array([[turn, float(t[1:]) ** 0.5, np.sin(float(t[1:]))] for t in texts]))


@pytest.mark.parametrize("progress", [True, False])
def test_every_score_of_a_set_is_resampled_as_the_parameters_say(
    progress: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    triples = [(f"w{i}", f"w{(5 * i) % 13 + 1}", float(i % 6)) for i in range(13)]
    sets = {name: from_pairs(name, triples[start:]) for name, start in (("one", 0), ("two", 2))}
    asked: list[Any] = []

    def load(source: StsSource, *, seed: int) -> Any:
        asked.append((source.name, seed))
        return sets[source.name]

    monkeypatch.setattr(sts, "load_sts", load)
    model = Digits()
    config = StsConfig(sets=tuple(StsSource(format="stsb", name=name, path="p") for name in sets))
    found = sts.evaluate(model, config=config, bootstrap=BOOTSTRAP, seed=5, progress=progress)["sets"]
    assert asked == [("one", 5), ("two", 5)]
    assert ("STS" in capsys.readouterr().err) == progress
    for name, pairs in sets.items():
        scores = {
            "encoder": score_encoder(pairs, model.encode, **OPTIONS),
            "model": score_encoder(pairs, lambda texts: model.embed_tokens([], texts, sampler="s").latents, **OPTIONS),
            "one_step": score_encoder(
                pairs, lambda texts: model.embed_tokens([], texts, sampler="one_step").latents, **OPTIONS
            ),
        }
        for source, score in scores.items():
            expected = sts.as_dict(score)
            if source != "encoder":
                expected["ratio"] = ratio_to(scores["encoder"], score, level=0.7).as_dict()
            assert found[name]["scores"][source] == expected, source


# -- inversion ---------------------------------------------------------------------------------------------------------


class Same:
    """A model that writes "a" for each latent and has no encoder."""

    no_encoder = "none"
    tokenizer = SimpleNamespace(decode_batch=lambda rows: ["a"] * len(rows), encode=lambda texts: [[1] for _ in texts])

    def invert(self, latents_nd: Any, **_: Any) -> Any:
        count = len(latents_nd)
        return SimpleNamespace(tokens=[(1,)] * count, texts=["a"] * count, model_calls=[1] * count,
                               encoder_calls=[0] * count)  # fmt: skip


@pytest.mark.parametrize(("reference", "expected"), [(None, "c"), ("b", "b"), ("a", "a")])
@pytest.mark.parametrize("progress", [True, False])
def test_the_reference_of_a_sweep_is_the_last_point_unless_one_is_named(
    reference: str | None, expected: str, progress: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tuple(SweepPoint(label=label, sampler=text_sampler("confidence", steps=1)) for label in "abc")
    held = Sentences(tuple("xyz"), tuple("aaa"), ((1,),) * 3, np.ones((3, 2), np.float32))
    lines = inversion.sweep(
        Same(), held, config=InversionConfig(sweep=points, reference=reference), bootstrap=BOOTSTRAP, seed=5,
        progress=progress,
    )  # fmt: skip
    assert [(line["label"], line["reference"]) for line in lines] == [(label, expected) for label in "abc"]
    assert ("quality against calls" in capsys.readouterr().err) == progress


# -- classification and likelihood -------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_split_of_the_parameters_is_measured_and_named(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    clock = iter([100.0, 102.26])
    rows = {"train": np.arange(30), "validation": np.arange(30, 40), "test": np.arange(40, 55)}
    monkeypatch.setattr(classification.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(classification, "split_rows", lambda _, name: rows[name])
    monkeypatch.setattr(classification, "labels_of", lambda _, given, names: given % 2)
    monkeypatch.setattr(classification, "predict", lambda model, _, given: asked.append(given.tolist()) or "predicted")
    monkeypatch.setattr(classification, "logistic_regression", lambda _, train, given, **how: (
        asked.append((train.tolist(), given.tolist(), how)) or ("fitted", 0.25)))  # fmt: skip
    monkeypatch.setattr(classification, "measure", lambda true_n, found, **how: {"true": true_n.tolist(), "of": found})
    model = SimpleNamespace(
        capabilities=SimpleNamespace(refusal=lambda use: None, classifies="pairs"),
        model=SimpleNamespace(classes=("b", "a")),
    )
    config = ClassificationEvalConfig(split=split, examples=6, baseline_rows=9)
    found = classification.evaluate(model, {"latents": 1}, config=config, bootstrap=BOOTSTRAP, seed=5)  # type: ignore[arg-type]
    held, train = sample_rows(rows[split], 6, seed=5), sample_rows(rows["train"], 9, seed=5)
    true = (held % 2).tolist()
    assert found == {
        "split": split, "classifies": "pairs", "model": {"true": true, "of": "predicted"},
        "logistic_regression": {"true": true, "of": "fitted", "trained_on": 9, "inverse_regularisation": 0.25,
                                "seconds": 2.3},
    }  # fmt: skip
    assert asked == [
        held.tolist(), (train.tolist(), held.tolist(), {"names": ["b", "a"], "config": config, "seed": 5})
    ]  # fmt: skip
    asked.clear()
    without = classification.evaluate(model, {}, config=config, bootstrap=BOOTSTRAP, seed=5)  # type: ignore[arg-type]
    assert (set(without), len(asked)) == ({"split", "classifies", "model"}, 1), "a dataset without latents"


def test_a_bucket_without_a_draw_has_no_number() -> None:
    """JSON has no NaN; a bucket of the noise level with draws keeps its numbers."""
    one = np.ones((1, 1))
    made = Scores(
        texts=("a",), tokens=np.array([2]), likelihood="bound", length_nll=np.array([0.5]), token_nll=np.array([3.0]),
        standard_errors=np.zeros(1), draw_nll=3 * one, draw_mask_ratio=0.3 * one, draw_masked=one,
        draw_correct=0 * one, draw_cross_entropy=2.5 * one,
    )  # fmt: skip
    empty, full = likelihood._summary(made, config=LikelihoodConfig(buckets=2))["by_mask_ratio"][::-1]
    assert full == {"low": 0, "high": 0.5, "draws": 1, "masked_tokens": 1, "cross_entropy": 2.5, "accuracy": 0,
                    "nats_per_token": 1.5}  # fmt: skip
    assert empty == {"low": 0.5, "high": 1, "draws": 0, "masked_tokens": 0, "cross_entropy": None, "accuracy": None,
                     "nats_per_token": 0}  # fmt: skip


def test_tables_of_skipped_suites_have_the_columns_that_readers_expect() -> None:
    assert (list(no_rows().columns), len(no_rows())) == (["id", "reference"], 0)
    assert (list(likelihood.no_rows().columns), len(likelihood.no_rows())) == (["id", "tokens", "nll"], 0)
    assert [str(dtype) for dtype in likelihood.no_rows().dtypes] == ["string", "int64", "float64"]


# -- latents -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [5, 6])
def test_real_latents_beside_the_unconditional_ones_are_drawn_with_the_seed(seed: int) -> None:
    draw = np.random.default_rng(0)
    real, others, free = draw.normal(size=(6, 2)), draw.normal(size=(30, 2)) * 3, draw.normal(size=(5, 2))
    held = Sentences(tuple("abcdef"), tuple("abcdef"), ((1,),) * 6, real)  # type: ignore[arg-type]
    found = latents.evaluate(
        SimpleNamespace(embed=lambda texts, **_: SimpleNamespace(latents=real + 1)), held, real + 2,
        distractors_md=others, unconditional_nd=free, sampler=None, config=LatentsConfig(calibration_sentences=0),
        bootstrap=BOOTSTRAP, seed=seed,
    )  # fmt: skip
    drawn = others[sample_rows(np.arange(30), 5, seed=seed)]
    assert found["real_frechet"] == pytest.approx(retrieval.frechet_distance(drawn, real))
    assert found["unconditional_frechet"] == pytest.approx(retrieval.frechet_distance(free, real))
