"""Results of runs: saved with their run, loaded again, and compared sentence by sentence."""

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import compare as cmp
from mm_ldlm.evaluation import run_result
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.inversion import corpus_bleu, score_rows
from mm_ldlm.evaluation.report.cards import cards

FEW = BootstrapConfig(replicates=200)


def rows(fraction_exact, count=200, seed=0):
    generator = np.random.default_rng(seed)
    references = [[int(v) for v in generator.integers(0, 9, size=6)] for _ in range(count)]
    outputs = [row if i < fraction_exact * count else [*row[:-1], 99] for i, row in enumerate(references)]
    spell = [[" ".join(map(str, row)) for row in some] for some in (references, outputs)]
    return score_rows(*spell, reference_ids=references, hypothesis_ids=outputs, ids=[f"i{i}" for i in range(count)])


def costs(nats, *, count=200, noise=0.1, seed=0):
    """Every token costs about `nats`; the lengths are those of seed 0, whatever the seed of the noise."""
    tokens = np.random.default_rng(0).integers(3, 12, size=count)
    nll = tokens * nats + np.random.default_rng(seed).normal(scale=noise, size=count)
    return pd.DataFrame({"id": [f"i{i}" for i in range(count)], "tokens": tokens, "nll": nll})


def test_a_result_is_kept_in_its_run_folder_and_found_there(tmp_path):
    run = tmp_path / "runs" / "run-a"
    run.mkdir(parents=True)
    run_result.keep(run_result.Result("run-a", {"l2t.exact_match": 0.5}, rows(0.5), costs(1.0)), run)
    for reference in (run, run / "evaluation", run / "evaluation" / "metrics.json"):
        found = run_result.load_result(str(reference))
        assert found.name == "run-a"
        assert found.metrics["l2t.exact_match"] == 0.5
        assert len(found.inversion_rows) == 200
        assert found.likelihood_rows["nll"].sum() == pytest.approx(costs(1.0)["nll"].sum())


def test_paired_differences_on_the_sentences_that_both_have(tmp_path):
    better, worse = rows(0.9), rows(0.6).sample(frac=0.8, random_state=0)
    ours = run_result.Result(
        "ours", {"l2t.exact_match": 0.9, "l2t.exact_match.low": 0.85, "l2t.exact_match.high": 0.94}, better
    )
    found = cmp.compare(ours, [run_result.Result("theirs", {"l2t.exact_match": 0.6}, worse)], bootstrap=FEW, seed=0)
    paired = found["paired"]["theirs"]["inversion"]
    assert paired["sentences"] == 160
    assert paired["differences"]["exact_match"]["clear"]
    assert paired["differences"]["exact_match"]["difference"]["value"] == pytest.approx(0.3, abs=0.08)
    line = found["table"][0]
    assert line["metric"] == "l2t.exact_match"
    assert [v["value"] for v in line["values"]] == [0.9, 0.6]
    assert line["values"][1]["low"] is None


def test_equal_runs_do_not_differ():
    same = rows(0.7)
    found = cmp.compare(
        run_result.Result("a", {}, same), [run_result.Result("a", {}, same.copy())], bootstrap=FEW, seed=0
    )
    assert found["runs"] == ["a", "a (2)"]
    assert not found["paired"]["a (2)"]["inversion"]["differences"]["exact_match"]["clear"]


def test_metrics_of_an_mlflow_run_will_do(tmp_path):
    found = run_result.load_result("0123456789abcdef", from_tracking=lambda run_id: {"l2t.bleu": 80.0})
    assert found.name == "01234567"
    assert found.inversion_rows is None
    assert found.likelihood_rows is None
    with pytest.raises(EvaluationError, match="no MLflow run of that id"):
        run_result.load_result("0123456789abcdef", from_tracking=lambda run_id: {})
    with pytest.raises(EvaluationError, match="Evaluate that run first"):
        run_result.load_result(str(tmp_path))


def test_runs_without_shared_sentences_are_refused():
    other = rows(0.5).assign(id=[f"x{i}" for i in range(200)])
    with pytest.raises(EvaluationError, match="fewer than two"):
        cmp.compare(run_result.Result("a", {}, rows(0.5)), [run_result.Result("b", {}, other)], bootstrap=FEW, seed=0)


# -- likelihood ------------------------------------------------------------------------------------------------------


def text_runs():
    """An exact run at 2.0 nats per token, and a NELBO at 2.3 on 150 of the same sentences in another order."""
    exact = {"nll.exact": 1.0, "nll.per_token": 2.0, "nll.per_token.low": 1.9, "nll.per_token.high": 2.1}
    bounded = {"nll.exact": 0.0, "nll.per_token": 2.3, "perplexity": 9.9}
    return (
        run_result.Result("ar", exact, inversion_rows=rows(0.5).head(0), likelihood_rows=costs(2.0)),
        run_result.Result("mdlm", bounded, likelihood_rows=costs(2.3, seed=1).sample(150, random_state=0)),
    )


def test_costs_are_compared_per_token_on_shared_sentences_with_their_kind():
    ar, mdlm = text_runs()
    found = cmp.compare(mdlm, [ar], bootstrap=FEW, seed=0)
    cells = {line["metric"]: line["values"] for line in found["table"]}
    assert [cell["note"] for cell in cells["nll.per_token"]] == ["NELBO", "exact"]
    assert [cell["note"] for cell in cells["perplexity"]] == ["NELBO", ""], "the other run has no such number"
    assert set(found["paired"]["ar"]) == {"likelihood"}, "no run has inversion rows"
    paired = found["paired"]["ar"]["likelihood"]
    assert paired["sentences"] == 150
    entry = paired["differences"]["nats_per_token"]
    shared = costs(2.0).set_index("id").loc[mdlm.likelihood_rows["id"]]
    assert entry["a"] == pytest.approx(shared["nll"].sum() / shared["tokens"].sum())
    assert entry["difference"]["value"] == pytest.approx(0.3, abs=0.01)
    assert entry["clear"]
    assert "this run is an upper bound" in paired["note"]


def test_costs_of_two_tokenisers_are_compared_per_sentence():
    ar, mdlm = text_runs()
    finer = mdlm.likelihood_rows.assign(tokens=mdlm.likelihood_rows["tokens"] + 1)
    differences = cmp.likelihood_difference([ar.likelihood_rows], [finer], bootstrap=FEW, seed=0)["differences"]
    assert set(differences) == {"nats_per_sentence"}


def test_a_cost_given_the_latent_is_compared_only_where_both_runs_have_one():
    one, two = costs(2.0), costs(1.0)
    both = [table.assign(nll_given_latent=table["nll"] / 2) for table in (one, two)]
    options = {"bootstrap": FEW, "seed": 0}
    assert set(cmp.likelihood_difference([both[0]], [two], **options)["differences"]) == {"nats_per_token"}
    found = cmp.likelihood_difference([both[0]], [both[1]], **options)["differences"]
    assert found["nats_given_latent_per_token"]["difference"]["value"] == pytest.approx(-0.5, abs=0.01)


@pytest.mark.parametrize(("count", "verdict"), [(2, "too few"), (29, "too few"), (30, "significant")])
def test_a_comparison_on_few_sentences_says_so(count, verdict):
    """On two sentences every resample of a constant difference is equal: it would be clear with a p-value of 0."""
    one, two = (
        run_result.Result(name, {}, None, costs(nats, count=count, noise=0)) for name, nats in (("a", 2), ("b", 1))
    )
    paired = cmp.compare(one, [two], bootstrap=FEW, seed=0)["paired"]["b"]["likelihood"]
    entry = paired["differences"]["nats_per_token"]
    assert (entry["verdict"], entry["clear"]) == (verdict, verdict == "significant")
    assert entry["p"] == (None if verdict == "too few" else pytest.approx(2 / 201))
    assert (paired["sentences"], paired["fewest_sentences"]) == (count, 30)


@pytest.mark.parametrize(("unknown", "headline"), [(None, True), (0.5, True), (0.51, False), (885 / 910, False)])
def test_an_sts_set_of_other_words_is_no_headline(unknown, headline):
    metrics = {"sts.starter.spearman": 70.0} | ({} if unknown is None else {"sts.starter.unknown": unknown})
    ours = run_result.Result("a", metrics)
    labels = [line["label"] for line in cmp.compare(ours, [run_result.Result("b", {})], bootstrap=FEW, seed=0)["table"]]
    assert labels == (["STS starter, Spearman × 100"] if headline else [])
    assert [card.label for card in cards(metrics)] == (["STS starter"] if headline else [])


@pytest.mark.parametrize("cosines", [True, False])
def test_every_difference_is_that_of_its_own_numbers(cosines):
    """Two runs each of two systems, on the sentences that all four tables have, in the order of the first."""
    draw = np.random.default_rng(5)
    tables = [rows(exact, count=40) for exact in (0.2, 0.4, 0.6, 0.8)]
    if cosines:
        tables = [table.assign(cosine=draw.uniform(size=40)) for table in tables]
    shuffled = [table.sample(frac=1, random_state=i) for i, table in enumerate(tables)]
    shuffled[2] = shuffled[2][shuffled[2]["id"] != "i7"]
    found = cmp.inversion_difference(shuffled[:2], shuffled[2:], bootstrap=FEW, seed=0)
    kept = [table[table["id"] != "i7"] for table in tables]
    numbers = {
        "exact_match": [table["exact"].mean() for table in kept],
        "token_accuracy": [table["matches"].sum() / table["positions"].sum() for table in kept],
        "bleu": [corpus_bleu(table) for table in kept],
    } | ({"cosine": [table["cosine"].mean() for table in kept]} if cosines else {})
    assert found["sentences"] == 39
    assert found["differences"].keys() == numbers.keys()
    for name, (one, two, three, four) in numbers.items():
        entry = found["differences"][name]
        assert (entry["a"], entry["b"]) == pytest.approx(((one + two) / 2, (three + four) / 2)), name
        assert entry["difference"]["value"] == pytest.approx((three + four - one - two) / 2), name
        assert entry["difference"]["low"] < entry["difference"]["value"] < entry["difference"]["high"], name
