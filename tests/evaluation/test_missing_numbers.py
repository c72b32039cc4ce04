"""Numbers that a run lacks leave out their own key, word, curve or line, and none of the others."""

from __future__ import annotations

import importlib.metadata
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.data.sentences import Sentences
from mm_ldlm.evaluation import generative, retrieval
from mm_ldlm.evaluation.adapters import EncoderAdapter
from mm_ldlm.evaluation.bootstrap import Interval
from mm_ldlm.evaluation.config import BootstrapConfig, LatentsConfig
from mm_ldlm.evaluation.headline import flat_metrics, most_important
from mm_ldlm.evaluation.report import comparison_page, content, inversion_figures, latent_figures, training_figures
from mm_ldlm.evaluation.report.cards import cards
from mm_ldlm.evaluation.sts import score_vectors
from mm_ldlm.evaluation.sts_sets import from_pairs
from mm_ldlm.evaluation.suites import latents, sts

SUITES = ("inversion", "sts", "likelihood", "latents", "generation", "images", "timings")
NOTHING: dict[str, Any] = {suite: {} for suite in SUITES}


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 1, "high": value + 1}


# -- metrics.json and cards --------------------------------------------------------------------------------------------


def test_two_texts_have_no_neighbourhoods_but_the_other_numbers() -> None:
    rank = {name: interval(5) for name in ("at_1", "at_5", "at_10", "mean_reciprocal_rank")}
    entry = {"cosine": interval(2), "squared_error_fraction": interval(3), "retrieval": rank, "neighbourhoods": None,
             "frechet": 7.0}  # fmt: skip
    found = flat_metrics(**NOTHING | {"latents": {"samplers": {"model": entry}}})
    assert not [key for key in found if "neighbourhood" in key]
    assert (found["t2l.frechet"], found["t2l.cosine"], found["t2l.retrieval.at_10"]) == (7, 2, 5)


def test_each_encoder_of_an_sts_set_is_scored_without_the_others() -> None:
    score = {"spearman": interval(40), "pearson": interval(50)}
    for source, prefix in (("model", ""), ("encoder", "encoder_"), ("one_step", "one_step_")):
        entry = {"pairs": 9, "unknown": 0.25, "scores": {source: score}}
        found = flat_metrics(**NOTHING | {"sts": {"sets": {"news": entry}}})
        numbers = {f"{prefix}{name}{end}" for name in ("spearman", "pearson") for end in ("", ".low", ".high")}
        numbers -= {f"{prefix}pearson.low", f"{prefix}pearson.high"}
        assert {key.removeprefix("sts.news.") for key in found} == {"pairs", "unknown", *numbers}
        assert (found[f"sts.news.{prefix}spearman"], found[f"sts.news.{prefix}pearson"]) == (40, 50)


def test_a_foreign_text_without_an_unconditional_cost_does_not_end_the_list() -> None:
    zero_shot = {"conditional": {"given_latent": {}}, "Plain text": {"unconditional": {"per_token": interval(3)}}}
    found = flat_metrics(**NOTHING | {"likelihood": {"zero_shot": zero_shot}})
    assert found == {
        "nll.plain_text.per_token": 3,
        "nll.plain_text.per_token.low": 2,
        "nll.plain_text.per_token.high": 4,
    }


def test_a_perplexity_beyond_a_float_is_left_out_of_the_card() -> None:
    metrics = {"nll.per_token": 800.0, "nll.given_latent.per_token": 1.5, "nll.exact": 1.0}
    (card,) = cards(metrics)
    assert (card.value, card.note) == ("800.000", "exact negative log-likelihood; 1.500 nats given the latent")
    (card,) = cards({"nll.per_token": 2.0})
    assert card.note == "NELBO (upper bound); perplexity 7.39"


def test_one_sts_score_takes_the_last_place_of_the_most_important_numbers() -> None:
    metrics = {"perplexity": 9.0, "l2t.bleu": 1.0, "l2t.exact_match": 0.5, "sts.b.spearman": 3.0, "sts.a.spearman": 2.0,
               "sts.a.unknown": 0.6, "name": "text"}  # fmt: skip
    assert most_important(metrics, count=2) == ["l2t.exact_match", "sts.b.spearman"]
    assert most_important(metrics, count=3) == ["l2t.exact_match", "l2t.bleu", "sts.b.spearman"]
    assert most_important(metrics, count=9) == ["l2t.exact_match", "l2t.bleu", "perplexity", "sts.b.spearman"]
    without = {key: value for key, value in metrics.items() if not key.startswith("sts")}
    assert most_important(without, count=2) == ["l2t.exact_match", "l2t.bleu"]
    assert most_important({}, count=3) == []


# -- figures -----------------------------------------------------------------------------------------------------------


def line(label: str, **metrics: Any) -> dict[str, Any]:
    return {"label": label, "reference": "absent", "model_calls": 4.0, "encoder_calls": 0.0, "exact_match": interval(2),
            "token_accuracy": interval(3), "sentences_per_second": 5.0, **metrics}  # fmt: skip


def test_without_the_reference_there_is_no_line_at_its_level() -> None:
    figure: Any = inversion_figures.calls({"sweep": [line("a"), line("b")]})
    assert (figure.layout.shapes, figure.layout.annotations) == ((), ())
    for button in figure.layout.updatemenus[0].buttons:
        assert set(button.args[1]) == {"yaxis.title.text", "yaxis.tickformat", "yaxis.range"}
    assert [row[2] for row in figure.data[0].customdata] == ["", ""]
    with_line: Any = inversion_figures.calls({"sweep": [line("a"), line("absent", exact_match=interval(4))]})
    assert [shape.y0 for shape in with_line.layout.shapes] == [pytest.approx(0.99 * 4)]


def test_a_menu_of_one_metric_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for metrics in ({}, {"bleu": interval(1)}):
        figure: Any = inversion_figures.calls({"sweep": [line("a", **metrics), line("b", bleu=interval(1))]})
        shown = ["exact match", "token accuracy"] + ["BLEU"] * len(metrics)
        assert [button.label for button in figure.layout.updatemenus[0].buttons] == shown
    monkeypatch.setattr(inversion_figures, "CHOICES", {"exact_match": ("exact match", ".0%")})
    alone: Any = inversion_figures.calls({"sweep": [line("a")]})
    assert alone.layout.updatemenus == ()
    assert list(alone.layout.xaxis.range) == pytest.approx([-0.35, np.log10(4) + 0.35])


def test_an_encoder_without_scores_has_no_points_among_those_of_sts() -> None:
    sets = {
        "a": {"scores": {"model": {"spearman": interval(3)}}},
        "b": {"scores": {"encoder": {"spearman": interval(4)}}},
    }
    figure: Any = latent_figures.sts_scores({"sets": sets})
    assert [(trace.name, list(trace.y), list(trace.x)) for trace in figure.data] == [
        ("encoder", ["b"], [4]), ("model", ["a"], [3])
    ]  # fmt: skip


def test_a_curve_without_a_number_leaves_the_others() -> None:
    log = [{"step": step, "loss": float("nan"), "validation/loss": 2.0, "grad_norm": 0.0, "lr": 0.1} for step in (1, 2)]
    figure: Any = training_figures.training(log, smoothing=0.5)
    assert {trace.name: list(trace.y) for trace in figure.data} == {"validation/loss": [2, 2], "lr": [0.1, 0.1]}
    runs = [
        {"run": "a, 0", "member": "a", "curves": {"loss": [(1, 4.0)]}},
        {"run": "b, 0", "member": "b", "curves": {"text_nll": [(2, 3.0)], "loss": []}},
    ]
    curves: Any = comparison_page.curves(runs, smoothing=0.5)
    assert [(trace.name, trace.xaxis, list(trace.y)) for trace in curves.data] == [
        ("b, 0", "x", [3.0]), ("a, 0", "x2", [4.0])
    ]  # fmt: skip


# -- suites and packages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "free", "keys"), [
    (1, 5, {"unconditional_frechet"}), (4, 1, set()), (2, 2, {"unconditional_frechet", "real_frechet"}),
])  # fmt: skip
def test_a_frechet_distance_needs_two_latents_on_each_side(others: int, free: int, keys: set[str]) -> None:
    draw = np.random.default_rng(0)
    real = draw.normal(size=(4, 3))
    model: Any = SimpleNamespace(embed=lambda texts, **_: SimpleNamespace(latents=real + 0.5))
    held = Sentences(tuple("abcd"), tuple("abcd"), ((1,),) * 4, real.astype(np.float32))
    found = latents.evaluate(
        model, held, real + 1,
        distractors_md=draw.normal(size=(others, 3)), unconditional_nd=draw.normal(size=(free, 3)), sampler=None,
        config=LatentsConfig(calibration_sentences=0), bootstrap=BootstrapConfig(replicates=20), seed=0,
    )  # fmt: skip
    assert {key for key in found if key.endswith("_frechet")} == keys
    assert found["samplers"]["model"]["frechet"] == pytest.approx(retrieval.frechet_distance(real + 1, real))


def test_a_set_without_parts_has_no_means_over_them() -> None:
    draw = np.random.default_rng(1)
    a, b = draw.normal(size=(2, 12, 3))
    rows = [(f"a{i}", f"b{i}", float(i % 4)) for i in range(12)]
    means = {"mean_spearman", "weighted_mean_spearman", "subset_spearman", "mean_pearson", "weighted_mean_pearson",
             "subset_pearson", "mean_interval"}  # fmt: skip
    for subsets in (None, ["x"] * 6 + ["y"] * 6):
        score = score_vectors(from_pairs("mine", rows, subsets=subsets), a, b, replicates=20)
        found = sts.as_dict(score)
        assert set(found) == {"spearman", "pearson", "by_similarity"} | (means if subsets else set())
        for name in means & set(found):
            value = getattr(score, name)
            assert found[name] == (value.as_dict() if isinstance(value, Interval) else value) is not None


def test_versions_are_those_of_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("rouge-score", "kedro"):
            raise importlib.metadata.PackageNotFoundError(name)
        return f"version of {name}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = content.installed_versions()
    assert found.pop("python") == ".".join(map(str, sys.version_info[:3]))
    assert found == {name: f"version of {name}" for name in (
        "mm-ldlm", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "scipy", "pyarrow",
        "sacrebleu", "plotly")}  # fmt: skip


def test_mauve_compares_the_generated_texts_with_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compute_mauve(**given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(mauve=np.float32(0.25))

    monkeypatch.setitem(sys.modules, "mauve", SimpleNamespace(compute_mauve=compute_mauve))
    found = generative.mauve(("made",), ("real", "true"), featurizer="gpt", seed=5)
    assert (found, type(found)) == (0.25, float)
    assert asked == [{"p_text": ["real", "true"], "q_text": ["made"], "featurize_model_name": "gpt", "seed": 5,
                      "verbose": False}]  # fmt: skip


def test_mteb_files_results_under_the_name_and_revision_of_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = SimpleNamespace(ModelMeta=SimpleNamespace(create_empty=lambda fields: fields))
    for name in ("mteb", "mteb.models"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", meta)
    adapter = EncoderAdapter(lambda texts: np.ones((1, 2)), name="tiny", revision="step 7")
    assert adapter.mteb_model_meta == {
        "name": "mm-ldlm/tiny", "revision": "step 7", "framework": ["PyTorch"], "open_weights": False
    }  # fmt: skip
