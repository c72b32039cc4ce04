"""Every trace of a figure and every cell of a table shows its own number: all numbers of the inputs differ."""

from __future__ import annotations

import html
import itertools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.evaluation.report import (
    cards,
    comparison_page,
    content,
    figures,
    inversion_figures,
    latent_figures,
    page,
    theme,
    training_figures,
)
from mm_ldlm.evaluation.report.cards import percent
from mm_ldlm.evaluation.report.content import spelled
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.families.classification import figures as classification_figures

COUNT = itertools.count(1)


def number() -> float:
    """A number between 0 and 1 that occurs nowhere else, with few digits."""
    return round((next(COUNT) * 0.00721) % 1, 5)


def interval() -> dict[str, float]:
    value = number()
    return {"value": value, "low": value - 0.01 - number() / 50, "high": value + 0.01 + number() / 50, "level": 0.95}


METRICS = (
    "exact_match", "token_accuracy", "token_set_f1", "bleu", "sentence_bleu", "chrf", "rouge_l", "cosine",
    "exact_match_as_written", "token_set_f1_as_written", "bleu_as_written",
)  # fmt: skip


def line(label: str, calls: float, encoder_calls: float) -> dict[str, Any]:
    return {
        "label": label, "model_calls": calls, "encoder_calls": encoder_calls, "sentences_per_second": 100 * number(),
        "reference": "one", "exact_ratio": interval(), **{name: interval() for name in METRICS[:8]},
    }  # fmt: skip


def score() -> dict[str, Any]:
    return {
        "spearman": interval(), "pearson": interval(), "ratio": interval(), "mean_spearman": number(),
        "mean_pearson": number(), "weighted_mean_spearman": number(), "subset_spearman": {"a": number(), "b": number()},
        "by_similarity": {
            name: {"spearman": number(), "pearson": number()} for name in ("cosine", "dot", "manhattan", "euclidean")
        },
    }  # fmt: skip


def sampler() -> dict[str, Any]:
    names = ("at_1", "at_5", "at_10", "mean_reciprocal_rank")
    return {
        "cosine": interval(), "squared_error_fraction": interval(), "frechet": number(),
        "retrieval": {"candidates": 4321, **{name: interval() for name in names}},
        "neighbourhoods": {"rank_correlation": interval()}, "cosines": [number() for _ in range(30)],
    }  # fmt: skip


def cost() -> dict[str, Any]:
    buckets = [
        {"low": i / 2, "high": (i + 1) / 2, "cross_entropy": number(), "accuracy": number(), "masked_tokens": 7 + i}
        for i in range(2)
    ]
    return {
        "per_token": interval(), "perplexity": interval(), "length_per_sentence": interval(), "by_mask_ratio": buckets
    }  # fmt: skip


def diversity() -> dict[str, Any]:
    names = ("entropy_sample", "entropy_corpus", "self_bleu", "unique", "perplexity")
    return {
        **{name: number() for name in names}, "distinct": {str(n): number() for n in (1, 2, 3, 4)},
        "attested_bigrams": interval(),
    }  # fmt: skip


def classifier() -> dict[str, Any]:
    counts = np.array([[8, 2], [1, 5]])
    return {
        "classes": ["x", "y"], "examples": 16, "majority": number(),
        **{name: interval() for name in ("accuracy", "macro_f1", "ece", "nll")},
        "confusion": {"counts": counts.tolist(), "low": (counts - 1).tolist(), "high": (counts + 3).tolist()},
        "reliability": [{"confidence": number(), "accuracy": interval(), "examples": 5 + i} for i in range(2)],
    }  # fmt: skip


INVERSION = {
    "sentences": 1234, "metrics": {name: interval() for name in METRICS}, "sweep_sentences": 55,
    "baselines": {name: {"metrics": {key: interval() for key in METRICS[:8]}} for name in ("nearest", "bag")},
    "sweep": [line("one", 3.0, 0.0), line("two", 1.5, 0.0), line("three", 2.25, 6.0)],
    "memorised": {"outputs": number(), "wrong": 17, "wrong_outputs": number(), "references": number()},
    "by_length": [
        {"tokens": "1–4", "rows": 9, "exact_match": 0.5, "low": 0.4, "high": 0.7, "token_accuracy": number()},
        {"tokens": "5–9", "rows": 11, "exact_match": 0.3, "low": 0.25, "high": 0.32, "token_accuracy": number()},
    ],
}  # fmt: skip
STS = {"sets": {
    "news": {"pairs": 1357, "scores": {name: score() for name in ("encoder", "model", "one_step")}, "too_long": 3,
             "scatter": {"gold": [1.0, 4.0], "encoder": [0.1, 0.2], "model": [0.3, 0.4], "one_step": [0.5, 0.6]}},
    "other": {"pairs": 24, "scores": {"encoder": score()}},
}}  # fmt: skip
LIKELIHOOD = {
    "likelihood": "bound", "sentences": 432, "draws": 6, "unconditional": cost(), "given_latent": cost(),
    "latent_bits": {"per_token": interval(), "per_sentence": interval()},
    "zero_shot": {"wiki": {"sentences": 98, "unknown_fraction": number(), "outside_length": 21, "unconditional": cost(),
                           "given_latent": cost()}},
}  # fmt: skip
LATENTS = {
    "samplers": {"model": sampler(), "one_step": sampler()},
    "spectrum": {
        "real": {"rows": 3, "effective_rank": 2.6, "eigenvalues": [0.9, 0.5, 0.2, 0.1]},
        "model": {"rows": 90, "effective_rank": 4.4, "eigenvalues": [0.8, 0.4, 1e-12]},
    },
    "calibration": {"samples": 2, "spread_to_error": number(), "rank_fraction": [0.5, 0.2, 0.3]},
    "unconditional_frechet": number(), "real_frechet": number(),
}  # fmt: skip
GENERATION = {
    "texts": 77, "empty": number(), "memorised": number(), "mauve": number(), "generated": diversity(),
    "real": diversity(),
}  # fmt: skip
CLASSIFICATION = {
    "split": "test", "model": classifier(), "logistic_regression": {**classifier(), "trained_on": 2468},
}  # fmt: skip
IMAGES = {
    "size": [2, 2, 1], "classifier": {"trained_on": 111, "real_images": 222, "real_accuracy": interval()},
    "caption_to_image": {"images": 31, "accuracy": interval(),
                         "nearest_training": {"generated": interval(), "real": interval()}},
    "image_to_caption": {"captions": 32, "accuracy": interval(), "exact_match": interval(), "attested": interval()},
    "image_text": {"samples": 33, "agreement": interval()},
}  # fmt: skip


def points(trace: Any, axis: str = "y") -> list[tuple[float, float, float]]:
    """Value, low and high of each point of a trace, from its error bars."""
    values, bars = getattr(trace, axis), getattr(trace, f"error_{axis}")
    return [(v, v - down, v + up) for v, down, up in zip(values, bars.arrayminus, bars.array, strict=True)]


def shown(*values: dict[str, float]) -> Any:
    return pytest.approx(np.array([(v["value"], v["low"], v["high"]) for v in values]))


# -- figures ---------------------------------------------------------------------------------------------------------


def test_quality_against_calls() -> None:
    figure = inversion_figures.calls(INVERSION)
    one, two, three = INVERSION["sweep"]
    assert [trace.name for trace in figure.data] == ["model alone", "search with the encoder"]
    for trace, lines in zip(figure.data, ([two, one], [three]), strict=True):
        assert list(trace.x) == [line["model_calls"] for line in lines]
        assert list(trace.text) == [line["label"] for line in lines]
        assert np.array(points(trace)) == shown(*(line["exact_match"] for line in lines))
        assert [row[:2] for row in trace.customdata] == [
            [line["sentences_per_second"], line["token_accuracy"]["value"]] for line in lines
        ]
        assert [row[2] for row in trace.customdata] == [f" · cosine {line['cosine']['value']:.3f}" for line in lines]
    assert figure.layout.shapes[0].y0 == pytest.approx(0.99 * one["exact_match"]["value"])
    assert figure.layout.annotations[0].text == "99 % of one"
    low = min(line["exact_match"]["low"] for line in (one, two, three))
    high = max(line["exact_match"]["high"] for line in (one, two, three))
    room = 0.12 * (high - low)
    assert list(figure.layout.yaxis.range) == pytest.approx([low - room, high + room])
    buttons = figure.layout.updatemenus[0].buttons
    for button, (metric, (label, form)) in zip(buttons, inversion_figures.CHOICES.items(), strict=True):
        traces, axis = button.args
        assert (button.label, axis["yaxis.title.text"], axis["yaxis.tickformat"]) == (label, label, form)
        groups = [[two, one], [three]]
        assert traces["y"] == [[line[metric]["value"] for line in some] for some in groups]
        for some, up, down in zip(groups, traces["error_y.array"], traces["error_y.arrayminus"], strict=True):
            assert up == pytest.approx([line[metric]["high"] - line[metric]["value"] for line in some])
            assert down == pytest.approx([line[metric]["value"] - line[metric]["low"] for line in some])
        level = pytest.approx(0.99 * one[metric]["value"])
        assert (axis["shapes[0].y0"], axis["shapes[0].y1"], axis["annotations[0].y"]) == (level, level, level)


def test_quality_by_length_and_baselines() -> None:
    exact, accuracy = inversion_figures.by_length(INVERSION).data
    assert np.array(points(exact)) == pytest.approx(np.array([(0.5, 0.4, 0.7), (0.3, 0.25, 0.32)]))
    assert list(accuracy.y) == [entry["token_accuracy"] for entry in INVERSION["by_length"]]
    assert [text[:3] for text in exact.x] == ["1–4", "5–9"]
    assert "n = 9<" in exact.x[0]
    traces = inversion_figures.baselines(INVERSION).data
    assert [trace.name for trace in traces] == ["model", "nearest", "bag"]
    chosen = {"exact match": 1, "token F1": 1, "BLEU": 100, "ROUGE-L": 1, "cosine": 1}
    keys = ("exact_match", "token_set_f1", "bleu", "rouge_l", "cosine")
    sources = [INVERSION["metrics"], *(entry["metrics"] for entry in INVERSION["baselines"].values())]
    for trace, metrics in zip(traces, sources, strict=True):
        assert list(trace.x) == list(chosen)
        scaled = [{k: metrics[key][k] / scale for k in ("value", "low", "high")}
                  for key, scale in zip(keys, chosen.values(), strict=True)]  # fmt: skip
        assert np.array(points(trace)) == shown(*scaled)


SOURCES = {"encoder": "encoder", "one-step regression": "one_step", "model": "model"}


def test_figures_of_sts() -> None:
    traces = {trace.name: trace for trace in latent_figures.sts_scores(STS).data}
    assert traces.keys() == SOURCES.keys()
    for name, source in SOURCES.items():
        sets = [key for key, entry in STS["sets"].items() if source in entry["scores"]]
        assert list(traces[name].y) == sets
        values = [STS["sets"][key]["scores"][source]["spearman"] for key in sets]
        assert np.array(points(traces[name], "x")) == shown(*values)
    scatter = latent_figures.sts_scatter(STS)
    assert [(trace.name, list(trace.y)) for trace in scatter.data] == [("encoder", [0.1, 0.2]), ("model", [0.3, 0.4])]
    assert all(abs(np.array(trace.x) - [1.0, 4.0]).max() < 0.25 for trace in scatter.data)


def test_figures_of_latents() -> None:
    histograms = {trace.name: trace for trace in latent_figures.cosine_histogram(LATENTS).data}
    for name, source in (("model", "model"), ("one-step regression", "one_step")):
        mean = sum(x * y for x, y in zip(histograms[name].x, histograms[name].y, strict=True))
        assert sum(histograms[name].y) == pytest.approx(1)
        assert mean == pytest.approx(np.mean(LATENTS["samplers"][source]["cosines"]), abs=0.02)
    real, model = latent_figures.spectrum(LATENTS).data
    assert (real.name, model.name) == ("encoder (effective rank 3)", "model, given the text (effective rank 4)")
    assert list(real.y) == [0.9, 0.5], "three rows have two directions"
    assert list(model.y)[:2] == [0.8, 0.4]
    assert np.isnan(model.y[2]), "a rounding error is not shown"
    assert list(model.x) == [1, 2, 3]
    calibration = latent_figures.calibration(LATENTS)
    assert (list(calibration.data[0].x), list(calibration.data[0].y)) == ([0, 1, 2], [0.5, 0.2, 0.3])
    assert calibration.layout.shapes[0].y0 == pytest.approx(1 / 3)
    assert "number of 2 samples" in calibration.layout.xaxis.title.text


def test_figures_of_likelihood_and_classes() -> None:
    traces = {trace.name: trace for trace in figures.mask_ratio(LIKELIHOOD).data}
    for name, part in (("unconditional", "unconditional"), ("given the latent", "given_latent")):
        buckets = LIKELIHOOD[part]["by_mask_ratio"]
        assert list(traces[name].x) == [0.25, 0.75]
        assert list(traces[name].y) == [bucket["cross_entropy"] for bucket in buckets]
        assert [list(row) for row in traces[name].customdata] == [
            [bucket["accuracy"], bucket["masked_tokens"]] for bucket in buckets
        ]
    empty = {"unconditional": {"by_mask_ratio": [{**LIKELIHOOD["unconditional"]["by_mask_ratio"][0],
                                                  "cross_entropy": None}]}}  # fmt: skip
    assert list(figures.mask_ratio(empty).data[0].x) == []
    (matrix,) = classification_figures.confusion(CLASSIFICATION).data
    np.testing.assert_allclose(matrix.z, [[0.8, 0.2], [1 / 6, 5 / 6]], atol=1e-4)
    assert (list(matrix.x), list(matrix.y)) == (["x", "y"], ["x", "y"])
    assert matrix.hovertext[0][1] == "2 examples [1, 5]"
    diagonal, model, regression = classification_figures.reliability(CLASSIFICATION).data
    assert (list(diagonal.x), list(diagonal.y)) == ([0, 1], [0, 1])
    for trace, key in ((model, "model"), (regression, "logistic_regression")):
        bins = CLASSIFICATION[key]["reliability"]
        assert list(trace.x) == [entry["confidence"] for entry in bins]
        assert np.array(points(trace)) == shown(*(entry["accuracy"] for entry in bins))
        assert list(trace.customdata) == [entry["examples"] for entry in bins]


def test_each_figure_has_the_name_of_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function is replaced by one that returns its own name and its arguments."""
    drawn_by = {
        "plot_calls": (inversion_figures, "calls", "inversion"),
        "plot_length": (inversion_figures, "by_length", "inversion"),
        "plot_baselines": (inversion_figures, "baselines", "inversion"),
        "plot_sts": (latent_figures, "sts_scores", "sts"),
        "plot_sts_scatter": (latent_figures, "sts_scatter", "sts"),
        "plot_mask_ratio": (figures, "mask_ratio", "likelihood"),
        "plot_cosine": (latent_figures, "cosine_histogram", "latents"),
        "plot_latent_spectrum": (latent_figures, "spectrum", "latents"),
        "plot_calibration": (latent_figures, "calibration", "latents"),
        "plot_confusion": (classification_figures, "confusion", "classification"),
        "plot_reliability": (classification_figures, "reliability", "classification"),
        "plot_training": (training_figures, "training", "log"),
        "plot_diagnostics": (training_figures, "diagnostics", "log"),
        "plot_comparison": (figures, "comparison_plot", "comparison"),
    }
    for module, name, _ in drawn_by.values():
        monkeypatch.setattr(module, name, lambda given, name=name, **more: (name, given, more))
    arguments: dict[str, Any] = {name: name for *_, name in drawn_by.values()}
    found = figures.all_figures(**arguments, smoothing=0.25)
    assert found == {
        plot: (name, given, {"smoothing": 0.25} if name == "training" else {})
        for plot, (_, name, given) in drawn_by.items()
    }


def test_figures_of_training() -> None:
    log: list[dict[str, Any]] = [
        {"step": step, "loss": 1 / step, "validation/loss": 2 / step, "text_loss": 3 / step, "grad_norm": 4 / step,
         "lr": 5 / step, "tokens_per_second": 6.0 * step, "text_accuracy": 0.5 / step, "mixed/text_loss": 7.0}
        for step in range(1, 31)
    ]  # fmt: skip
    log[4] |= {"loss": "nan", "grad_norm": 0.0}
    figure = training_figures.training(log, smoothing=0.5)
    curves: dict[str, list[Any]] = {}
    for trace in figure.data:
        curves.setdefault(trace.name, []).append(trace)
    assert "mixed/text_loss" not in curves
    assert {name: len(traces) for name, traces in curves.items()} == {
        "loss": 2, "validation/loss": 1, "text_loss": 2, "text_accuracy": 2, "grad_norm": 2, "lr": 1,
        "tokens_per_second": 2,
    }  # fmt: skip
    steps = [step for step in range(1, 31) if step != 5]
    assert list(curves["loss"][0].x) == steps, "a loss that is no number is left out"
    assert list(curves["loss"][0].y) == pytest.approx([1 / step for step in steps])
    assert list(curves["grad_norm"][0].x) == steps, "a logarithmic axis has no 0"
    assert list(curves["loss"][1].y) == pytest.approx(training_figures.smoothed([1 / s for s in steps], 0.5))
    assert curves["tokens_per_second"][0].y[3] == 24.0
    titles = [annotation.text.split("<br>")[0] for annotation in figure.layout.annotations]
    assert titles == ["loss", "parts of the loss", "accuracy", "gradient norm", "learning rate", "speed"]
    axes = [figure.layout[f"yaxis{place or ''}"] for place in ("", 2, 3, 4, 5, 6)]
    assert [axis.type for axis in axes] == ["linear", "log", "linear", "log", "linear", "linear"]
    assert [axis.title.text for axis in axes] == [
        "loss", "loss", "fraction correct", "norm before clipping", "learning rate", "tokens per second"
    ]  # fmt: skip
    where = {trace.name: trace.yaxis for trace in figure.data}
    assert where == {"loss": "y", "validation/loss": "y", "text_loss": "y2", "text_accuracy": "y3", "grad_norm": "y4",
                     "lr": "y5", "tokens_per_second": "y6"}  # fmt: skip
    assert training_figures.smoothed([1.0, 3.0, 2.0], 0.5) == pytest.approx([1.0, 3.5 / 1.5, 3.75 / 1.75])
    plain = training_figures.training(log[:20], smoothing=0.5)
    assert sum(trace.name == "loss" for trace in plain.data) == 1, "few points are not smoothed"


def test_the_noise_and_the_statistics_that_an_objective_logs_have_panels() -> None:
    line = {"masking_rate": 0.5, "noise_level": 0.4, "curriculum_stage": 1.0, "importance_mean": 0.5,
            "importance_std": 0.1, "grad_norm_max": 2.0, "mixed/importance_mean": 9.0}  # fmt: skip
    figure = training_figures.training([{"step": step, **line} for step in (1, 2)])
    titles = [annotation.text.split("<br>")[0] for annotation in figure.layout.annotations]
    assert titles == ["noise", "stage", "importance"]
    assert {trace.name: trace.yaxis for trace in figure.data} == {
        "noise_level": "y", "masking_rate": "y", "curriculum_stage": "y2", "importance_mean": "y3",
        "importance_std": "y3",
    }  # fmt: skip


def test_the_noise_is_not_called_a_mask_ratio() -> None:
    """Half of the processes have other noise than [MASK]."""
    assert figures.mask_ratio(LIKELIHOOD).layout.xaxis.title.text == "noise level"


def test_fractions_beside_a_headline_have_a_space_before_the_sign() -> None:
    metrics = {"classification.accuracy": 0.5, "baseline.logistic_regression.accuracy": 0.417,
               "caption_to_image.accuracy": 0.5, "images.classifier_accuracy": 0.993}  # fmt: skip
    first, second = cards.cards(metrics)
    assert first.note.endswith("logistic regression on the latents 41.7 %")
    assert second.note.endswith("real held-out images 99.3 %")


def test_bars_reach_from_low_to_high() -> None:
    bars = theme.bars([{"value": 0.5, "low": 0.2, "high": 0.9}, {"value": 0.5, "low": 0.6, "high": 0.4}], "red")
    assert (bars["array"], bars["arrayminus"]) == (pytest.approx([0.4, 0.0]), pytest.approx([0.3, 0.0]))
    assert (bars["symmetric"], bars["color"]) == (False, "red")


def test_shades_pass_through_all_colours_from_the_first_to_the_last() -> None:
    first, middle, last = theme._SHADES
    assert theme.shades(1) == [first]
    assert theme.shades(2) == [first, last]
    assert theme.shades(5)[::2] == [first, middle, last]
    (a, between, b) = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in theme.shades(5)[:3])
    assert between == [round((x + y) / 2) for x, y in zip(a, b, strict=True)]


def table_line(metric: str, label: str) -> dict[str, Any]:
    values = [{**interval(), "note": note} for note in ("exact", "NELBO")]
    return {"metric": metric, "label": label, "values": values}


COMPARISON = {
    "runs": ["ours", "theirs"],
    "table": [table_line("l2t.exact_match", "Exact match"), table_line("nll.per_token", "Nats"),
              table_line("perplexity", "Perplexity")],
    "paired": {"theirs": {"likelihood": {"sentences": 1234, "fewest_sentences": 30, "note": "a note", "differences": {
        "nats_per_token": {"a": 0.125, "b": 0.25, "p": 0.03125, "clear": True, "verdict": "significant",
                           "difference": {"value": 0.5, "low": 0.375, "high": 0.75}},
    }}}},
}  # fmt: skip


def test_figure_of_the_comparison() -> None:
    figure = figures.comparison_plot(COMPARISON)
    exact, nats, _ = COMPARISON["table"]
    assert [annotation.text for annotation in figure.layout.annotations] == ["cost", "fractions and cosines"]
    found = [(trace.name, list(trace.x), list(trace.text)) for trace in figure.data]
    assert found == [
        ("ours", ["Nats"], ["exact"]), ("theirs", ["Nats"], ["NELBO"]), ("ours", ["Exact match"], ["exact"]),
        ("theirs", ["Exact match"], ["NELBO"]),
    ]  # fmt: skip
    for trace, cell in zip(figure.data, (*nats["values"], *exact["values"]), strict=True):
        assert np.array(points(trace)) == shown(cell)


def test_page_and_figures_of_a_comparison_of_members() -> None:
    runs = [
        {"run": f"{member}, {seed}", "member": member,
         "curves": {"loss": [(10 * i, place + 1 / i) for i in range(1, 4)], "text_nll": [(5, place + 9.0)]}}
        for place, (member, seed) in enumerate([("a", 0), ("a", 1), ("b", 0)])
    ]  # fmt: skip
    traces = comparison_page.curves(runs, smoothing=0.5).data
    by_place = {(trace.name, trace.xaxis): trace for trace in traces}
    for place, run in enumerate(runs):
        assert list(by_place[run["run"], "x"].y) == [place + 9.0]
        assert list(by_place[run["run"], "x2"].x) == [10, 20, 30]
        assert list(by_place[run["run"], "x2"].y) == pytest.approx([place + 1, place + 1 / 2, place + 1 / 3])
    for count, smooth in ((20, False), (21, True)):
        values = [float((7 * i) % 5) for i in range(count)]
        run = {"run": "a, 0", "member": "a", "curves": {"loss": [(i, value) for i, value in enumerate(values)]}}
        (trace,) = comparison_page.curves([run], smoothing=0.25).data
        assert list(trace.y) == pytest.approx(training_figures.smoothed(values, 0.25) if smooth else values)
    colours = [by_place[run["run"], "x2"].line.color for run in runs]
    assert colours[0] == colours[1] != colours[2]

    def entry(verdict: str, **difference: float) -> Any:
        nats = {"nats_per_token": {"difference": difference, "verdict": verdict}}
        return {"differences": {"likelihood": {"differences": nats}}}

    paired = {"b": entry("significant", value=0.5, low=0.25, high=1.0), "c": entry("too few", value=1, low=1, high=1)}
    (trace,) = comparison_page.differences(paired).data
    assert list(trace.y) == ["b"]
    assert points(trace, "x") == [(0.5, 0.25, 1.0)]
    row = {
        "member": "b", "seed": 3, "environment": "mdlm", "status": "finished", "report": "r.html",
        "parameters": 1234567.0, "steps": 321, "tokens": 76543, "training_seconds": 61.0, "tokens_per_second": 4321.5,
        "nats_per_token": 1.5, "nats_per_token_low": 1.25, "nats_per_token_high": 1.75, "likelihood": "NELBO",
        "difference": -0.5, "difference_low": -0.75, "difference_high": -0.25,
    }  # fmt: skip
    assert comparison_page._shown(row, "b") == {
        "member": "b", "seed": 3, "environment": "mdlm", "failed": False, "reference": True, "report": "r.html",
        "parameters": "1,234,567", "steps": "321", "tokens": "76,543", "seconds": "61 s", "rate": "4,322",
        "cost": "1.500 [1.250, 1.750]", "likelihood": "NELBO", "difference": "-0.500 [-0.750, -0.250]",
    }  # fmt: skip
    bare = comparison_page._shown({"member": "c", "seed": 0, "environment": "", "status": "failed"}, "b")
    assert (bare["failed"], bare["reference"], bare["cost"], bare["seconds"]) == (True, False, "–", "–")


# -- the page --------------------------------------------------------------------------------------------------------

INPUTS = ReportInputs(
    title="T", run={"name": "run-a", "path": "runs/run-a", "step": 98765, "fingerprint": "abc"}, run_config={},
    metrics={"l2t.exact_match": 0.5}, inversion=INVERSION, sts=STS, likelihood=LIKELIHOOD, latents=LATENTS,
    generation=GENERATION, classification=CLASSIFICATION, images=IMAGES, comparison=COMPARISON,
    inversion_rows=pd.DataFrame({"id": [], "reference": []}), unconditional=pd.DataFrame(),
    ingestion_report={"rows_in": 1001, "accepted": 902, "duplicates": 63, "quarantined": 36,
                      "splits": {"train": 803, "test": 99}, "tokens": {"vocab_size": 512, "base_vocab_size": 2048}},
    timings={"training": 61.0, "sampling": 7.0}, parameters={"evaluation": {"bootstrap": {"replicates": 2222}}}, seed=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def shown_page() -> SimpleNamespace:
    """The rendered page as rows of cells, by their first cell, and as text without tags."""
    rendered = page.render(INPUTS, {})
    body = re.sub(r"<(style|script).*?</\1>", "", rendered, flags=re.DOTALL)

    def plain(text: str) -> str:
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())

    rows = [
        [plain(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", body, flags=re.DOTALL)
    ]
    return SimpleNamespace(rows=rows, text=plain(body))


def row_of(shown_page: Any, label: str, *, columns: int) -> list[str]:
    (found,) = [row[1:] for row in shown_page.rows if row[0] == label and len(row) == columns + 1]
    return found


def test_table_of_inversion(shown_page: Any) -> None:
    labels = {
        "Exact match": ("exact_match", "fraction"), "Token accuracy": ("token_accuracy", "fraction"),
        "Token-set F1 (vec2text)": ("token_set_f1", "fraction"), "BLEU, corpus": ("bleu", "points"),
        "BLEU, mean of sentences": ("sentence_bleu", "points"), "chrF": ("chrf", "points"),
        "ROUGE-L": ("rouge_l", "fraction"), "Cosine, re-embedded": ("cosine", "cosine"),
        "Exact match, as written": ("exact_match_as_written", "fraction"),
        "Token-set F1, as written": ("token_set_f1_as_written", "fraction"),
        "BLEU, as written": ("bleu_as_written", "points"),
    }  # fmt: skip
    sources = [INVERSION["metrics"], *(entry["metrics"] for entry in INVERSION["baselines"].values())]
    assert ["", "model", "nearest", "bag"] in shown_page.rows
    for label, (key, kind) in labels.items():
        assert row_of(shown_page, label, columns=3) == [spelled(metrics.get(key), kind) for metrics in sources]
    memory = INVERSION["memorised"]
    for words in (
        f"{percent(memory['outputs'], 2)} of the outputs are training sentences",
        f"of the 17 outputs that are wrong, {percent(memory['wrong_outputs'], 1)} are",
        f"Of the held-out sentences themselves {percent(memory['references'], 2)} occur",
        ": the split leaks", "Inversion is measured on 1,234 held-out sentences", "(2,222 resamples, seeded)",
        "divided by that of one,",
    ):  # fmt: skip
        assert words in shown_page.text, words


def test_table_of_the_sweep(shown_page: Any) -> None:
    for line in INVERSION["sweep"]:
        assert row_of(shown_page, line["label"], columns=8) == [
            f"{line['model_calls']:.1f}", f"{line['encoder_calls']:.1f}", f"{line['sentences_per_second']:.1f}",
            spelled(line["exact_match"], "fraction"), spelled(line["exact_ratio"], "fraction"),
            spelled(line["token_accuracy"]["value"], "fraction"), spelled(line["bleu"]["value"], "points"),
            spelled(line["cosine"]["value"], "cosine"),
        ]  # fmt: skip


def test_table_of_latents(shown_page: Any) -> None:
    for label, name in (("model", "model"), ("one-step regression", "one_step")):
        entry = LATENTS["samplers"][name]
        rank = entry["retrieval"]
        assert row_of(shown_page, label, columns=8) == [
            spelled(entry["cosine"], "cosine"), spelled(entry["squared_error_fraction"]["value"], "cosine"),
            spelled(rank["at_1"], "fraction"), spelled(rank["at_5"]["value"], "fraction"),
            spelled(rank["at_10"]["value"], "fraction"), spelled(rank["mean_reciprocal_rank"]["value"], "cosine"),
            spelled(entry["neighbourhoods"]["rank_correlation"]["value"], "cosine"), f"{entry['frechet']:.4f}",
        ]  # fmt: skip
    for words in (
        "Retrieval is among 4,321 candidates",
        f"With 2 samples per text, spread ÷ error is {LATENTS['calibration']['spread_to_error']:.2f}",
        f"at a Fréchet distance of {LATENTS['unconditional_frechet']:.4f} from real ones",
        f"of other sentences lie at {LATENTS['real_frechet']:.4f}",
    ):
        assert words in shown_page.text, words


def test_table_of_sts(shown_page: Any) -> None:
    rows = [row for row in shown_page.rows if len(row) == 9 and row[2] in ("encoder", "one-step regression", "model")]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("news", "1,357", "encoder"), ("", "", "one-step regression"), ("", "", "model"), ("other", "24", "encoder"),
    ]  # fmt: skip
    sources = [STS["sets"]["news"]["scores"][name] for name in ("encoder", "one_step", "model")]
    sources.append(STS["sets"]["other"]["scores"]["encoder"])
    means = [row for row in shown_page.rows if len(row) == 6 and row[2] == "mean over subsets"]
    for row, mean, entry in zip(rows, means, sources, strict=True):
        similar = entry["by_similarity"]
        assert row[3:] == [
            spelled(entry["spearman"], "plain"), spelled(entry["pearson"], "plain"),
            *(f"{similar[name]['spearman']:.2f}" for name in ("manhattan", "euclidean", "dot")),
            spelled(entry["ratio"], "fraction"),
        ]  # fmt: skip
        subsets = " · ".join(f"{name} {value:.1f}" for name, value in entry["subset_spearman"].items())
        assert mean[3:] == [
            f"{entry['mean_spearman']:.2f}", f"{entry['mean_pearson']:.2f}",
            f"weighted {entry['weighted_mean_spearman']:.2f} · {subsets}",
        ]  # fmt: skip
    assert "3 sentences were truncated" in shown_page.text


def test_tables_of_likelihood_and_generation(shown_page: Any) -> None:
    parts = {"unconditional": LIKELIHOOD["unconditional"], "given the latent": LIKELIHOOD["given_latent"]}
    zero = LIKELIHOOD["zero_shot"]["wiki"]
    parts |= {"wiki, unconditional": zero["unconditional"], "wiki, given the latent": zero["given_latent"]}
    for label, part in parts.items():
        assert row_of(shown_page, label, columns=4) == [
            spelled(part["per_token"], "nats"), spelled(part["perplexity"], "plain"),
            spelled(part["length_per_sentence"], "nats"), "NELBO (upper bound)",
        ]  # fmt: skip
    bits = LIKELIHOOD["latent_bits"]
    for words in (
        "432 held-out sentences", "estimated from 6 draws per sentence",
        f"saves {spelled(bits['per_sentence'], 'plain')} bits per sentence and {spelled(bits['per_token'], 'plain')} "
        "bits per token",
        f"wiki: 98 sentences with {percent(zero['unknown_fraction'])} unknown tokens; 21 lines were left out",
        f"covers 77 generated texts , of which {percent(GENERATION['empty'])} are empty",
        f"; {percent(GENERATION['memorised'])} of them are training sentences",
        f"MAUVE is {GENERATION['mauve']:.3f}",
    ):  # fmt: skip
        assert words.replace(" ,", ",") in shown_page.text.replace(" ,", ","), words
    for label, key in (("generated", "generated"), ("held-out text", "real")):
        entry = GENERATION[key]
        assert row_of(shown_page, label, columns=10) == [
            f"{entry['entropy_sample']:.3f}", f"{entry['entropy_corpus']:.3f}",
            *(f"{entry['distinct'][n]:.3f}" for n in "1234"), f"{entry['self_bleu']:.1f}",
            percent(entry["unique"]), spelled(entry["attested_bigrams"], "fraction"),
            f"{entry['perplexity']:.2f}",
        ]  # fmt: skip


def test_tables_of_classes_and_images(shown_page: Any) -> None:
    for label, key in (("model", "model"), ("logistic regression on the latents", "logistic_regression")):
        entry = CLASSIFICATION[key]
        assert row_of(shown_page, label, columns=4) == [
            spelled(entry["accuracy"], "fraction"), spelled(entry["macro_f1"], "cosine"),
            spelled(entry["ece"], "cosine"), spelled(entry["nll"], "nats"),
        ]  # fmt: skip
    drawn, written, both = (IMAGES[task] for task in ("caption_to_image", "image_to_caption", "image_text"))
    near = drawn["nearest_training"]
    expected = {
        "Images of held-out captions": [
            "31", spelled(drawn["accuracy"], "fraction"), "–", "–", spelled(near["generated"], "cosine")
        ],
        "Captions of held-out images": [
            "32", *(spelled(written[key], "fraction") for key in ("accuracy", "exact_match", "attested")), "–"
        ],
        "Images and captions generated together": ["33", spelled(both["agreement"], "fraction"), "–", "–", "–"],
    }  # fmt: skip
    for label, cells in expected.items():
        assert row_of(shown_page, label, columns=5) == cells
    for words in (
        "16 examples of split test, 2 classes",
        f"{percent(CLASSIFICATION['model']['majority'])} of the examples",
        "fitted to 2,468 training examples", "trained on 111 real images",
        f"its accuracy on 222 real held-out images is {spelled(IMAGES['classifier']['real_accuracy'], 'fraction')}",
        f"have a distance of {spelled(near['real'], 'cosine')} to the nearest",
    ):  # fmt: skip
        assert words in shown_page.text, words


def test_training_data_comparison_and_provenance(shown_page: Any) -> None:
    for words in (
        "1,001 rows in = 902 accepted + 63 duplicates + 36 quarantined", "train 803 · test 99 .",
        "512 word pieces of the tokenizer's 2,048", "Time: training 61 s · sampling 7 s",
        "Seed 4 · run folder runs/run-a · step 98,765 · fingerprint abc", "likelihood, paired on 1,234 sentences",
        "a note", "This run − theirs",
    ):  # fmt: skip
        assert words.replace(" .", ".") in shown_page.text.replace(" .", "."), words
    assert row_of(shown_page, "nats per token", columns=5) == [
        "0.2500", "0.1250", "0.5000 [0.3750, 0.7500]", "0.031", "significant"
    ]  # fmt: skip
    for line in COMPARISON["table"]:
        cells = [
            f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}] {cell['note']}" for cell in line["values"]
        ]
        assert row_of(shown_page, line["label"], columns=2) == cells


# -- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89.4, "89 s"), (90, "1 min 30 s"), (421, "7 min 01 s"), (89 * 60 + 59, "89 min 59 s"),
     (90 * 60, "1 h 30 min"), (2 * 3600 + 5 * 60 + 59, "2 h 05 min")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert content.duration(seconds) == text


def test_numbers_in_words() -> None:
    assert spelled({"value": 0.5, "low": 0.25, "high": 0.75}, "fraction") == "50.0 % [25.0 %, 75.0 %]"
    assert spelled({"value": 0.5, "low": 0.5, "high": 0.5}, "points") == "0.5"
    assert spelled({"value": 0.5, "low": 0.5, "high": 0.6}, "nats") == "0.500 [0.500, 0.600]"
    assert (spelled(None, "plain"), spelled(2.346, "plain"), spelled(0.1234, "cosine")) == ("–", "2.35", "0.123")
    assert (percent(0.12345), percent(0.12345, 2)) == ("12.3 %", "12.35 %")


def test_examples_are_the_worst_and_the_nearest() -> None:
    rows = pd.DataFrame({
        "reference": list("abcdef"), "hypothesis": list("abxyzf"), "exact": [True, True, False, False, False, True],
        "matches": [4, 4, 1, 0, 1, 4], "positions": [4, 4, 4, 4, 4, 4], "cosine": [0.99, 0.98, 0.2, 0.9, 0.1, 0.97],
    })  # fmt: skip
    found = content.examples(rows, count=2, seed=3)
    assert [example.reference for example in found["worst"]] == ["d", "e"], "by accuracy, then by cosine"
    assert [example.reference for example in found["near"]] == ["d", "c"]
    assert [(e.accuracy, e.cosine) for e in found["worst"]] == [(0.0, 0.9), (0.25, 0.1)]
    assert len(found["any"]) == 2
    several = {tuple(e.reference for e in content.examples(rows, count=2, seed=s)["any"]) for s in range(9)}
    assert len(several) > 1


def test_events_and_findings_in_order() -> None:
    found = content.findings({"findings": [
        {"severity": name} for name in ("ok", "info", "warning", "odd", "error", "pass")
    ]})  # fmt: skip
    assert [item["severity"] for item in found] == ["error", "warning", "info", "odd", "ok", "pass"]
    events = [{"event": "skip", "step": 3, "time": 1.0, "reason": None, "examples": [4, 5], "parts": {"a": {"n": 1}}}]
    assert content.event_lines(events) == [("3", "skip", ["4", "5", "parts.a.n: 1"])]
    assert len(content.event_lines(events * 5, most=3)) == 3
    trains = [
        {"event": "trains", "parameters": 5},
        {"event": "skip", "parameters": 9},
        {"event": "trains", "parameters": 7},
    ]
    assert content.parameter_count(trains) == 7
    assert content.parameter_count([]) is None


@pytest.mark.parametrize(("count", "words"), [(1, "1 step was a spike"), (2000, "2,000 steps were spikes")])
def test_spikes_are_counted(count: int, words: str) -> None:
    events = [{"event": "spike"}] * count + [{"event": "skip"}]
    assert content.spikes(events, {}).startswith(f"{words}: the loss or the gradient norm was many")  # type: ignore[union-attr]
    assert "more than 7 robust" in str(content.spikes(events, {"training": {"guard": {"spike_z": 7.0}}}))
    assert content.spikes(events[-1:], {}) is None


def test_the_last_and_the_lowest_validation_loss() -> None:
    log = [{"step": step, "validation/loss": loss} for step, loss in ((10, 3.0), (20, 1.5), (30, "nan"), (40, 2.0))]
    assert str(content.validation_losses(log)).endswith("is 2.000 at step 40; its lowest value is 1.500, at step 20.")
    assert str(content.validation_losses(log[:2])).endswith("is 1.500 at step 20.")
    assert content.validation_losses([{"step": 1, "loss": 1.0}]) is None
