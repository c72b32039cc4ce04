"""Nodes where something is missing: stores that nobody needs, uses that a run lacks, members that failed; and logs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from mm_ldlm.pipelines.comparison import nodes as comparison_nodes

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import PreflightError, StoreError, WorkerFailed
from mm_ldlm.data import sentences
from mm_ldlm.data.corpus.record import LABEL
from mm_ldlm.data.store import NOT_NEEDED
from mm_ldlm.evaluation import samples as sampled
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.evaluation.suites import generation, inversion, latents
from mm_ldlm.objectives.capabilities import USES, Capabilities
from mm_ldlm.pipelines import needs
from mm_ldlm.pipelines.embedding import nodes as embedding_nodes
from mm_ldlm.pipelines.evaluation import nodes as evaluation_nodes
from mm_ldlm.pipelines.ingestion import nodes as ingestion_nodes
from mm_ldlm.pipelines.sanity import nodes as sanity_nodes
from mm_ldlm.pipelines.validation import nodes as validation_nodes

TEXT_ONLY, HDLM = {"kind": "text_diffusion"}, {"kind": "text_diffusion", "process": {"kind": "hdlm"}}
MULTIMODAL, IMAGES, CCDD = {"kind": "multimodal"}, {"kind": "image_text"}, {"kind": "ccdd"}
DIT, ENCODER = {"kind": "dit", "dim": 32}, {"device": "cpu"}
HERE = Path("nowhere")
embedding: Any = embedding_nodes
validation: Any = validation_nodes

# -- stores that nobody needs ------------------------------------------------------------------------------------------

UNUSED: dict[str, Any] = {
    "latents (not needed): the objective 'text_diffusion' reads no latents":
        lambda: embedding.embed_records("records", None, ENCODER, {}, TEXT_ONLY, HERE),
    "images (not needed): the objective 'multimodal' reads no images":
        lambda: embedding.store_images("records", {}, {}, MULTIMODAL, HERE),
    "token vectors (not needed): neither the model nor the objective starts from them":
        lambda: embedding.embed_vocabulary("tokenizer", ENCODER, DIT, TEXT_ONLY, HERE),
    "token states (not needed): the objective 'image_text' reads none":
        lambda: embedding.embed_tokens("records", "tokens", "tokenizer", ENCODER, {}, IMAGES, HERE),
    "normaliser (not needed): the objective 'ccdd' reads no latents":
        lambda: validation.fit_normaliser("left", "index", CCDD, {}),
    "normaliser of token states (not needed): the objective 'multimodal' reads none":
        lambda: validation.fit_state_normaliser("left", "tokens", "index", MULTIMODAL),
    "normaliser of images (not needed): the objective 'text_diffusion' reads no images":
        lambda: validation.fit_image_normaliser("left", "index", TEXT_ONLY, {}),
    "token clusters (not needed): the objective 'multimodal' is not made from them":
        lambda: validation.cluster_vocabulary("tokenizer", "left", MULTIMODAL, {}, 0, HERE),
}  # fmt: skip
ELSEWHERE: dict[str, Any] = {
    "latents (not needed): the first host commits them":
        lambda: embedding.embed_records(
            "records", None, {"kind": "precomputed", "name": "a", "dim": 5, "normalised": True}, {}, MULTIMODAL, HERE
        ),
    "images (not needed): the first host makes them":
        lambda: embedding.store_images("records", {}, {}, IMAGES, HERE),
    "token vectors (not needed): the first host makes them":
        lambda: embedding.embed_vocabulary("tokenizer", ENCODER, DIT, HDLM, HERE),
    "token states (not needed): the first host makes them":
        lambda: embedding.embed_tokens("records", "tokens", "tokenizer", ENCODER, {}, CCDD, HERE),
}  # fmt: skip


@pytest.mark.parametrize("message", UNUSED)
def test_the_log_names_each_store_that_is_not_made_with_the_reason(message: str, caplog: Any) -> None:
    caplog.set_level("INFO", logger="mm_ldlm")
    assert UNUSED[message]() is NOT_NEEDED
    assert caplog.messages == [message]


@pytest.mark.parametrize("message", ELSEWHERE)
def test_the_log_of_another_host_names_the_stores_of_the_first(
    message: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", "1")
    caplog.set_level("INFO", logger="mm_ldlm")
    assert ELSEWHERE[message]() is NOT_NEEDED
    assert caplog.messages == [message]


@pytest.mark.parametrize(
    ("needed", "store", "found"),
    [((), "left", None), ((), None, None), (("x", "y"), "mine", "mine"), (("y",), "left", None)],
)
def test_a_store_is_used_where_it_is_needed_and_only_there(needed: tuple[str, ...], store: Any, found: Any) -> None:
    assert needs.used("x", store, needed, by="the model") == found
    if "x" in needed:
        with pytest.raises(StoreError) as error:
            needs.used("x", None, needed, by="the model")
        assert str(error.value) == (
            "the model reads x, but no x are committed. Run `kedro run --pipeline=embedding` first."
        )


def test_the_label_of_an_objective_and_the_answers_of_pairs() -> None:
    from mm_ldlm.families.classification.pairs import PairwiseClassificationConfig

    answers = PairwiseClassificationConfig.answers
    assert needs.labels_of(TEXT_ONLY) == (LABEL, None)
    assert needs.labels_of({"kind": "classification", "features": "trunk", "label": "topic"}) == ("topic", None)
    assert needs.labels_of({"kind": "pairwise_classification", "label": "better"}) == ("better", answers)


def test_what_a_model_and_an_objective_need() -> None:
    from_vectors = {"kind": "mmdit", "token_vectors": "encoder"}
    assert needs.fields_of(MULTIMODAL) == ("latents",)
    assert needs.stores_of(from_vectors) == ("token_vectors",)
    assert needs.stores_of(DIT) == needs.stores_of_objective(MULTIMODAL) == needs.fields_of(TEXT_ONLY) == ()
    assert needs.stores_of_objective(HDLM) == ("token_clusters",)
    assert {"token_clusters", "token_vectors"} <= needs.wanted(model=DIT, objective=HDLM)
    assert "token_vectors" in needs.wanted(model=from_vectors, objective=MULTIMODAL)
    assert "token_vectors" not in needs.wanted(model=DIT, objective=TEXT_ONLY)


STORES = ("records", "tokens", "index", "tokenizer", "latents", "normaliser", "images", "image_normaliser",
          "token_vectors", "token_clusters", "token_states", "state_normaliser", "labels", "label_names",
          "pair_tokens")  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "model", "missing", "message"),
    [
        (MULTIMODAL, {"kind": "mmdit"}, "latents", "objective 'multimodal' reads latents"),
        (IMAGES, {"kind": "image_mmdit"}, "images", "objective 'image_text' reads images"),
        (CCDD, {"kind": "ccdd"}, "token_states", "objective 'ccdd' reads token_states"),
        (HDLM, DIT, "token_clusters", "objective 'text_diffusion' reads token_clusters"),
        (MULTIMODAL, {"kind": "mmdit", "token_vectors": "encoder"}, "token_vectors", "model 'mmdit' reads token_vec"),
    ],
)
def test_a_store_that_a_dataset_lacks_is_named_with_the_one_who_reads_it(
    objective: Any, model: Any, missing: str, message: str
) -> None:
    stores: dict[str, Any] = {name: f"the {name}" for name in STORES if name != missing} | {missing: None}
    with pytest.raises(StoreError, match=message):
        validation_nodes.commit_dataset(**stores, objective=objective, model=model)


@pytest.mark.parametrize(
    ("kind", "named"), [("classification", {"labels", "label_names"}),
                        ("pairwise_classification", {"labels", "label_names", "pair_tokens"})]
)  # fmt: skip
def test_labels_that_only_the_catalog_names_have_a_place_in_the_dataset(kind: str, named: set[str]) -> None:
    stores: dict[str, Any] = {name: f"the {name}" for name in STORES} | dict.fromkeys(STORES[-3:])
    objective = {"kind": kind} | ({"features": "trunk"} if kind == "classification" else {})
    found = validation_nodes.commit_dataset(**stores, objective=objective, model=DIT)
    assert {name for name, store in found.items() if store is None} == named


# -- evaluation --------------------------------------------------------------------------------------------------------

EVALUATION = {"inversion": {"sweep_sentences": 2, "baseline_rows": 7}, "likelihood": {"sentences": 4}}
CONFIG = parse(EvaluationConfig, EVALUATION, at="evaluation")


def able(*uses: Any) -> Any:
    capabilities = Capabilities(uses=frozenset(uses), trained_as="some uses", reads_latents=True)
    return SimpleNamespace(capabilities=capabilities, parts=None, no_encoder=None, tokenizer=None, device="cpu")


def test_a_suite_of_samples_asks_for_the_use_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inversion reads what l2t wrote, and the suite of latents what t2l drew."""
    nodes: Any = evaluation_nodes
    monkeypatch.setattr(sampled, "without_truth", lambda table: f"no truth in {table}")
    every = set(USES)
    rows, metrics = nodes.evaluate_inversion(able(*(every - {"l2t"})), "data", "samples", EVALUATION, 0)
    assert metrics == {"skipped": able(*(every - {"l2t"})).capabilities.refusal("l2t")}
    assert rows.equals(sampled.no_rows())
    assert list(rows.columns) == list(sampled.no_rows().columns)
    metrics = nodes.evaluate_latents(able(*(every - {"t2l"})), "data", "samples", "free", EVALUATION, 0)
    assert metrics == {"skipped": able(*(every - {"t2l"})).capabilities.refusal("t2l")}
    assert nodes.evaluate_inversion(able("l2t"), "data", "x", EVALUATION, 0)[1] == {"skipped": "no truth in x"}
    assert nodes.evaluate_latents(able("t2l"), "data", "y", "free", EVALUATION, 0) == {"skipped": "no truth in y"}


class Held(list[str]):
    def some(self, count: int, *, seed: int) -> Any:
        return [f"{count} of the sentences by seed {seed}"]


def test_the_baselines_of_the_inversion_are_made_of_training_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: Any = evaluation_nodes
    seen: dict[str, Any] = {}
    held = Held(["all"])
    monkeypatch.setattr(sampled, "without_truth", lambda table: None)
    monkeypatch.setattr(sampled, "of_samples", lambda table, *, dataset: (held, "outputs"))
    monkeypatch.setattr(sentences, "split_rows", lambda data, split: f"rows of {split}")
    monkeypatch.setattr(sentences, "sample_rows", lambda rows, count, *, seed: (rows, count, seed))
    monkeypatch.setattr(sentences, "read_sentences", lambda data, rows: ("read", data, rows))
    monkeypatch.setattr(sentences, "texts_of_split", lambda data, split: "training texts")
    table = pd.DataFrame({"hypothesis": ["h"], "reference": ["r"]})
    for name, result in {"score": table, "headline": {"head": 1}, "sweep": "swept", "memorisation": "memory"}.items():
        monkeypatch.setattr(inversion, name, lambda *_, result=result, **__: result)
    monkeypatch.setattr(inversion, "baselines", lambda *given, **named: seen.update(given=given, named=named) or "base")
    model = able("l2t")
    _, metrics = nodes.evaluate_inversion(model, "data", "samples", EVALUATION, 41)
    assert metrics == {"head": 1, "sweep_sentences": 1, "sweep": "swept", "baselines": "base", "memorised": "memory"}
    model_given, some, train = seen["given"]
    assert model_given is model
    assert some is held
    assert train == ("read", "data", ("rows of train", 7, 41))
    assert seen["named"] == {"bootstrap": CONFIG.bootstrap, "seed": 41}


def test_the_distractors_fill_up_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: Any = evaluation_nodes
    asked: list[Any] = []
    monkeypatch.setattr(sampled, "without_truth", lambda table: None)
    monkeypatch.setattr(sampled, "of_samples", lambda table, *, dataset: (["a"] * 5, "generated"))
    for name in ("required_vectors", "vectors"):
        monkeypatch.setattr(sampled, name, lambda table: None)
    monkeypatch.setattr(sentences, "split_rows", lambda data, split: split)
    monkeypatch.setattr(sentences, "sample_rows", lambda rows, count, *, seed: asked.append((rows, count, seed)))
    monkeypatch.setattr(sentences, "latents_of", lambda data, rows: None)
    monkeypatch.setattr(latents, "evaluate", lambda *_, **__: {})
    for candidates in (30, 8, 7, 6, 5):
        nodes.evaluate_latents(able("t2l"), "data", "s", "free", {"latents": {"candidates": candidates}}, 41)
    assert asked == [("train", count, 41) for count in (25, 3, 2, 2, 2)]


@pytest.mark.parametrize("texts", [[], ["a"], ["a", "b", "c"]])
def test_whether_texts_are_measured_is_decided_by_all_of_them(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: Any = evaluation_nodes
    asked: list[Any] = []
    model = able()
    monkeypatch.setattr(generation, "skip_reason", lambda *given: asked.append(given) or "too few")
    table = pd.DataFrame({"text": texts}) if texts else pd.DataFrame()
    assert nodes.evaluate_generation(model, "data", table, EVALUATION, 0) == {"skipped": "too few"}
    assert asked == [(model, texts)]


# -- ingestion, sanity, comparison -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "shown"), [({}, True), ({"progress": True}, True), ({"progress": False}, False)])
def test_the_progress_of_tokenising_is_shown_unless_it_is_switched_off(
    given: dict[str, bool], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_ldlm.data.corpus import tokens

    monkeypatch.setattr(tokens, "tokenize_records", lambda *_, progress: progress)
    assert ingestion_nodes.make_tokens("records", "files", given, {"max_length": 9}, HERE) is shown  # type: ignore[arg-type, comparison-overlap]


def test_every_failed_check_is_named_and_none_that_passed() -> None:
    from mm_ldlm.training.preflight import Check

    checks = [Check("one", "less", "get more"), Check("two", "fine"), Check("three", "much", "take less")]
    report = [json.loads(json.dumps(vars(check))) for check in checks]
    with pytest.raises(PreflightError) as error:
        sanity_nodes.judge_configuration(report)
    assert str(error.value) == f"2 sanity checks of the configuration failed:\n{checks[0]}\n{checks[2]}"
    sanity_nodes.judge_configuration([report[1]])


def test_every_failed_member_is_named_with_its_reason() -> None:
    failed = [{"member": name, "seed": seed, "status": "failed", "reason": f"{name} diverged"}
              for name, seed in (("a", 3), ("b", 5))]  # fmt: skip
    with pytest.raises(WorkerFailed) as error:
        comparison_nodes.judge_members(failed, "the report")
    assert str(error.value) == (
        "expected at least one finished member, found 2 that failed:\na, seed 3: a diverged\nb, seed 5: b diverged"
    )
    comparison_nodes.judge_members([failed[0], {**failed[1], "status": "finished"}], "the report")


def test_the_sessions_of_a_comparison_are_those_of_its_plan(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from mm_ldlm.evaluation.report import comparison_page, inputs
    from mm_ldlm.extras.comparison import results, sessions

    caplog.set_level("INFO", logger="mm_ldlm")
    plan = {"project": "/p", "conf_source": "conf", "reports": "/r"}
    comparison = {"members": [{"name": "a", "env": "x"}], "jobs": 3, "seeds": [5]}
    monkeypatch.setattr(sessions, "from_plan", lambda given: [given] * 2)
    monkeypatch.setattr(sessions, "run_sessions", lambda given, **named: [])
    assert comparison_nodes.run_members(plan, Path("/f"), comparison, {}) == []
    assert caplog.messages == ["2 sessions, in /f"]
    monkeypatch.setattr(results, "collect", lambda given, outcomes, **_: {"sessions": given, "outcomes": outcomes})
    monkeypatch.setattr(results, "table", lambda found: ("table of", found))
    found, table = comparison_nodes.collect_results(plan, [], comparison, {}, 0)
    assert found == {"sessions": [plan] * 2, "outcomes": []}
    assert table == ("table of", found)
    monkeypatch.setattr(comparison_page, "figures", lambda *_, **__: {"scores": 1, "curves": 2, "differences": 3})
    monkeypatch.setattr(comparison_page, "render", lambda found, drawn, **about: about)
    monkeypatch.setattr(inputs, "now", lambda: "the time")
    assert comparison_nodes.report_members({}, {"title": "T"})["comparison_report"] == {
        "title": "T", "made_at": "the time"
    }  # fmt: skip
