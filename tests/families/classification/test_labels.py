"""Labels: what is read from the records, what goes to quarantine with a reason, and what a training refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kedro.pipeline import Pipeline, node
from tests.app.sessions import Session
from tests.data.latents import toy
from tests.environments import parameters

from mm_ldlm.app.config_loader import merge
from mm_ldlm.core import ConfigurationError, parse_kind
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.validation.findings import Finding, plain
from mm_ldlm.families.classification import labels as module
from mm_ldlm.families.classification.labels import LabelNames, Labels, PairTokens
from mm_ldlm.families.classification.objective import decode_names
from mm_ldlm.families.classification.text_labels import num_words
from mm_ldlm.objectives.base import OBJECTIVES

ROWS = [
    ("train", {"topic": "b"}), ("train", {"topic": "a"}), ("test", {"topic": "a"}), ("test", {"topic": "c"}),
    ("train", None), ("train", {"topic": None}), ("train", {"topic": 1.5}), ("train", {"topic": 7}),
    ("validation", {"topic": " 7 "}), ("train", {"topic": True}),
]  # fmt: skip
NUM_WORDS = "mm_ldlm.families.classification.text_labels:num_words"


def stores(root: Path, rows: list[tuple[str, Any]], **objective: Any) -> tuple[Any, ...]:
    """The objective, the records and the stores of labels and of their names."""
    texts = ["word " * (number + 1) for number in range(len(rows))]
    metas = [None if meta is None else json.dumps(meta) for _, meta in rows]
    records = toy.records(root / "records", texts, metas, splits=[split for split, _ in rows], shard_rows=3)
    config = parse_kind(OBJECTIVES, {"kind": "classification", **objective}, at="objective")
    tokenizer: Any = SimpleNamespace(
        max_length=3, pad_id=9, fingerprint="t", encode=lambda texts: [[len(word) for word in t.split()] for t in texts]
    )
    made: dict[str, ShardStore] = {}
    for feature in (Labels(config), LabelNames(config), PairTokens()):
        feature.make(Inputs(records, records, tokenizer, made), root / feature.folder)
        made[feature.name] = ShardStore.open(root / feature.folder, feature.kind)
    return config, records, *made.values()


def check(config: Any, records: ShardStore, labels: ShardStore) -> dict[str, Finding]:
    return {finding.check: finding for finding in Labels(config).check(labels, records)}


def test_a_label_that_no_source_gives_is_refused_before_the_first_node(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    def run(label: str, **ingestion: Any) -> None:
        session = Session(tmp_path)
        given = {"objective": {"label": label}, "ingestion": {"path": __file__, **ingestion}}
        session.parameters = merge(parameters("own_csv+classification+test"), given)
        nothing = node(lambda seed: {"seed": seed}, inputs="params:seed", outputs="timings", name="none")
        session.run(Pipeline([nothing], tags="ingestion"))

    with refuses(ConfigurationError, "objective.label", "`--params ingestion.label_column=topic`"):
        run("topic")
    with refuses(ConfigurationError, "objective.label", "label, split_group", "`--params objective.label=label`"):
        run("topic", label_column="topic", group_column="author")
    with refuses(ConfigurationError, "objective.label", "no_such_package"):
        run("no_such_package:label")
    run("label", label_column="topic")
    run(NUM_WORDS)


def test_classes_are_the_sorted_labels_of_the_training_split(tmp_path: Path) -> None:
    config, records, labels, *_ = stores(tmp_path, ROWS, label="topic")
    values = labels.fixed("value").take(slice(None))[:, 0]
    assert labels.manifest.meta["classes"] == ["7", "a", "b", "true"]
    assert values[[0, 1, 2, 7, 8, 9]].tolist() == [2, 1, 1, 0, 0, 3], "white space, numbers and truth values"
    found = check(config, records, labels)
    assert {reason: finding.failing.tolist() for reason, finding in found.items() if finding.severity != "info"} == {
        "no_label": [4, 5, 6],
        "unknown_label": [3],
    }
    assert plain([found["classes"]])[0]["examples"] == ["7: 2", "a: 2", "b: 1", "true: 1"]


def test_a_label_can_be_a_function_of_the_text(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    _, records, labels, _, _ = stores(tmp_path, ROWS, label=NUM_WORDS)
    classes = labels.manifest.meta["classes"]
    found = [classes[number] if number >= 0 else None for (number,) in labels.fixed("value").take(slice(None))]
    expected = [num_words(text) for text in records.gather("text", slice(None)).to_pylist()]
    assert found == [label if label in classes else None for label in expected]
    assert len(classes) == 7, "one for each length in the training split"
    with refuses(ConfigurationError, "operator:index raised TypeError"):
        stores(tmp_path / "broken", ROWS, label="operator:index")


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("classification", [("train", {"topic": "a"}), ("test", {"topic": "b"})]),
        ("classification", [("train", None)]),
        ("pairwise_classification", [("train", {"topic": "first", "pair": "a"})]),
    ],
)
def test_fewer_than_two_classes_fail_the_contract(kind: str, rows: list[tuple[str, Any]], tmp_path: Path) -> None:
    config, records, labels, _, _ = stores(tmp_path, rows, label="topic", kind=kind)
    assert check(config, records, labels)["classes"].severity == "error"


def test_a_comparison_has_its_answers_as_classes_and_needs_second_texts(tmp_path: Path) -> None:
    rows: list[tuple[str, Any]] = [
        ("train", {"label": "second", "pair": "aa b"}), ("train", {"label": "first", "pair": "a b c d"}),
        ("train", {"label": "first"}), ("test", {"label": "better", "pair": "a"}),
    ]  # fmt: skip
    config, records, labels, names, pairs = stores(tmp_path, rows, kind="pairwise_classification")
    assert names.gather("id", slice(None)).to_pylist() == ["first", "second", "similar"]
    assert Labels(config).folder != Labels(parse_kind(OBJECTIVES, {"kind": "classification"}, at="objective")).folder
    assert labels.fixed("value").take(slice(None))[:2, 0].tolist() == [1, 0]
    found = {reason: finding.failing.tolist() for reason, finding in check(config, records, labels).items()}
    assert found == {"no_pair": [2], "unknown_label": [3], "classes": []}
    assert pairs.fixed("value").take(slice(None)).tolist() == [[2, 1, 9], [1, 1, 1], [9, 9, 9], [1, 9, 9]]
    assert pairs.manifest.fingerprints == {"records": records.manifest.fingerprint, "tokenizer": "t"}


@given(
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), unique=True)
)
def test_names_of_classes_survive_their_store(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    labels: Any = SimpleNamespace(manifest=SimpleNamespace(meta={"classes": names}, fingerprint="f"))
    root = tmp_path_factory.mktemp("names")
    none: Any = None
    LabelNames(none).make(Inputs(none, none, none, {"labels": labels}), root)
    store = ShardStore.open(root)
    assert list(decode_names(store.fixed("value").take(slice(None)))) == names


def test_pitfall_25_labels_of_another_key_are_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    config, _, labels, _, _ = stores(tmp_path, ROWS, label="topic")
    Labels.refuse_other(labels, objective=config)
    other = parse_kind(OBJECTIVES, {"kind": "classification", "label": "shape"}, at="objective")
    with refuses(ConfigurationError, "shape", "topic"):
        Labels.refuse_other(labels, objective=other)
    assert Labels(config).folder != Labels(other).folder
    Labels(other).refuse_sources([SimpleNamespace(meta_keys={"topic"}), SimpleNamespace(meta_keys=None)])


def test_pitfall_25_labels_of_a_function_that_has_changed_are_refused(
    tmp_path: Path, refuses: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _, labels, _, _ = stores(tmp_path, ROWS, label=NUM_WORDS)
    before = Labels(config).folder
    monkeypatch.setattr(module, "describe_function", lambda key, at: {"name": key, "module": "another digest"})
    assert Labels(config).folder != before
    with refuses(ConfigurationError, NUM_WORDS, "the code of its module has changed"):
        Labels.refuse_other(labels, objective=config)
