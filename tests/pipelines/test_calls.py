"""What each node hands to the room that does the work: every argument of the call, with values that occur only once.

The functions below the nodes are replaced by recorders, and no parameter has its default value.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from mm_ldlm.pipelines.comparison import nodes as comparison_nodes
from mm_ldlm.pipelines.export import nodes as export_nodes
from mm_ldlm.sampling.config import SamplingConfig

from mm_ldlm.app.tracking import mlflow
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import EvaluationError, PreflightError
from mm_ldlm.data import index as data_index
from mm_ldlm.data import sentences
from mm_ldlm.data.corpus import ingestion as corpus
from mm_ldlm.data.corpus import report as corpus_report
from mm_ldlm.data.corpus import tokens as corpus_tokens
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.latents import checks, extract, figures, normaliser_fit, token_vectors
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.store import NOT_NEEDED
from mm_ldlm.evaluation import compare, headline, run_result, sts_sets
from mm_ldlm.evaluation import samples as sampled
from mm_ldlm.evaluation.config import BootstrapConfig, EvaluationConfig
from mm_ldlm.evaluation.report import figures as report_figures
from mm_ldlm.evaluation.report import inputs as report_inputs
from mm_ldlm.evaluation.report import page as report_page
from mm_ldlm.evaluation.report import theme as report_theme
from mm_ldlm.evaluation.suites import generation, inversion, latents, likelihood, sts
from mm_ldlm.extras.own_vectors import latents as given
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.classification import labels as data_labels
from mm_ldlm.families.classification import suite as classification
from mm_ldlm.families.classification.pairs import PairwiseClassificationConfig
from mm_ldlm.families.hdlm import token_clusters
from mm_ldlm.families.images import store as image_store
from mm_ldlm.families.images import suite as images
from mm_ldlm.inference import inputs as inference_inputs
from mm_ldlm.pipelines.embedding import nodes as embedding_nodes
from mm_ldlm.pipelines.evaluation import nodes as evaluation_nodes
from mm_ldlm.pipelines.ingestion import nodes as ingestion_nodes
from mm_ldlm.pipelines.reporting import nodes as reporting_nodes
from mm_ldlm.pipelines.sampling import nodes as sampling_nodes
from mm_ldlm.pipelines.sanity import nodes as sanity_nodes
from mm_ldlm.pipelines.training import nodes as training_nodes
from mm_ldlm.pipelines.validation import nodes as validation_nodes
from mm_ldlm.training.checkpoints import folder as checkpoint_folder
from mm_ldlm.training.checkpoints import provenance
from mm_ldlm.training.checkpoints.provenance import MADE_BY
from mm_ldlm.training.checkpoints.reference import CHOSEN, run_folder, weights_folder

TEXT_ONLY = {"kind": "text_diffusion"}
HDLM = {"kind": "text_diffusion", "process": {"kind": "hdlm"}}
MULTIMODAL, CCDD = {"kind": "multimodal"}, {"kind": "ccdd"}
IMAGES = {"kind": "image_text"}
CLASSES = {"kind": "classification", "features": "trunk", "label": "topic"}
PAIRS = {"kind": "pairwise_classification", "label": "better"}
ENCODER = {"device": "cpu", "batch_tokens": 777}
DIT = {"kind": "dit", "dim": 32, "depth": 1, "heads": 2}


class Calls:
    """Functions that are recorded instead of called, by name: (positional arguments, named arguments)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.made = monkeypatch, {}  # type: ignore[var-annotated]

    def replace(self, module: Any, name: str, result: Any = None) -> None:
        """Record the calls of `module.name`, which returns `result`, or what `result` makes of the arguments."""

        @functools.wraps(getattr(module, name))
        def recorded(*given: Any, **named: Any) -> Any:
            self.made[name] = (given, named)
            return result(*given, **named) if callable(result) else result

        self.monkeypatch.setattr(module, name, recorded)

    def __getitem__(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.made[name]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


# -- ingestion, embedding, validation, training ----------------------------------------------------------------------


@pytest.mark.parametrize("dim", [None, 7])
def test_ingestion(dim: int | None, calls: Calls, tmp_path: Path) -> None:
    from mm_ldlm.data.corpus import tokenizer
    from mm_ldlm.data.store import Manifest

    calls.replace(corpus, "ingest", ("records", "quarantine", "report"))
    calls.replace(tokenizer, "load_tokenizer", "loaded")
    calls.replace(Manifest, "read", "the vectors")
    ingestion = {"sources": [{"kind": "starter", "num_train": 9}], "max_bad_fraction": 0.3}
    limits = {"max_length": 9, "reduce_vocabulary": False}
    encoder = ENCODER if dim is None else {"kind": "precomputed", "name": "mine", "dim": dim, "normalised": True}
    folders = [tmp_path / name for name in ("records", "quarantine", "vectors")]
    found = ingestion_nodes.prepare_records(ingestion, limits, encoder, 41, *folders)
    assert found == ("records", "quarantine", NOT_NEEDED if dim is None else "the vectors", "report")
    (config,), named = calls["ingest"]
    assert config == parse(IngestionConfig, ingestion, at="ingestion")
    store = named.pop("vectors")
    assert (store and (store.dim, store.workspace)) == (dim and (dim, folders[2]))
    typed = parse(TokenizerConfig, limits, at="tokenizer")
    assert named == {
        "seed": 41, "workspace": folders[0], "quarantine": folders[1], "tokenizer": "loaded", "tokens": typed,
    }  # fmt: skip
    assert calls["load_tokenizer"] == ((typed,), {})
    if dim is not None:
        assert calls["read"] == ((folders[2],), {})
    calls.replace(corpus_tokens, "build_tokenizer", "built")
    assert ingestion_nodes.make_tokenizer("records", limits) == "built"  # type: ignore[arg-type]
    assert calls["build_tokenizer"] == (("records", typed), {})
    calls.replace(corpus_tokens, "tokenize_records", "tokenized")
    for progress in (True, False):
        given = ("records", "files", {**ingestion, "progress": progress}, limits, tmp_path)
        assert ingestion_nodes.make_tokens(*given) == "tokenized"  # type: ignore[arg-type]
        assert calls["tokenize_records"] == (("records", "files", typed, tmp_path), {"progress": progress})
    calls.replace(corpus_report, "ingestion_report", "whole")
    assert ingestion_nodes.report_ingestion({"a": 1}, SimpleNamespace(manifest="m")) == "whole"  # type: ignore[arg-type]
    assert calls["ingestion_report"] == (({"a": 1}, "m"), {})


def test_embedding(calls: Calls, tmp_path: Path) -> None:
    from mm_ldlm.data.encoders import parse_encoder
    from mm_ldlm.data.latents.config import ExtractConfig

    nodes: Any = embedding_nodes
    calls.replace(extract, "extract", "extracted")
    calls.replace(given, "take_over", "taken over")
    options = {"dtype": "float16", "processes": 3}
    typed, encoder = parse(ExtractConfig, options, at="embedding"), parse_encoder(ENCODER)
    assert nodes.embed_records("records", "vectors", ENCODER, options, MULTIMODAL, tmp_path) == "extracted"
    assert calls["extract"] == (("records",), {"encoder": encoder, "config": typed, "workspace": tmp_path})
    mine = {"kind": "precomputed", "name": "mine", "dim": 5, "normalised": True}
    assert nodes.embed_records("records", "vectors", mine, options, MULTIMODAL, tmp_path) == "taken over"
    named = {"encoder": parse_encoder(mine), "config": typed, "workspace": tmp_path}
    assert calls["take_over"] == (("records", "vectors"), named)
    assert nodes.embed_records("records", "vectors", ENCODER, options, TEXT_ONLY, tmp_path) is NOT_NEEDED

    calls.replace(image_store, "store_images", "stored")
    pixels, limits = (
        {"height": 6, "width": 9, "channels": 1},
        {"sources": [{"kind": "starter"}], "images": {"max_pixels": 4321}},
    )
    assert nodes.store_images("records", pixels, limits, IMAGES, tmp_path) == "stored"
    config = parse(image_store.ImagesConfig, pixels, at="images")
    read = parse(IngestionConfig, limits, at="ingestion").images
    assert calls["store_images"] == (("records",), {"config": config, "limits": read, "workspace": tmp_path})
    assert nodes.store_images("records", pixels, limits, MULTIMODAL, tmp_path) is NOT_NEEDED

    calls.replace(token_vectors, "embed_vocabulary", "embedded")
    assert nodes.embed_vocabulary("tokenizer", ENCODER, DIT, HDLM, tmp_path) == "embedded"
    assert calls["embed_vocabulary"] == (("tokenizer",), {"encoder": encoder, "workspace": tmp_path})

    calls.replace(token_states, "embed_tokens", "states")
    states = {"threads": 3}
    given_to = ("records", "tokens", "tokenizer", ENCODER, states, CCDD, tmp_path)
    assert nodes.embed_tokens(*given_to) == "states"
    config = parse(token_states.TokenStatesConfig, states, at="token_states")
    named = {"encoder": encoder, "config": config, "workspace": tmp_path}
    assert calls["embed_tokens"] == (("records", "tokens", "tokenizer"), named)
    assert nodes.embed_tokens(*given_to[:5], MULTIMODAL, tmp_path) is NOT_NEEDED


def test_validation(calls: Calls, tmp_path: Path) -> None:
    from mm_ldlm.data.encoders import parse_encoder
    from mm_ldlm.data.latents.config import ValidationConfig

    nodes: Any = validation_nodes
    outcome = SimpleNamespace(report="report", failing={"id": "zero"}, statistics="statistics")
    with_labels = SimpleNamespace(report="labelled", failing={"id": "no_label"}, statistics="with labels")
    calls.replace(checks, "validate", outcome)
    calls.replace(data_index, "write_quarantine", "quarantine")
    calls.replace(data_labels, "read_labels", "labels")
    calls.replace(data_labels, "with_labels", with_labels)
    calls.replace(sts_sets, "load_sts", lambda source, *, seed: SimpleNamespace(sentences=(source.name, seed)))
    for name in ("norm_histogram", "spectrum", "length_histogram", "neighbour_cosine"):
        calls.replace(figures, name, lambda given, name=name: (name, given))
    lengths = np.array([3, 5])
    tokens = SimpleNamespace(ints=lambda name: {"length": _Column(lengths)}[name])
    evaluation = {"sts": {"sets": [{"format": "starter", "name": "a"}], "files": {"b": "b.csv"}}}
    validation = {"spot_rows": 17, "norm_tolerance": 0.25}
    given_to = [
        "records", tokens, "latents", "images", "tokenizer", ENCODER, {"processes": 3}, validation, MULTIMODAL,
        evaluation, 41, tmp_path,
    ]  # fmt: skip
    found = nodes.validate_data(*given_to)
    _, named = calls["validate"]
    assert named == {
        "records": "records", "tokens": tokens, "latents": "latents", "images": None, "tokenizer": "tokenizer",
        "encoder": parse_encoder(ENCODER), "extraction": parse(ExtractConfig, {"processes": 3}, at="embedding"),
        "config": parse(ValidationConfig, validation, at="validation"),
        "evaluation_sets": {"a": ("a", 41), "b": ("b", 41)}, "seed": 41,
    }  # fmt: skip
    assert calls["write_quarantine"] == (("records", {"id": "zero"}, tmp_path), {})
    assert found == {
        "report": "report", "quarantine": "quarantine", "norms": ("norm_histogram", "statistics"),
        "spectrum": ("spectrum", "statistics"), "lengths": ("length_histogram", lengths),
        "neighbours": ("neighbour_cosine", "statistics"),
    }  # fmt: skip
    assert "read_labels" not in calls.made
    given_to[8] = CLASSES
    assert nodes.validate_data(*given_to)["report"] == "labelled"
    assert calls["read_labels"] == (("records",), {"key": "topic", "answers": None})
    assert calls["with_labels"] == ((outcome, "labels"), {"key": "topic"})
    assert calls["write_quarantine"][0][1] == {"id": "no_label"}
    given_to[8] = IMAGES
    nodes.validate_data(*given_to)
    assert (calls["validate"][1]["latents"], calls["validate"][1]["images"]) == (None, "images")


class _Column:
    def __init__(self, values: Any) -> None:
        self.values = values

    def take(self, rows: Any) -> Any:
        return self.values[rows] if rows != slice(None) else self.values


def test_the_stores_of_validation(calls: Calls, tmp_path: Path) -> None:
    from mm_ldlm.data.latents import findings
    from mm_ldlm.data.latents.config import TokenClustersConfig

    nodes: Any = validation_nodes
    calls.replace(findings, "enforce")
    calls.replace(data_index, "write_index", "index")
    stores = ("records", "tokens", "latents", "quarantine")
    assert nodes.index_valid_examples({"r": 1}, *stores, MULTIMODAL, tmp_path) == "index"
    assert calls["enforce"] == (({"r": 1},), {})
    assert calls["write_index"] == ((*stores, tmp_path), {})
    nodes.index_valid_examples({"r": 1}, *stores, TEXT_ONLY, tmp_path)
    assert calls["write_index"][0][2] is None, "latents that another configuration left"

    calls.replace(normaliser_fit, "fit", "fitted")
    calls.replace(data_index, "split_column", lambda index, split, column: np.array({"train": [1, 2]}[split]))
    pixels = {"kind": "one_scale"}
    assert nodes.fit_image_normaliser("images", "index", IMAGES, pixels) == "fitted"
    (store,), named = calls["fit"]
    assert (store, named["rows"].tolist(), named["config"].kind, named["unit_norm"]) == (
        "images", [1, 2], "one_scale", False
    )  # fmt: skip
    assert calls["split_column"] == (("index", "train", "row"), {})
    assert nodes.fit_image_normaliser("images", "index", MULTIMODAL, pixels) is NOT_NEEDED
    tokens = SimpleNamespace(ints=lambda name: _Column(np.array([2, 3, 1, 4])))
    assert nodes.fit_state_normaliser("states", tokens, "index", CCDD) == "fitted"
    (store,), named = calls["fit"]
    assert (store, named["rows"].tolist(), named["config"].kind, named["unit_norm"], named["column"]) == (
        "states", [2, 3, 4, 5], "standard", False, "state"
    )  # fmt: skip

    calls.replace(token_clusters, "cluster_vocabulary", "clusters")
    assert nodes.cluster_vocabulary("tokenizer", "vectors", HDLM, {"count": 11}, 41, tmp_path) == "clusters"
    config = parse(TokenClustersConfig, {"count": 11}, at="token_clusters")
    assert calls["cluster_vocabulary"] == (
        ("tokenizer", "vectors"), {"config": config, "seed": 41, "workspace": tmp_path}
    )  # fmt: skip
    assert nodes.cluster_vocabulary("tokenizer", "vectors", TEXT_ONLY, {}, 41, tmp_path) is NOT_NEEDED

    calls.replace(data_labels, "read_labels", "labels")
    for name in ("write_labels", "write_label_names", "write_pair_tokens"):
        calls.replace(data_labels, name, name)
    folders = [tmp_path / name for name in nodes.LABEL_STORES]
    for objective, key, pairs in ((CLASSES, "topic", NOT_NEEDED), (PAIRS, "better", "write_pair_tokens")):
        found = nodes.index_labels("records", "index", "tokenizer", objective, *folders)
        assert found == {"labels": "write_labels", "label_names": "write_label_names", "pair_tokens": pairs}
        assert calls["read_labels"][0] == ("records",)
        answers = PairwiseClassificationConfig.answers if objective is PAIRS else None
        assert calls["read_labels"][1] == {"key": key, "answers": answers}
        assert calls["write_labels"] == (("records", "index", "labels", folders[0]), {"key": key})
        assert calls["write_label_names"] == (("labels", folders[1]), {})
    assert calls["write_pair_tokens"] == (("records", "tokenizer", folders[2]), {})
    none = nodes.index_labels("records", "index", "tokenizer", TEXT_ONLY, *folders)
    assert none == dict.fromkeys(nodes.LABEL_STORES, NOT_NEEDED)


@pytest.mark.parametrize("needed", [("labels",), ("label_names",), ("pair_tokens",), ("labels", "pair_tokens"), ()])
def test_each_store_of_labels_is_written_where_it_is_needed(
    needed: tuple[str, ...], calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: Any = validation_nodes
    monkeypatch.setattr(nodes, "fields_of", lambda objective: needed[:1])
    monkeypatch.setattr(nodes, "stores_of_objective", lambda objective: needed[1:])
    calls.replace(data_labels, "read_labels", "read")
    for name in nodes.LABEL_STORES:
        calls.replace(data_labels, f"write_{name}", f"the {name}")
    folders = [tmp_path / name for name in nodes.LABEL_STORES]
    found = nodes.index_labels("records", "index", "tokenizer", CLASSES, *folders)
    assert found == {name: f"the {name}" if name in needed else NOT_NEEDED for name in nodes.LABEL_STORES}
    assert ("read_labels" in calls.made) is bool(needed)


ALWAYS = ("records", "tokens", "index", "tokenizer")


@pytest.mark.parametrize(
    ("objective", "model", "more"),
    [
        (TEXT_ONLY, DIT, ()),
        (MULTIMODAL, {"kind": "mmdit"}, ("latents", "normaliser")),
        (MULTIMODAL, {"kind": "mmdit", "token_vectors": "encoder"}, ("latents", "normaliser", "token_vectors")),
        (IMAGES, {"kind": "image_mmdit"}, ("images", "image_normaliser")),
        (CCDD, {"kind": "ccdd"}, ("token_states", "state_normaliser")),
        (HDLM, DIT, ("token_clusters",)),
        (CLASSES, DIT, ("labels", "label_names")),
        (PAIRS, DIT, ("labels", "label_names", "pair_tokens")),
    ],
)
def test_a_dataset_has_each_store_under_its_own_name(objective: Any, model: Any, more: tuple[str, ...]) -> None:
    names = (
        *ALWAYS, "latents", "normaliser", "images", "image_normaliser", "token_vectors", "token_clusters",
        "token_states", "state_normaliser", "labels", "label_names", "pair_tokens",
    )  # fmt: skip
    stores = {name: f"the {name}" for name in names}
    found = validation_nodes.commit_dataset(**stores, objective=objective, model=model)  # type: ignore[arg-type]
    assert {name: store for name, store in found.items() if store is not None} == {
        name: stores[name] for name in (*ALWAYS, *more)
    }


def test_training_and_sanity(calls: Calls, tmp_path: Path) -> None:
    from mm_ldlm.training import plan as planning
    from mm_ldlm.training import sanity, session
    from mm_ldlm.training.preflight import Check

    calls.replace(planning, "plan", SimpleNamespace(to_dict=lambda: {"spec": 1}))
    named: dict[str, Any] = {
        "runs": tmp_path, "model": {"m": 1}, "objective": {"o": 1}, "training": {"t": 1}, "encoder": {"e": 1},
        "seed": 41, "tracking": {"run_id": "r"},
    }  # fmt: skip
    assert training_nodes.plan_training("data", *named.values()) == {"spec": 1}  # type: ignore[arg-type]
    assert calls["plan"] == (("data",), named)
    calls.replace(session, "run_session", {"name": "run"})
    assert training_nodes.run_training({"spec": 1}, tmp_path) == {"name": "run"}
    assert calls["run_session"] == (({"spec": 1}, tmp_path), {})

    checked = [Check("good", "found"), Check("bad", "less", "get more")]
    calls.replace(sanity, "check_sanity", checked)
    del named["tracking"]
    report = sanity_nodes.check_configuration("data", *named.values(), {"max_steps": 7})  # type: ignore[arg-type]
    assert calls["plan"] == (("data",), {**named, "tracking": {}})
    config = parse(sanity.SanityConfig, {"max_steps": 7}, at="sanity")
    assert calls["check_sanity"][1] == {"root": tmp_path, "config": config}
    assert [(line["name"], line["found"], line["remedy"]) for line in report] == [
        ("good", "found", checked[0].remedy), ("bad", "less", "get more")
    ]  # fmt: skip
    sanity_nodes.judge_configuration(report[:1])
    with pytest.raises(PreflightError, match=r"1 sanity checks .* failed"):
        sanity_nodes.judge_configuration(report)


@pytest.mark.parametrize(("path", "latents"), [(None, "latents"), ("elsewhere", None)])
def test_export(path: str | None, latents: Any, calls: Calls, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    from mm_ldlm.extras.layout import export as layout

    calls.replace(layout, "write_layout", {"train": 3, "test": 1})
    found = export_nodes.export_layout("records", latents, "tokenizer", {"path": path}, tmp_path)  # type: ignore[arg-type]
    place = Path(path) if path else tmp_path
    assert found == {"path": str(place), "rows": {"train": 3, "test": 1}, "latents": latents is not None}
    assert calls["write_layout"] == ((place, "records"), {"tokenizer": "tokenizer", "latents": latents})
    with_latents = "without" if latents is None else "with"
    assert caplog.messages == [f"exported 4 rows {with_latents} latents to {place}: 3 train, 1 test"]


# -- sampling --------------------------------------------------------------------------------------------------------

SAMPLING: dict[str, Any] = {
    "rows": 3, "split": "validation", "length": 7, "neighbours": True,
    "text": {"kind": "confidence", "steps": 11}, "latent": {"kind": "ddim", "steps": 13},
    "search": {"candidates": 5, "rounds": 2},
    "l2t": {"samples": 3, "keep": "all", "texts": ["a b"], "files": ["mine.npy"]},
    "t2l": {"files": ["mine.txt"], "texts": ["c"]},
    "unconditional": {"count": 4, "order": "latent_first", "length": 9, "text": {"kind": "ancestral", "steps": 17},
                      "latent": {"kind": "ddim", "steps": 19}},
    "infill": {"texts": ["x [MASK]"], "latents_of": ["x y"]},
    "edit": {"sources": ["p", "q"], "targets": ["r"], "strength": 0.3, "which": "random"},
    "interpolate": {"starts": ["s"], "ends": ["t"], "steps": 3, "path": "lerp"},
    "images": {"image": {"kind": "ddim", "steps": 23}, "caption": {"kind": "confidence", "steps": 29}, "length": 5,
               "joint_count": 6, "joint_steps": 31},
}  # fmt: skip
TYPED: SamplingConfig = parse(SamplingConfig, SAMPLING, at="sampling")


class Held(SimpleNamespace):
    """Three sentences, whose latents are not of unit norm."""

    def __len__(self) -> int:
        return len(self.ids)


HELD = Held(
    ids=("i0", "i1", "i2"), texts=("t0", "t1", "t2"), tokens=((1,), (2,), (3,)),
    latents=np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]),
)  # fmt: skip
NUMBERS = ("length", "log_prob", "model_calls", "encoder_calls", "cosine")


class Made:
    """A result of as many rows as were asked for."""

    def __init__(self, rows: int) -> None:
        self.tokens, self.rows, self.count = [(place,) for place in range(rows)], None, rows
        self.latents = np.arange(2.0 * rows).reshape(rows, 2) + np.array([[1.0, 0.0]])
        self.pairs, self.fractions, self.written = list(range(rows)), [0.25] * rows, self

    def to_frame(self) -> pd.DataFrame:
        columns = {"source": "s", "text": "t", **dict.fromkeys(NUMBERS, 1), "image": 0}
        return pd.DataFrame({name: [value] * self.count for name, value in columns.items()})


class Recording:
    """A model that records how its methods are called."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.parts, self.no_encoder, self.images = None, None, self
        self.capabilities = SimpleNamespace(refuse_task=lambda *_, **__: None)

    def __getattr__(self, name: str) -> Any:
        def method(*given: Any, **named: Any) -> Any:
            self.made.append((name, given, named))
            count = given[0] if isinstance(given[0], int) else 2 if isinstance(given[0], Path) else len(given[0])
            return Made(count)

        return method


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setattr(sentences, "held_out", lambda data, *, count, seed, split: _held(count, seed, split))
    monkeypatch.setattr(sentences, "read_sentences", lambda data, rows: HELD)
    monkeypatch.setattr(sentences, "images_of", lambda data, rows: np.zeros((3, 2, 2, 1)) + 0.5)
    monkeypatch.setattr(sentences, "split_rows", lambda data, split: np.arange(9) + 100 * (split == "train"))
    monkeypatch.setattr(sentences, "sample_rows", lambda rows, count, *, seed: (rows[:3], seen.update(count=count))[0])
    monkeypatch.setattr(inference_inputs, "read_texts", lambda file: [f"of {file}", "second"])
    seen: dict[str, Any] = {}
    return Recording()


def _held(count: int, seed: int, split: str) -> Any:
    assert (count, seed, split) == (3, 41, "validation")
    return HELD


def test_inversion_and_embedding_of_held_out_and_given_inputs(recording: Recording) -> None:
    table = sampling_nodes.sample_l2t(recording, None, SAMPLING, 41)  # type: ignore[arg-type]
    how = {
        "sampler": TYPED.text, "length": 7, "search": TYPED.search, "reembed": True, "seed": 41, "samples": 3,
        "keep": "all",
    }  # fmt: skip
    assert [(name, named) for name, _, named in recording.made] == [("invert", how)] * 3
    given_to = [given[0] for _, given, _ in recording.made]
    assert (given_to[0] is HELD.latents, given_to[1], given_to[2]) == (True, Path("mine.npy"), ["a b"])
    assert table["origin"].tolist() == ["validation"] * 3 + ["mine.npy"] * 2 + ["texts"]
    assert table["id"].tolist()[:3] == list(HELD.ids)
    assert table["source"].tolist()[:3] == list(HELD.texts)
    assert table["id"].isna().tolist() == [False] * 3 + [True] * 3
    assert (table["sample"].tolist(), table["best"].all()) == ([0] * 6, True)
    recording.made.clear()
    recording.no_encoder = "the service is gone"
    sampling_nodes.sample_l2t(recording, None, SAMPLING, 41)  # type: ignore[arg-type]
    assert all((named["search"], named["reembed"]) == (None, False) for _, _, named in recording.made)

    recording.made.clear()
    table = sampling_nodes.sample_t2l(recording, None, SAMPLING, 41)  # type: ignore[arg-type]
    assert recording.made == [
        ("embed_tokens", (HELD.tokens, HELD.texts), {"sampler": TYPED.latent, "seed": 41}),
        ("embed", (["of mine.txt", "second"],), {"sampler": TYPED.latent, "seed": 41}),
        ("embed", (["c"],), {"sampler": TYPED.latent, "seed": 41}),
    ]
    assert table["origin"].tolist() == ["validation"] * 3 + ["mine.txt"] * 2 + ["texts"]
    assert table["id"].tolist()[:3] == list(HELD.ids)
    made = Made(3).latents
    cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(made, HELD.latents, strict=True)]
    np.testing.assert_allclose(table["cosine"].tolist()[:3], cosines)


def test_without_held_out_rows_only_the_given_texts_are_embedded(recording: Recording) -> None:
    given = {**SAMPLING, "rows": 0, "t2l": {"texts": ["c", "d"]}}
    table = sampling_nodes.sample_t2l(recording, None, given, 41)  # type: ignore[arg-type]
    assert [(name, arguments) for name, arguments, _ in recording.made] == [("embed", (["c", "d"],))]
    assert table["origin"].tolist() == ["texts", "texts"]


def test_texts_from_noise(recording: Recording) -> None:
    chosen = {**SAMPLING, "neighbours": False}
    table = sampling_nodes.sample_unconditional(recording, None, chosen, 41)  # type: ignore[arg-type]
    own = TYPED.unconditional
    named = {"order": "latent_first", "sampler": own.text, "latent_sampler": own.latent, "length": 9, "seed": 41}
    assert recording.made == [("generate", (4,), named)]
    assert np.array_equal(np.stack(table["latent"]), Made(4).latents)
    assert table["neighbour"].isna().all()


def test_infilling_editing_and_interpolation(recording: Recording) -> None:
    filled, edited, between = sampling_nodes.edit_texts(recording, SAMPLING, 41)  # type: ignore[arg-type]
    names = [name for name, _, _ in recording.made]
    assert names == ["encode", "infill", "edit", "interpolate"]
    (_, encoded, _), (_, texts, infill), (_, sources, edit), (_, ends, path) = recording.made
    assert (encoded, texts, sources, ends) == ((["x y"],), (["x [MASK]"],), (["p", "q"],), (["s"], ["t"]))
    assert isinstance(infill.pop("latents"), Made)
    assert infill == {"sampler": TYPED.text, "seed": 41}
    assert edit == {
        "targets": ["r"], "strength": 0.3, "which": "random", "sampler": TYPED.text, "reembed": True, "seed": 41,
    }  # fmt: skip
    assert path == {
        "steps": 3, "path": "lerp", "sampler": TYPED.text, "length": 7, "reembed": True, "seed": 41
    }  # fmt: skip
    assert filled["latent_of"].tolist() == ["x y"]
    assert (edited["target"].tolist(), edited["strength"].tolist()) == (["r", "r"], [0.3, 0.3])
    assert (between["pair"].tolist(), between["fraction"].tolist()) == ([0], [0.25])
    recording.made.clear()
    each = {**SAMPLING["edit"], "targets": ["r", "u"]}
    _, edited, _ = sampling_nodes.edit_texts(recording, {**SAMPLING, "edit": each}, 41)  # type: ignore[arg-type]
    assert edited["target"].tolist() == ["r", "u"], "a target for each source"
    recording.made.clear()
    sampling_nodes.edit_texts(recording, {**SAMPLING, "infill": {"texts": ["x [MASK]"]}}, 41)  # type: ignore[arg-type]
    assert recording.made[0][0] == "infill"
    assert recording.made[0][2]["latents"] is None


def test_images_and_captions(recording: Recording) -> None:
    drawn, written, both = sampling_nodes.sample_images(recording, None, SAMPLING, 41)  # type: ignore[arg-type]
    own = TYPED.images
    (draw, given, named), (caption, pixels, how), (together, count, rest) = recording.made
    assert (draw, given, named) == ("draw_tokens", (HELD.tokens, HELD.texts), {"sampler": own.image, "seed": 41})
    assert (caption, pixels[0].shape, how) == (
        "caption", (3, 2, 2, 1), {"sampler": own.caption, "length": 5, "seed": 41}
    )  # fmt: skip
    assert (together, count, rest) == ("generate", (6,), {"steps": 31, "seed": 41})
    for table in (drawn, written):
        assert (table["id"].tolist(), table["source"].tolist()) == (list(HELD.ids), list(HELD.texts))
    assert (len(drawn), len(written), len(both)) == (3, 3, 6)
    assert [list(table.columns) for table in (drawn, written, both)] == [
        list(columns)
        for columns in (sampling_nodes.DRAWN_COLUMNS, sampling_nodes.CAPTION_COLUMNS, sampling_nodes.JOINT_COLUMNS)
    ]


@pytest.mark.parametrize(
    ("node", "tasks"),
    [("sample_l2t", ["l2t"]), ("sample_t2l", ["t2l"]), ("sample_unconditional", ["unconditional"]),
     ("edit_texts", ["infill", "edit", "interpolate"]),
     ("sample_images", ["caption_to_image", "image_to_caption", "image_text"])],
)  # fmt: skip
def test_each_task_is_refused_and_requested_by_its_own_name(node: str, tasks: list[str], recording: Recording) -> None:
    asked: list[Any] = []

    def refuse(use: Any, *, order: str, length: Any) -> str:
        asked.append((use, order, length))
        return "no"

    recording.capabilities = SimpleNamespace(refuse_task=refuse, reads_images=False)
    given_to = [recording, SAMPLING, 41] if node == "edit_texts" else [recording, None, SAMPLING, 41]
    found = getattr(sampling_nodes, node)(*given_to)
    lengths = {"l2t": 7, "interpolate": 7, "unconditional": 9, "image_to_caption": 5, "image_text": "sample"}
    uses = {"infill": "infill_given_latent"}
    assert asked == [(uses.get(task, task), "latent_first", lengths.get(task)) for task in tasks]
    assert all(len(table) == 0 for table in (found if isinstance(found, tuple) else (found,)))
    assert recording.made == []


# -- evaluation ------------------------------------------------------------------------------------------------------

EVALUATION: dict[str, Any] = {
    "progress": False, "bootstrap": {"replicates": 77, "level": 0.9},
    "inversion": {"sweep": [{"label": "a", "sampler": {"kind": "confidence", "steps": 3}}], "sweep_sentences": 2,
                  "baseline_rows": 0},
    "sts": {"files": {"b": "b.csv"}, "sampler": {"kind": "ddim", "steps": 3}},
    "likelihood": {"sentences": 4, "draws": 3}, "generation": {"self_bleu_texts": 9},
    "latents": {"candidates": 30, "neighbourhood_sentences": 8},
    "classification": {"split": "validation", "bins": 4}, "images": {"pictures": 2},
}  # fmt: skip
CONFIG: EvaluationConfig = parse(EvaluationConfig, EVALUATION, at="evaluation")
MODEL = SimpleNamespace(
    parts=None, tokenizer="tokenizer", device="cuda:3", no_encoder=None,
    capabilities=SimpleNamespace(refusal=lambda use: None),
)  # fmt: skip


def test_every_suite_gets_its_own_parameters(calls: Calls) -> None:
    nodes: Any = evaluation_nodes
    assert CONFIG.bootstrap == BootstrapConfig(replicates=77, level=0.9)
    calls.replace(sts, "evaluate", "sts")
    assert nodes.evaluate_sts(MODEL, EVALUATION, 41) == "sts"
    how = {"config": CONFIG.sts, "bootstrap": CONFIG.bootstrap, "seed": 41, "progress": False}
    assert calls["evaluate"] == ((MODEL,), how)

    calls.replace(sentences, "held_out", "held")
    calls.replace(likelihood, "evaluate", ("rows", "metrics"))
    assert nodes.evaluate_likelihood(MODEL, "data", EVALUATION, 41) == ("rows", "metrics")
    assert calls["held_out"] == (("data",), {"count": 4, "seed": 41})
    assert calls["evaluate"] == ((MODEL, "held"), {"config": CONFIG.likelihood, "seed": 41})

    calls.replace(classification, "evaluate", "classes")
    assert nodes.evaluate_classification(MODEL, "data", EVALUATION, 41) == "classes"
    named = {"config": CONFIG.classification, "bootstrap": CONFIG.bootstrap, "seed": 41}
    assert calls["evaluate"] == ((MODEL, "data"), named)

    calls.replace(images, "evaluate", "images")
    calls.replace(images, "skip_reason")
    assert nodes.evaluate_images(MODEL, "data", "drawn", "written", "both", EVALUATION, 41) == "images"
    assert calls["skip_reason"] == ((MODEL, ("drawn", "written", "both")), {})
    tables = {"drawn": "drawn", "written": "written", "both": "both"}
    named = {"config": CONFIG.images, "bootstrap": CONFIG.bootstrap, "seed": 41}
    assert calls["evaluate"] == (("data",), {**tables, **named})


def test_the_suites_of_samples(calls: Calls) -> None:
    nodes: Any = evaluation_nodes
    held = Held(some=lambda count, *, seed: [("part", count, seed)], ids="abc", texts=("a", "b"), tokens=((1,), (2,)))
    calls.replace(sampled, "without_truth")
    calls.replace(sampled, "of_samples", (held, "outputs"))
    rows = pd.DataFrame({"hypothesis": ["h"], "reference": ["r"]})
    for name, result in {
        "score": rows, "headline": {"head": 1}, "sweep": "swept", "memorisation": "memory", "baselines": "never",
    }.items():  # fmt: skip
        calls.replace(inversion, name, result)
    calls.replace(sentences, "texts_of_split", "training texts")
    found_rows, metrics = nodes.evaluate_inversion(MODEL, "data", "samples", EVALUATION, 41)
    assert found_rows is rows
    assert metrics == {"head": 1, "sweep_sentences": 1, "sweep": "swept", "memorised": "memory"}, "no baselines with 0"
    options = {"bootstrap": CONFIG.bootstrap, "seed": 41}
    assert calls["of_samples"] == (("samples",), {"dataset": "data"})
    assert calls["score"] == ((MODEL, held, "outputs"), {})
    assert calls["headline"] == ((rows,), {"config": CONFIG.inversion, **options})
    how = {"config": CONFIG.inversion, "progress": False, **options}
    assert calls["sweep"] == ((MODEL, [("part", 2, 41)]), how)
    assert calls["memorisation"] == ((["h"], ["r"], "training texts"), {})
    assert calls["texts_of_split"] == (("data", "train"), {})
    assert "baselines" not in calls.made

    calls.replace(sampled, "of_samples", (held, "generated"))
    calls.replace(sampled, "required_vectors", "made vectors")
    calls.replace(sampled, "vectors", "free vectors")
    calls.replace(sentences, "split_rows", "training rows")
    calls.replace(sentences, "sample_rows", "some rows")
    calls.replace(sentences, "latents_of", "distractors")
    calls.replace(latents, "evaluate", "latents")
    assert nodes.evaluate_latents(MODEL, "data", "t2l", "free", EVALUATION, 41) == "latents"
    assert calls["split_rows"] == (("data", "train"), {})
    assert calls["sample_rows"] == (("training rows", 27), {"seed": 41}), "with the sentences, 30 candidates"
    assert calls["required_vectors"] == (("generated",), {})
    assert calls["vectors"] == (("free",), {})
    (model, some, made), named = calls["evaluate"]
    assert (model, len(some), made) == (MODEL, 3, "made vectors")
    assert named == {
        "distractors_md": "distractors", "unconditional_nd": "free vectors", "sampler": CONFIG.sts.sampler,
        "config": CONFIG.latents, **options,
    }  # fmt: skip
    few = {**EVALUATION, "latents": {"candidates": 3}}
    nodes.evaluate_latents(MODEL, "data", "t2l", "free", few, 41)
    assert calls["sample_rows"][0] == ("training rows", 2), "two distractors at least"

    free = pd.DataFrame({"text": ["a", "b"]})
    calls.replace(generation, "skip_reason")
    calls.replace(generation, "evaluate", "generation")
    calls.replace(sampled, "token_rows", "token rows")
    calls.replace(sentences, "held_out", held)
    assert nodes.evaluate_generation(MODEL, "data", free, EVALUATION, 41) == "generation"
    assert calls["held_out"] == (("data",), {"count": 2, "seed": 41})
    assert calls["token_rows"][0][1] == "tokenizer"
    given_to, named = calls["evaluate"]
    assert given_to == (["a", "b"], "token rows")
    assert named.pop("training_texts")() == "training texts"
    assert named == {
        "real_texts": held.texts, "real_tokens": held.tokens, "config": CONFIG.generation, "device": "cuda:3", **options
    }  # fmt: skip


# -- comparison ------------------------------------------------------------------------------------------------------


def test_an_inversion_without_an_encoder_names_what_it_leaves_out(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    nodes: Any = evaluation_nodes
    held = Held(some=lambda count, *, seed: ["one", "two"], ids="abc", texts=("a",), tokens=((1,),))
    calls.replace(sampled, "without_truth")
    calls.replace(sampled, "of_samples", (held, "outputs"))
    rows = pd.DataFrame({"hypothesis": ["h"], "reference": ["r"]})
    for name, result in {"score": rows, "headline": {}, "sweep": "swept", "memorisation": "memory"}.items():
        calls.replace(inversion, name, result)
    calls.replace(sentences, "texts_of_split", "training texts")
    calls.replace(inversion, "no_encoder", "the service is gone")
    calls.replace(inversion, "without_encoder", [CONFIG.inversion.sweep[0]])
    _, metrics = nodes.evaluate_inversion(MODEL, "data", "samples", EVALUATION, 41)
    words = "cosines of re-embedded texts, the point 'a': the service is gone"
    assert metrics == {"sweep_sentences": 2, "left_out": [words], "sweep": "swept", "memorised": "memory"}
    assert calls["without_encoder"] == ((MODEL, CONFIG.inversion), {})
    assert f"left out of the inversion: {words}" in caplog.messages


def test_comparison(calls: Calls, tmp_path: Path) -> None:
    from mm_ldlm.evaluation.report import comparison_page
    from mm_ldlm.extras.comparison import results, sessions
    from mm_ldlm.extras.comparison.config import ComparisonConfig

    nodes: Any = comparison_nodes
    plan = {"project": "/p", "conf_source": "conf", "reports": "/r"}
    comparison = {"members": [{"name": "a", "env": "x"}], "jobs": 3, "seeds": [5]}
    outcome = {"member": "a", "seed": 5, "status": "finished", "reason": "", "seconds": 2.0}
    calls.replace(sessions, "from_plan", ["session"])
    calls.replace(sessions, "run_sessions", [SimpleNamespace(to_dict=lambda: outcome)])
    assert nodes.run_members(plan, tmp_path, comparison, {"run_id": "parent"}) == [outcome]
    named = {"jobs": 3, "parent_run": "parent", "project": Path("/p"), "conf_source": "conf"}
    assert calls["run_sessions"] == ((["session"],), named)

    fields = {field: outcome.get(field) for field in sessions.Outcome.__dataclass_fields__}
    calls.replace(results, "collect", {"results": 1})
    calls.replace(results, "table", "table")
    assert nodes.collect_results(plan, [fields], comparison, EVALUATION, 41) == ({"results": 1}, "table")
    (some, outcomes), named = calls["collect"]
    assert (some, outcomes) == (["session"], [sessions.Outcome(**fields)])
    typed = parse(ComparisonConfig, comparison, at="comparison")
    assert named == {"config": typed, "bootstrap": CONFIG.bootstrap, "seed": 41, "beside": Path("/r")}

    drawn = {"scores": "S", "curves": "C", "differences": "D"}
    calls.replace(comparison_page, "figures", drawn)
    calls.replace(comparison_page, "render", "page")
    found = nodes.report_members({"results": 1}, {"title": "T", "smoothing": 0.3})
    assert calls["figures"] == (({"results": 1},), {"smoothing": 0.3})
    assert calls["render"][1]["title"] == "T"
    plots = {"plot_members_scores": "S", "plot_members_curves": "C", "plot_members_differences": "D"}
    assert calls["render"][0] == ({"results": 1}, plots)
    assert found == {"comparison_report": "page", **plots}


# -- reporting ---------------------------------------------------------------------------------------------------------

SUITES = ("inversion", "sts", "likelihood", "latents", "generation", "classification", "images")


def made_by(**more: Any) -> dict[str, Any]:
    return {MADE_BY: WEIGHTS, **more}


def table(name: str, weights: Any = None) -> pd.DataFrame:
    found = pd.DataFrame({"id": [name]})
    found.attrs = {MADE_BY: weights or WEIGHTS}
    return found


WEIGHTS = {"run": "x", "checkpoint": "step-00000004", "digest": "1a", "weights": "averaged"}
OTHERS = {**WEIGHTS, "digest": "2b"}
REPORTING = {"title": "Of a test", "examples": 7, "smoothing": 0.7, "compare": ["runs/other", "mlflow:abc"]}
EVALUATED = {"bootstrap": {"replicates": 123, "level": 0.8}, "use_ema": False, "checkpoint": "best"}


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The weights that the evaluation reads, by what they were asked for with."""
    asked: dict[str, Any] = {}

    def find(folder: Path, *, which: str) -> str:
        asked["find"] = (folder, which)
        return "the checkpoint"

    def weights_of(checkpoint: Any, *, use_ema: bool) -> dict[str, Any]:
        asked["weights_of"] = (checkpoint, use_ema)
        return WEIGHTS

    monkeypatch.setattr(checkpoint_folder, "find", find)
    monkeypatch.setattr(provenance, "weights_of", weights_of)
    return asked


def test_the_metrics_are_those_of_every_suite_and_of_the_runs_own_times(
    calls: Calls, weights: dict[str, Any], tmp_path: Path
) -> None:
    calls.replace(headline, "flat_metrics", {"a number": 1.5})
    calls.replace(report_inputs, "own_timings", {"training": 61.0})
    suites = {name: made_by(of=name) for name in SUITES}
    run = {"name": "x"}

    def collect(**changes: Any) -> dict[str, Any]:
        return reporting_nodes.collect_metrics(
            **{**suites, **changes}, timings={"sampling": 2.0}, run=run, runs=tmp_path, evaluation=EVALUATED
        )

    assert collect() == {"a number": 1.5, MADE_BY: WEIGHTS}
    assert calls["flat_metrics"][1] == {**suites, "timings": {"training": 61.0}}
    assert calls["own_timings"][0] == (run_folder(tmp_path, run), {"sampling": 2.0})
    assert weights["find"] == (weights_folder(tmp_path, run), "best")
    assert weights["weights_of"] == ("the checkpoint", False)
    run = {"name": "x", CHOSEN: "step-00000005"}
    assert collect() == {"a number": 1.5, MADE_BY: WEIGHTS}
    assert weights["find"] == (run_folder(tmp_path, run) / "checkpoints" / "step-00000005", "best")
    assert calls["own_timings"][0][0] == run_folder(tmp_path, run)
    for name in SUITES:
        with pytest.raises(EvaluationError, match=f"metrics_{name}"):
            collect(**{name: {MADE_BY: OTHERS}})
    for checkpoint, which in (("step-00000500", "00000500"), (500, "500"), ("latest", "latest")):
        reporting_nodes._weights(tmp_path, {**EVALUATED, "checkpoint": checkpoint})
        assert weights["find"] == (tmp_path, which)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("uri", ["sqlite:///x", None])
def test_a_run_is_compared_with_the_named_runs_and_kept_unless_it_was_chosen(
    chosen: bool, uri: str | None, calls: Calls, tmp_path: Path
) -> None:
    calls.replace(run_result, "keep")
    calls.replace(compare, "compare", {"table": []})
    calls.replace(mlflow, "read_metrics", lambda uri, run_id: {uri: run_id})
    loaded: list[Any] = []

    def load(reference: str, *, from_tracking: Any) -> str:
        loaded.append((reference, from_tracking("an id")))
        return f"result of {reference}"

    calls.replace(run_result, "load_result", load)
    run: dict[str, Any] = {"name": "x"} | ({CHOSEN: "a/path"} if chosen else {})
    inversion, likelihood = table("inversion"), table("likelihood")
    arguments: dict[str, Any] = {
        "run": run, "runs": tmp_path, "metrics": made_by(a=1.0), "inversion_rows": inversion,
        "likelihood_rows": likelihood, "reporting": REPORTING, "evaluation": EVALUATED, "seed": 31,
        "tracking": {"tracking_uri": uri, "run_id": "own"},
    }  # fmt: skip
    assert reporting_nodes.compare_runs(**arguments) == {"table": [], MADE_BY: WEIGHTS}
    (ours, others), named = calls["compare"]
    assert (ours.name, ours.metrics) == ("x", made_by(a=1.0))
    assert ours.inversion_rows is inversion
    assert ours.likelihood_rows is likelihood
    assert others == ["result of runs/other", "result of mlflow:abc"]
    assert named == {"bootstrap": parse(BootstrapConfig, EVALUATED["bootstrap"], at="b"), "seed": 31}
    assert loaded == [(name, {uri: "an id"} if uri else None) for name in REPORTING["compare"]]
    assert ("keep" in calls.made) is not chosen
    if not chosen:
        assert calls["keep"][0] == (ours, run_folder(tmp_path, run))
    for name in ("inversion_rows", "likelihood_rows"):
        with pytest.raises(EvaluationError, match=name):
            reporting_nodes.compare_runs(**{**arguments, name: table("x", OTHERS)})


def test_the_page_is_made_of_every_input_under_its_own_name(calls: Calls, tmp_path: Path) -> None:
    figure, data = go.Figure(), [go.Figure(go.Bar(name=name)) for name in reporting_nodes.DATA_PLOTS]
    calls.replace(report_figures, "all_figures", {"plot_sts": figure})
    calls.replace(report_page, "render", "the page")
    calls.replace(report_theme, "adopted", lambda figure: ("adopted", figure))
    for name in ("training_log", "training_events", "run_config", "own_timings"):
        calls.replace(report_inputs, name, {"the": name, "model": {"kind": "of the run"}})
    calls.replace(report_inputs, "now", "the time")
    run: dict[str, Any] = {"name": "x", CHOSEN: "a/path"}
    given: dict[str, Any] = {name: made_by(of=name) for name in (*SUITES, "comparison")}
    given |= {"inversion_rows": table("inversion"), "samples_unconditional": table("unconditional")}
    given |= {"ingestion_report": {"of": "ingestion"}, "validation_report": {"of": "validation"}}
    parameters = {"reporting": REPORTING, "seed": 17, "model": {"kind": "of the environment"}, "encoder": {"e": 1}}

    def write(**changes: Any) -> dict[str, Any]:
        values = {**given, **changes}
        return reporting_nodes.write_report(
            run, tmp_path, made_by(a=1.0), values["comparison"], *(values[name] for name in SUITES),
            values["inversion_rows"], values["samples_unconditional"], values["ingestion_report"],
            values["validation_report"], {"sampling": 2.0}, parameters, *data,
        )  # fmt: skip

    assert write() == {"report": "the page", "plot_sts": figure}
    assert figure.layout.meta == {MADE_BY: WEIGHTS}
    log = {"the": "training_log", "model": {"kind": "of the run"}}
    drawn = {name: given[name] for name in ("inversion", "sts", "likelihood", "latents", "classification")}
    assert calls["all_figures"][1] == {**drawn, "log": log, "comparison": given["comparison"], "smoothing": 0.7}
    for name in ("training_log", "training_events", "run_config"):
        assert calls[name][0] == (run_folder(tmp_path, run),)
    assert calls["own_timings"][0] == (run_folder(tmp_path, run), {"sampling": 2.0})
    (made_of, figures_by_name), named = calls["render"]
    assert named == {"made_at": "the time"}
    shown = {name: ("adopted", plot) for name, plot in zip(reporting_nodes.DATA_PLOTS, data, strict=True)}
    assert figures_by_name == {"plot_sts": figure, **shown}
    found = {field.name: getattr(made_of, field.name) for field in dataclasses.fields(made_of)}
    rows, unconditional = found.pop("inversion_rows"), found.pop("unconditional")
    assert (rows is given["inversion_rows"], unconditional is given["samples_unconditional"]) == (True, True)
    assert found == {
        **{name: given[name] for name in (*SUITES, "comparison", "ingestion_report", "validation_report")},
        "title": "Of a test", "run": run, "run_config": {**log, "the": "run_config"}, "metrics": made_by(a=1.0),
        "log": log, "events": {**log, "the": "training_events"}, "timings": {**log, "the": "own_timings"},
        "parameters": {**parameters, "model": {"kind": "of the run"}}, "examples": 7, "seed": 17,
    }  # fmt: skip
    names = {name: f"metrics_{name}" for name in SUITES} | {"comparison": "comparison"}
    for name, shown in names.items():
        with pytest.raises(EvaluationError, match=shown):
            write(**{name: {MADE_BY: OTHERS}})
    for name in ("inversion_rows", "samples_unconditional"):
        with pytest.raises(EvaluationError, match=name):
            write(**{name: table("x", OTHERS)})
