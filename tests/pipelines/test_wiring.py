"""What each node reads: every split, checkpoint and option differs from its default and from all others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import FingerprintError
from mm_ldlm.data import sentences
from mm_ldlm.data.latents import normaliser_fit
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.inference import MMLDLM
from mm_ldlm.pipelines.evaluation import nodes as evaluation_nodes
from mm_ldlm.pipelines.sampling import nodes as sampling_nodes
from mm_ldlm.pipelines.validation import nodes as validation_nodes

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def dataset(write_dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Nine sentences of each split, whose first word names the split: w0 train, w1 validation, w2 test."""
    texts = [f"w{split} w{3 + number} w{3 + (number * 5) % 17}" for number in range(9) for split in range(3)]
    latents = np.random.default_rng(0).standard_normal((27, 4))
    return write_dataset(tmp_path_factory.mktemp("wiring"), texts, SPLITS * 9, latents=latents)


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    folder = Path(__file__).parents[2] / "conf" / "base" / "parameters"
    return {name: yaml.safe_load((folder / f"{name}.yml").read_text())[name] for name in ("sampling", "evaluation")}


class Model:
    """A model that can do everything and records nothing."""

    capabilities = SimpleNamespace(refusal=lambda use: None, refuse_task=lambda *_, **__: None)
    tokenizer, device, max_length, parts, no_encoder = None, "cpu", 12, None, None


def splits_of(found: Any) -> set[str]:
    """The splits that sentences, texts or records come from."""
    texts = found.texts if hasattr(found, "texts") else list(found)
    return {SPLITS[int(text.split()[0][1:])] for text in texts}


@pytest.mark.parametrize("checkpoint", ["best", 40])
@pytest.mark.parametrize("use_ema", [True, False])
@pytest.mark.parametrize(("nodes", "key"), [(sampling_nodes, "sampling"), (evaluation_nodes, "evaluation")])
def test_the_model_is_that_of_the_run_checkpoint_and_weights_that_are_named(
    nodes: Any, key: str, checkpoint: Any, use_ema: bool, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def from_run(path: Path, **options: Any) -> Any:
        asked.append((path, options))
        return Model()

    monkeypatch.setattr(MMLDLM, "from_run", from_run)
    parameters = {**base[key], "checkpoint": checkpoint, "use_ema": use_ema, "device": "cpu", "batch_tokens": 77}
    data = SimpleNamespace(fingerprints={"tokenizer": "a"})
    run = {"name": "run-b", "path": "runs/run-a", "checkpoint": "step-00000007"}
    nodes.load_model(run, Path("runs"), data, parameters)
    nodes.load_model({**run, "chosen": "step-00000007"}, Path("runs"), data, parameters)
    (path, options), (chosen, _) = asked
    assert path == Path("runs/run-b")
    assert chosen == Path("runs/run-b/checkpoints/step-00000007")
    expected = {"checkpoint": str(checkpoint), "use_ema": use_ema, "device": "cpu", "batch_tokens": 77}
    assert {**options, "checkpoint": str(options["checkpoint"])} == expected


@pytest.mark.parametrize("nodes", [sampling_nodes, evaluation_nodes])
@pytest.mark.parametrize(
    ("name", "what"), [("tokenizer", "vocabulary"), ("encoder", "encoder"), ("label_names", "classes")]
)
def test_a_run_of_other_data_is_refused(
    nodes: Any, name: str, what: str, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprints = {"tokenizer": "1", "encoder": "2", "latents": "3", "label_names": "5"}
    model = Model()
    model.parts = SimpleNamespace(fingerprints=fingerprints, checkpoint=Path("x"))  # type: ignore[assignment]
    monkeypatch.setattr(MMLDLM, "from_run", lambda path, **options: model)
    section = base["sampling" if nodes is sampling_nodes else "evaluation"]
    run: Any = {"name": "run-b"}
    for fitting in (fingerprints, {"tokenizer": "1", "latents": "4"}, {"tokenizer": "1", "encoder": "2"}):
        assert nodes.load_model(run, Path("runs"), SimpleNamespace(fingerprints=fitting), section) is model
    other = SimpleNamespace(fingerprints={**fingerprints, name: "other"})
    with pytest.raises(FingerprintError, match=rf"expected a run with the {what} of the dataset \(other\)"):
        nodes.load_model(run, Path("runs"), other, section)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("use_ema", [True, False])
def test_samples_are_of_the_split_that_is_named_and_name_their_weights(
    split: str, use_ema: bool, dataset: Any, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}
    checkpoint = tmp_path / "run-b" / "checkpoints" / "step-00000040"
    checkpoint.mkdir(parents=True)
    for name in ("COMPLETE", "ema.safetensors"):
        (checkpoint / name).touch()
    numbers = ("length", "log_prob", "model_calls", "encoder_calls", "cosine")
    frame = pd.DataFrame({"source": ["a"], "text": ["a"], **{name: [1] for name in numbers}})

    def invert(latents: Any, **how: Any) -> Any:
        seen["latents"] = latents
        return SimpleNamespace(
            to_frame=lambda: frame.loc[[0] * len(latents)].reset_index(), tokens=[(1,)] * len(latents), rows=None
        )

    model = Model()
    model.invert = invert  # type: ignore[attr-defined]
    model.parts = SimpleNamespace(checkpoint=checkpoint)  # type: ignore[assignment]
    parameters = {**base["sampling"], "rows": 5, "split": split, "use_ema": use_ema, "tasks": ["l2t"]}
    monkeypatch.setattr(sampling_nodes, "_table", lambda parts, columns, *more: (parts, made_by(parts, columns, *more)))
    parts, table = sampling_nodes.sample_l2t(model, dataset, parameters, 3)  # type: ignore[arg-type]
    assert splits_of(parts[0]["source"]) == {split}
    assert set(parts[0]["origin"]) == {split}
    assert len(seen["latents"]) == len(parts[0]) == 5
    held = sentences.read_sentences(dataset, sentences.rows_of_ids(dataset, parts[0]["id"].tolist()))
    np.testing.assert_array_equal(held.latents, seen["latents"])
    assert held.texts == tuple(parts[0]["source"])
    found = table.attrs["made_by"]
    expected = ("run-b", "step-00000040", "averaged" if use_ema else "last", 3)
    assert (found["run"], found["checkpoint"], found["weights"], found["seed"]) == expected
    assert (found["parameters"]["split"], found["parameters"]["use_ema"]) == (split, use_ema)


made_by = sampling_nodes._table


@pytest.mark.parametrize("split", SPLITS)
def test_captions_have_the_length_and_sampler_of_the_section_of_images(
    split: str, dataset: Any, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {}
    model = Model()
    model.images = SimpleNamespace(caption=lambda pixels, **options: how.update(options))  # type: ignore[attr-defined]
    monkeypatch.setattr(sentences, "images_of", lambda dataset, rows: None)
    monkeypatch.setattr(sampling_nodes, "_texts", lambda made, **about: how.update(about))
    monkeypatch.setattr(sampling_nodes, "_table", lambda *_: None)
    parameters = {**base["sampling"], "length": 7, "tasks": ["image_to_caption"], "split": split}
    parameters["images"] = {**parameters["images"], "length": 5, "caption": {"kind": "confidence", "steps": 3}}
    sampling_nodes.sample_images(model, dataset, parameters, 11)  # type: ignore[arg-type]
    assert (how["length"], how["seed"]) == (5, 11)
    assert splits_of(how["source"]) == {split}
    assert (how["sampler"].kind, how["sampler"].steps) == ("confidence", 3)


def test_every_node_of_the_evaluation_reads_its_own_splits(
    dataset: Any, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_ldlm.evaluation.suites import generation, inversion, latents, likelihood

    parameters = base["evaluation"]
    parameters = {**parameters, "inversion": {**parameters["inversion"], "sweep_sentences": 4, "baseline_rows": 9}}
    parameters |= {"likelihood": {**parameters["likelihood"], "sentences": 5}, "use_ema": False}
    held = sentences.held_out(dataset, count=6, seed=3)
    samples = pd.DataFrame({"id": held.ids, "text": held.texts, "latent": list(held.latents)})
    seen: dict[str, Any] = {}
    rows = pd.DataFrame({"hypothesis": ["made"] * 6, "reference": list(held.texts)})

    def memorisation(outputs: list[str], references: list[str], training: Any) -> dict[str, float]:
        seen["memorised"], seen["outputs"], seen["references"] = splits_of(training), outputs, references
        return {}

    monkeypatch.setattr(inversion, "score", lambda model, some, outputs: seen.setdefault("scored", some) and rows)
    monkeypatch.setattr(inversion, "headline", lambda rows, **_: {})
    monkeypatch.setattr(inversion, "sweep", lambda model, some, **_: seen.setdefault("swept", some) and [])
    monkeypatch.setattr(
        inversion, "baselines", lambda model, some, train, **_: seen.update(some=some, train=train) or {}
    )
    monkeypatch.setattr(inversion, "memorisation", memorisation)
    evaluation_nodes.evaluate_inversion(Model(), dataset, samples, parameters, 3)  # type: ignore[arg-type]
    assert seen["scored"].ids == seen["some"].ids == held.ids
    assert splits_of(seen["swept"]) == {"test"}
    assert len(seen["swept"]) == 4
    assert splits_of(seen["train"]) == seen["memorised"] == {"train"}
    assert (seen["outputs"], seen["references"]) == (["made"] * 6, list(held.texts))

    monkeypatch.setattr(likelihood, "evaluate", lambda model, some, **_: seen.update(scored=some) or (None, {}))
    evaluation_nodes.evaluate_likelihood(Model(), dataset, parameters, 3)  # type: ignore[arg-type]
    assert (splits_of(seen["scored"]), len(seen["scored"])) == ({"test"}, 5)

    monkeypatch.setattr(latents, "evaluate", lambda model, some, made, **more: seen.update(more, made=made, some=some))
    evaluation_nodes.evaluate_latents(Model(), dataset, samples, samples, parameters, 3)  # type: ignore[arg-type]
    assert seen["some"].ids == held.ids
    np.testing.assert_array_equal(seen["made"], held.latents)
    of_training = dataset.latents.take(dataset.rows("train"))
    np.testing.assert_array_equal(seen["distractors_md"], of_training)
    assert seen["sampler"] == parse(EvaluationConfig, parameters, at="evaluation").sts.sampler

    def generated(texts: Any, tokens: Any, **more: Any) -> None:
        seen.update(more, training=splits_of(more["training_texts"]()))

    monkeypatch.setattr(generation, "evaluate", generated)
    monkeypatch.setattr(generation, "skip_reason", lambda *_: None)
    free = pd.DataFrame({"text": ["w7"] * 4, "tokens": [[7]] * 4})
    evaluation_nodes.evaluate_generation(Model(), dataset, free, parameters, 3)  # type: ignore[arg-type]
    assert splits_of(seen["real_texts"]) == {"test"}
    assert seen["training"] == {"train"}
    assert len(seen["real_texts"]) == len(seen["real_tokens"]) == 4


@pytest.mark.parametrize("seed", [0, 5])
def test_the_normaliser_is_fitted_to_the_training_split(
    seed: int, dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(normaliser_fit, "fit", lambda store, **more: seen.update(more, store=store))
    monkeypatch.setattr(
        normaliser_fit, "calibrated", lambda fitted, found, *, rows: seen.update(calibrated=(found, rows))
    )
    store = SimpleNamespace(manifest=SimpleNamespace(meta={"encoder": {"normalised": bool(seed)}}))
    objective = {"kind": "multimodal", "mode": "mixed"}
    validation_nodes.fit_normaliser(store, dataset.index, objective, {"kind": "robust", "robust_rows": 3})  # type: ignore[arg-type]
    np.testing.assert_array_equal(seen["rows"], dataset.rows("train"))
    np.testing.assert_array_equal(seen["calibrated"][1], dataset.rows("validation"))
    assert seen["calibrated"][0] is store
    assert (seen["store"], seen["unit_norm"]) == (store, bool(seed))
    assert (seen["config"].kind, seen["config"].robust_rows) == ("robust", 3)


def test_the_nearest_training_sentence_is_a_training_sentence(dataset: Any, base: dict[str, Any]) -> None:
    from mm_ldlm.inference import editing

    place = {int(row): number for number, row in enumerate(dataset.rows("test"))}
    made = dataset.latents.take(dataset.rows("test"))
    numbers = ("length", "log_prob", "model_calls", "encoder_calls")
    frame = pd.DataFrame({"source": [None] * 9, "text": ["w9"] * 9, **{name: [1] * 9 for name in numbers}})
    model = Model()
    model.generate = lambda *_, **__: SimpleNamespace(to_frame=frame.copy, tokens=[(9,)] * 9, latents=made)  # type: ignore[attr-defined]
    model.neighbours = editing.neighbours  # type: ignore[attr-defined]
    parameters = {**base["sampling"], "rows": 0, "tasks": ["unconditional"]}
    table = sampling_nodes.sample_unconditional(model, dataset, parameters, 3)  # type: ignore[arg-type]
    assert len(place) == 9
    assert splits_of(table["neighbour"]) == {"train"}
    train = dataset.latents.take(dataset.rows("train")).astype(float)
    cosines = (made @ train.T) / np.linalg.norm(made, axis=1)[:, None] / np.linalg.norm(train, axis=1)
    np.testing.assert_allclose(table["neighbour_cosine"], cosines.max(1), rtol=1e-5)
    texts = dataset.records.take(dataset.rows("train")).column("text").to_pylist()
    assert table["neighbour"].tolist() == [texts[i] for i in cosines.argmax(1)]
