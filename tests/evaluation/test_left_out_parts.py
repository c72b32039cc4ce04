"""Suites of runs that lack a part: an encoder, labels, a kind of text; what is left out and why."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.data import sentences
from mm_ldlm.evaluation.config import BootstrapConfig, ImagesSuiteConfig, InversionConfig, StsConfig, SweepPoint
from mm_ldlm.evaluation.report import content, page
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.evaluation.sts_sets import StsSet, StsSource
from mm_ldlm.evaluation.suites import inversion, sts
from mm_ldlm.families.classification import suite as classification
from mm_ldlm.families.images import suite as images
from mm_ldlm.sampling.config import SearchConfig
from mm_ldlm.sampling.registry import text_sampler

BOOTSTRAP = BootstrapConfig(replicates=20)
NOTHING: Any = {"skipped": "not here"}


# -- STS ---------------------------------------------------------------------------------------------------------------


class Numbers:
    """A model whose embedding of "w3" is a function of 3."""

    tokenizer = SimpleNamespace(unk_id=-1, encode=lambda texts: [[0] for _ in texts])
    max_length = 5

    def __init__(self, *, no_encoder: str | None = None, refused: str | None = None) -> None:
        self.no_encoder, self.encoded = no_encoder, 0
        self.capabilities = SimpleNamespace(refusal=lambda use: refused, reads_latents=True)

    def encode(self, texts: Any) -> Any:
        self.encoded += 1
        return self.embed_tokens([], texts).latents

    def embed_tokens(self, ids: Any, texts: Any, **_: Any) -> Any:
        return SimpleNamespace(latents=np.array([[1.0, float(text[1:]), 2.0] for text in texts]))


def sts_of(model: Any, monkeypatch: pytest.MonkeyPatch, **source: Any) -> dict[str, Any]:
    first, second = tuple(f"w{i}" for i in range(8)), tuple(f"w{(3 * i) % 8 + 1}" for i in range(8))
    pairs = StsSet("mine", first, second, np.arange(8.0), ("",) * 8)
    monkeypatch.setattr(sts, "load_sts", lambda source, *, seed: pairs)
    given = {"format": "stsb", "name": "mine", "path": "p"} | source
    return sts.evaluate(
        model, config=StsConfig(sets=(StsSource(**given),)), bootstrap=BOOTSTRAP, seed=0, progress=False
    )


def test_without_an_encoder_the_model_is_scored_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = Numbers(no_encoder="the vectors were given")
    found = sts_of(model, monkeypatch)
    assert (found["left_out"], "skipped" in found, model.encoded) == ("the vectors were given", False, 0)
    entry = found["sets"]["mine"]
    assert set(entry["scores"]) == {"model", "one_step"}
    assert not any("ratio" in score for score in entry["scores"].values())
    assert set(entry["scatter"]) == {"gold", "model", "one_step"}
    assert "STS of the encoder is left out: the vectors were given" in caplog.text


def test_without_an_encoder_and_embeddings_there_is_no_set(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Numbers(no_encoder="given", refused="cannot embed")
    assert sts_of(model, monkeypatch) == {"skipped": "cannot embed", "sets": {}, "left_out": "given"}
    found = sts_of(Numbers(refused="cannot embed"), monkeypatch)
    assert (found["skipped"], set(found["sets"]["mine"]["scores"])) == ("cannot embed", {"encoder"})
    assert not {"too_long", "unknown"} & found["sets"]["mine"].keys(), "numbers of the model's own tokens"


@pytest.mark.parametrize(("form", "split"), [("sick", "trial"), ("sick", "all"), ("stsb", "test")])
def test_the_part_of_sick_is_recorded(form: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = sts_of(Numbers(), monkeypatch, format=form, split=split)["sets"]["mine"]
    assert entry.get("part") == (split if form == "sick" else None)


# -- inversion ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("candidates", "left"), [(1, ["plain", "search"]), (2, ["plain"])])
def test_a_search_is_left_out_without_an_encoder_if_it_is_one(candidates: int, left: list[str]) -> None:
    sampler = text_sampler("confidence", steps=1)
    search = SweepPoint(label="search", sampler=sampler, search=SearchConfig(candidates=candidates))
    config = InversionConfig(sweep=(SweepPoint(label="plain", sampler=sampler), search))
    without = inversion.without_encoder(SimpleNamespace(no_encoder="given"), config)
    assert search.search is not None
    assert search.search.enabled == (candidates > 1)
    assert [point.label for point in config.sweep if point not in without] == left
    assert inversion.without_encoder(SimpleNamespace(no_encoder=None), config) == []
    config = InversionConfig(sweep=(search,))
    if search.search.enabled:
        alone = SimpleNamespace(no_encoder="given")
        options: Any = {"config": config, "bootstrap": BOOTSTRAP, "seed": 0, "progress": False}
        assert inversion.sweep(alone, None, **options) == []  # type: ignore[arg-type]


def report_of(**given: Any) -> ReportInputs:
    names = ("run", "run_config", "metrics", "inversion", "sts", "likelihood", "latents", "generation")
    nothing: dict[str, Any] = {name: {} for name in names}
    return ReportInputs(
        title="T", inversion_rows=pd.DataFrame(), unconditional=pd.DataFrame(), **nothing | given
    )  # fmt: skip


# -- images ------------------------------------------------------------------------------------------------------------


class Images:
    """Two kinds of images, dark and bright; `label_of` gives the label of a row, or None."""

    def __init__(self, label_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pixels = np.random.default_rng(0).random((40, 2, 2, 1)).astype(np.float32) * 0.2
        self.pixels[1::2] += 0.8
        self.texts = [f"a {'bright' if row % 2 else 'dark'} picture" for row in range(40)]
        self.images = SimpleNamespace(manifest=SimpleNamespace(meta={"image_size": [2, 2, 1]}))
        for name, function in {
            "split_rows": lambda _, split: np.arange(30) if split == "train" else np.arange(30, 40),
            "images_of": lambda _, rows: self.pixels[rows],
            "labels_of": lambda _, rows: [label_of(int(row)) for row in rows],
            "rows_of_ids": lambda _, ids: np.array([int(name) for name in ids]),
            "read_sentences": lambda _, rows: SimpleNamespace(tokens=[(int(row) % 2,) for row in rows]),
            "texts_of_split": lambda _, split: self.texts[:30],
        }.items():
            monkeypatch.setattr(sentences, name, function)

    def require(self, name: str) -> Any:
        assert name == "images"
        return self.images

    def evaluated(self, **tables: Any) -> dict[str, Any]:
        empty = {name: pd.DataFrame() for name in ("drawn", "written", "both")}
        return images.evaluate(
            self, **empty | tables, config=ImagesSuiteConfig(pictures=2), bootstrap=BOOTSTRAP, seed=0  # type: ignore[arg-type]
        )  # fmt: skip

    def tables(self) -> dict[str, Any]:
        rows = range(30, 40)
        about = {"id": [str(row) for row in rows], "model_calls": 1, "source": "s", "text": self.texts[30:]}
        pixels = list(self.pixels[30:].reshape(10, -1))
        return {
            "drawn": pd.DataFrame({**about, "image": pixels}),
            "written": pd.DataFrame({**about, "tokens": [(row % 2,) for row in rows]}),
            "both": pd.DataFrame({**about, "image": pixels}),
        }


def own(row: int) -> str:
    return "bright" if row % 2 else "dark"


def test_records_without_a_label_count_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows 0 to 8 and 30 to 35 have no label; with the labels of the rows beside them nothing could be learned."""
    data = Images(lambda row: None if row < 9 or 30 <= row < 36 else own(row), monkeypatch)
    found = data.evaluated(**data.tables())
    assert found["labels"] == ["bright", "dark"]
    assert (found["classifier"]["trained_on"], found["classifier"]["real_images"]) == (21, 4)
    assert found["classifier"]["real_accuracy"]["value"] == 1
    assert found["caption_to_image"]["accuracy"]["value"] == found["image_to_caption"]["accuracy"]["value"] == 1
    assert found["image_text"]["agreement"]["value"] == 1
    assert found["image_to_caption"]["captions"] == 10
    assert "left_out" not in found


def test_a_classifier_without_labels_of_held_out_images_has_no_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images drawn with their captions need no label of a record."""
    data = Images(lambda row: own(row) if row < 30 else None, monkeypatch)
    found = data.evaluated(**data.tables())
    assert found["classifier"] == {"trained_on": 30, "real_images": 0}
    assert not {"accuracy", "left_out"} & (found["caption_to_image"].keys() | found["image_to_caption"].keys())
    assert found["image_text"]["agreement"]["value"] == 1
    text = page.render(report_of(images=found), {})
    assert "trained on 30 real images of the training split. A caption" in " ".join(text.split())


@pytest.mark.parametrize("label_of", [lambda row: None, lambda row: "dark"])
def test_without_several_labels_nothing_is_classified(label_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Images(label_of, monkeypatch)
    found = data.evaluated(**data.tables())
    assert "no labels" in found["left_out"]
    assert "classifier" not in found
    assert "accuracy" not in found["caption_to_image"]
    assert "agreement" not in found["image_text"]
    assert found["caption_to_image"]["nearest_training"]["real"]["value"] > 0
    assert found["image_to_caption"]["exact_match"]["value"] == 1


@pytest.mark.parametrize("name", ["drawn", "written", "both"])
def test_a_task_without_samples_has_no_entry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Images(own, monkeypatch)
    found = data.evaluated(**{name: data.tables()[name]})
    task = {"drawn": "caption_to_image", "written": "image_to_caption", "both": "image_text"}
    assert {key for key in task.values() if key in found} == {task[name]}
    assert len(found[task[name]]["pictures"]) == 2
    empty = pd.DataFrame()
    tables = [data.tables()[name] if key == name else empty for key in task]
    assert images.skip_reason(None, tables) is None


# -- classification ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["latents", "texts", "pairs"])
def test_a_classifier_receives_what_it_classifies(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of second texts is padded, and a text may have the same id in it as the first one."""
    held = SimpleNamespace(latents="latents", tokens=[(1, 2), (3,)], texts=("a b", "c"))
    asked: list[Any] = []

    def answer(*given: Any, **more: Any) -> Any:
        asked.append((given, more))
        return SimpleNamespace(probabilities=[[0.25, 0.75]])

    padded = np.array([[9, 9, 9], [4, 5, 9], [6, 9, 9], [7, 7, 7]])
    store = SimpleNamespace(fixed=lambda name: SimpleNamespace(take=lambda rows: padded[rows]))
    data: Any = SimpleNamespace(tokenizer=SimpleNamespace(pad_id=9), require=lambda name: {"pair_tokens": store}[name])
    monkeypatch.setattr(classification, "read_sentences", lambda _, rows: held)
    model = SimpleNamespace(
        capabilities=SimpleNamespace(classifies=kind), classify_latents=answer, classify_tokens=answer
    )
    assert classification.predict(model, data, np.array([3, 1])).tolist() == [[0.25, 0.75]]
    assert asked == [
        {
            "latents": (("latents",), {}),
            "texts": ((held.tokens, held.texts), {"second": None}),
            "pairs": ((held.tokens, held.texts), {"second": [[7, 7, 7], [4, 5]]}),
        }[kind]
    ]


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_report_says_which_parts_are_left_out_and_why() -> None:
    known: dict[str, Any] = {"scores": {}}
    inputs = ReportInputs(
        title="T", run={}, run_config={}, metrics={}, latents={"samplers": {"model": {}}},
        generation={"generated": {"a": 1}},
        inversion={"metrics": {"a": 1}, "left_out": ["no search."]}, inversion_rows=pd.DataFrame(),
        sts={"skipped": "cannot embed", "left_out": "no encoder", "sets": {
            "news": {**known, "unknown": 0.51}, "half": {**known, "unknown": 0.5}, "plain": known}},
        likelihood={"given_latent": {"a": 1}, "left_out": ["cannot score"]}, unconditional=pd.DataFrame(),
        images={"left_out": "no labels"},
    )  # fmt: skip
    assert content.left_out(inputs) == [
        ("Part of the inversion", "no search."),
        ("STS of the model", "cannot embed."),
        ("STS of the encoder", "no encoder."),
        ("STS news among the headlines", "51.0 % of its sentences contain words outside the run's vocabulary."),
        ("Part of the likelihood", "cannot score."),
        ("Labels of images", "no labels."),
    ]
    empty = ReportInputs(**{**vars(inputs), "images": {}, "inversion": NOTHING, "latents": {}, "generation": {},
                            "likelihood": {"left_out": []}, "sts": {"sets": {}}})  # fmt: skip
    nothing = "the evaluation has no results for it."
    assert content.left_out(empty) == [
        ("From latent to text", "not here."),
        ("From text to latent", nothing),
        ("Semantic textual similarity", "no STS sets are configured (evaluation.sts.sets)."),
        ("Likelihood", nothing),
        ("Unconditional samples", nothing),
    ]
