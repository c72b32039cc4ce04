"""Tables of runs beside each other: labels, sets of any run, units, names; metrics without numbers; the adapter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import compare, run_result
from mm_ldlm.evaluation.adapters import EncoderAdapter
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.headline import flat_metrics, slug, sts_headlines
from mm_ldlm.evaluation.inversion import BLEU_COLUMNS
from mm_ldlm.evaluation.run_result import Result

OPTIONS: dict[str, Any] = {"bootstrap": BootstrapConfig(replicates=40, level=0.8), "seed": 3}
COUNT = 40


def costs(nats: float, *, more: int = 0, ids: Any = range(COUNT), seed: int = 0) -> pd.DataFrame:
    """Sentences whose two costs differ by sentence, in `more` tokens than those of the others."""
    tokens = np.arange(COUNT) % 5 + 2
    noise = np.random.default_rng(seed).normal(size=(2, COUNT)) / 10
    return pd.DataFrame({"id": [f"i{i}" for i in ids], "tokens": tokens + more, "nll": tokens * nats + noise[0],
                         "nll_given_latent": 3 * nats + noise[1]})  # fmt: skip


LABELS = {
    "l2t.exact_match": "Exact match", "l2t.token_accuracy": "Token accuracy", "l2t.token_set_f1": "Token-set F1",
    "l2t.bleu": "BLEU", "l2t.cosine": "Cosine, re-embedded", "t2l.cosine": "Cosine, text to latent",
    "t2l.retrieval.at_1": "Retrieval at 1", "nll.per_token": "Nats per token",
    "nll.given_latent.per_token": "Nats per token, given the latent", "perplexity": "Perplexity",
    "latent.bits_per_token": "Bits of the latent per token",
    "unconditional.attested_bigrams": "Unconditional: attested word pairs",
    "unconditional.distinct_2": "Unconditional: distinct-2", "unconditional.entropy_sample":
    "Unconditional: token entropy", "unconditional.self_bleu": "Unconditional: self-BLEU",
    "unconditional.perplexity": "Unconditional: generative perplexity",
    "unconditional.memorised": "Unconditional: memorised", "seconds.training": "Seconds of training",
    "sts.a.spearman": "STS a, Spearman × 100", "sts.b.spearman": "STS b, Spearman × 100",
}  # fmt: skip


def test_the_table_has_a_line_for_each_number_of_any_run_under_its_own_label() -> None:
    """Each run has every other number; no value occurs twice."""
    metrics: list[dict[str, float]] = [{"nll.exact": 1.0}, {"nll.exact": 0.0}]
    expected = []
    for place, (key, label) in enumerate(LABELS.items()):
        values: list[dict[str, Any]] = [{"value": None, "low": None, "high": None, "note": ""} for _ in range(2)]
        owners = {0: (0,), 1: (1,), 2: (0, 1)}[place % 3]
        for run in owners:
            value = 10.0 * place + run
            metrics[run] |= {key: value, f"{key}.low": value - 0.5}
            note = ("exact", "NELBO")[run] if key in run_result.LIKELIHOODS else ""
            values[run] = {"value": value, "low": value - 0.5, "high": None, "note": note}
        expected.append({"metric": key, "label": label, "values": values})
    found = compare.side_by_side([Result("one", metrics[0]), Result("two", metrics[1])])
    assert found == {"runs": ["one", "two"], "table": expected}
    assert set(run_result.LIKELIHOODS) == {"nll.per_token", "nll.given_latent.per_token", "perplexity"}


def test_a_comparison_with_nobody_has_no_table_and_one_without_rows_no_differences() -> None:
    ours = Result("a", {"perplexity": 2.0})
    assert compare.compare(ours, [], **OPTIONS) == {"runs": ["a"], "table": [], "paired": {}}
    found = compare.compare(ours, [Result("b", {}), Result("a", {}), Result("a", {}, likelihood_rows=costs(1.0))],
                            **OPTIONS)  # fmt: skip
    assert (found["runs"], found["paired"]) == (["a", "b", "a (2)", "a (3)"], {})


@pytest.mark.parametrize(("more", "unit"), [(0, "token"), (1, "sentence")])
def test_every_cost_has_its_own_difference_in_the_unit_that_both_share(more: int, unit: str) -> None:
    theirs, ours = costs(2.0), costs(1.0, more=more, seed=1)
    found = compare.likelihood_difference([theirs], [ours], **OPTIONS)
    assert found["sentences"] == COUNT
    assert list(found["differences"]) == [f"nats_per_{unit}", f"nats_given_latent_per_{unit}"]
    for column, entry in zip(("nll", "nll_given_latent"), found["differences"].values(), strict=True):
        a, b = (table[column].sum() / (table["tokens"].sum() if more == 0 else COUNT) for table in (theirs, ours))
        assert (entry["a"], entry["b"], entry["difference"]["value"]) == pytest.approx((a, b, b - a))
        assert entry["difference"]["level"] == 0.8


@pytest.mark.parametrize(("shared", "fits"), [(0, False), (1, False), (2, True), (3, True)])
def test_two_shared_sentences_are_the_fewest(shared: int, fits: bool) -> None:
    theirs, ours = costs(2.0), costs(1.0, ids=range(COUNT - shared, 2 * COUNT - shared))
    if fits:
        assert compare.likelihood_difference([theirs], [ours], **OPTIONS)["sentences"] == shared
        return
    with pytest.raises(EvaluationError, match=rf"found {shared} shared ids, fewer than two, among 40 and 40\."):
        compare.likelihood_difference([theirs], [ours], **OPTIONS)


def test_the_mean_cost_is_of_the_sentences_that_all_runs_have() -> None:
    tables = [costs(1.0), costs(2.0, seed=1)[5:], costs(4.0, seed=2)[:30]]
    found = compare.mean_cost(tables, **OPTIONS)
    kept = [table.set_index("id").loc[[f"i{i}" for i in range(5, 30)]] for table in tables]
    assert found.value == pytest.approx(np.mean([part["nll"].sum() / part["tokens"].sum() for part in kept]))
    assert (found.level, found.low < found.value < found.high) == (0.8, True)


@pytest.mark.parametrize("path", ["metrics.json", "evaluation/metrics.json", "evaluation", "."])
def test_a_result_in_the_working_directory_has_a_name(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_result.keep(Result("x", {"perplexity": 2.0}), tmp_path)
    (tmp_path / "metrics.json").write_text('{"perplexity": 3.0}')
    monkeypatch.chdir(tmp_path)
    found = run_result.load_result(path)
    assert (found.name, found.metrics["perplexity"]) == (path, 2.0 if "evaluation" in path else 3.0)


def test_a_kept_result_has_the_tables_that_it_was_given_and_no_others(tmp_path: Path) -> None:
    rows = pd.DataFrame({"id": ["a"], "exact": [True], **dict.fromkeys(("matches", "positions", *BLEU_COLUMNS), 1)})
    assert (
        run_result.keep(Result("x", {"a": 1.0}, rows, costs(1.0)), tmp_path / "whole") == tmp_path / "whole/evaluation"
    )
    run_result.keep(Result("x", {"a": 1.0}, rows.head(0)), tmp_path / "empty")
    listed = {name: sorted(file.name for file in (tmp_path / name / "evaluation").iterdir()) for name in
              ("whole", "empty")}  # fmt: skip
    assert listed == {
        "whole": ["inversion_rows.parquet", "likelihood_rows.parquet", "metrics.json"],
        "empty": ["inversion_rows.parquet", "metrics.json"],
    }
    found = run_result.load_result(str(tmp_path / "whole"))
    pd.testing.assert_frame_equal(found.inversion_rows, rows)
    pd.testing.assert_frame_equal(found.likelihood_rows, costs(1.0))


# -- metrics.json ------------------------------------------------------------------------------------------------------

NOTHING: dict[str, Any] = {
    key: {} for key in ("inversion", "sts", "likelihood", "latents", "generation", "images", "timings")
}


def test_numbers_that_are_not_finite_have_no_key() -> None:
    cost = {"value": 1.5, "standard_error": math.nan, "low": -math.inf, "high": math.inf}
    found = flat_metrics(**NOTHING | {"likelihood": {"unconditional": {"per_token": cost, "perplexity": None}}})
    assert found == {"nll.per_token": 1.5}


def test_every_mean_over_the_subsets_is_its_own_number() -> None:
    names = ("mean_spearman", "weighted_mean_spearman", "mean_pearson", "weighted_mean_pearson")
    value = {"value": 9.0}
    for source, prefix in (("model", ""), ("encoder", "encoder_"), ("one_step", "one_step_")):
        score = {"spearman": value, "pearson": value} | {name: place + 0.5 for place, name in enumerate(names)}
        found = flat_metrics(**NOTHING | {"sts": {"sets": {"a": {"pairs": 3, "scores": {source: score}}}}})
        assert {name: found[f"sts.a.{prefix}{name}"] for name in names} == {
            name: place + 0.5 for place, name in enumerate(names)
        }


def test_headlines_of_sts_are_in_alphabetical_order() -> None:
    keys = [f"sts.{name}.spearman" for name in ("b", "c", "a")]
    metrics = dict.fromkeys([*keys, "sts.a.encoder_spearman", "sts.a.mean_spearman", "l2t.spearman"], 1.0)
    assert sts_headlines(metrics) == ["sts.a.spearman", "sts.b.spearman", "sts.c.spearman"]


@pytest.mark.parametrize(("text", "key"), [("A–B  (c)", "a_b_c"), ("__x__", "x"), ("Größe 2", "größe_2"), ("…", "")])
def test_a_key_has_single_underscores_between_letters_and_digits(text: str, key: str) -> None:
    assert slug(text) == key


# -- the adapter -------------------------------------------------------------------------------------------------------


def test_an_adapter_has_its_name_its_revision_and_vectors_of_single_precision() -> None:
    seen: list[Any] = []
    adapter = EncoderAdapter(lambda texts: seen.append(texts) or np.ones((len(texts), 2)), name="n", revision="r")
    assert (adapter.name, adapter.revision, adapter.max_seq_length, adapter.similarity_fn_name) == (
        "n", "r", None, "cosine"
    )  # fmt: skip
    usual = EncoderAdapter(lambda texts: np.ones((1, 2)))
    assert (usual.name, usual.revision) == ("mm-ldlm", "local")
    for ways in (adapter.encode, adapter.encode_query, adapter.encode_document):
        assert ways(iter([{"text": ["a", "b"]}, {"text": ["c"]}])).dtype == np.float32
    assert ([*map(list, seen)], adapter.encode("d").shape) == ([["a", "b", "c"]] * 3, (2,))
    assert str(adapter.encode(["a"], convert_to_tensor=True).dtype) == "torch.float32"
    assert adapter.model_card_data.set_evaluation_metrics(1, a=2) is None
