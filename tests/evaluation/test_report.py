"""The report page: complete, self-contained and escaped, also when parts of the run are missing."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.evaluation.compare import compare
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.inversion import by_length, score_rows, summarise
from mm_ldlm.evaluation.report import content, figures, inputs, page, theme, training_figures
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.evaluation.run_result import Result
from mm_ldlm.families.classification.metrics import measure

HOSTILE = "</script><script>alert(1)</script> <b>&amp; \"quoted\" 'x'"


def interval(value, spread=0.02):
    return {"value": value, "low": value - spread, "high": min(1.0, value + spread), "level": 0.95}


@pytest.fixture(scope="module")
def report_inputs():
    generator = np.random.default_rng(0)
    references = [[int(v) for v in generator.integers(0, 30, size=generator.integers(4, 14))] for _ in range(80)]
    outputs = [row if generator.random() < 0.8 else [*row[:-1], 31] for row in references]
    spell = [[" ".join(f"word{k}" for k in row) for row in some] for some in (references, outputs)]
    spell[0][0] = HOSTILE
    rows = score_rows(*spell, reference_ids=references, hypothesis_ids=outputs, cosine=generator.uniform(0.8, 1, 80))
    metrics = {k: v.as_dict() for k, v in summarise(rows, replicates=50).items()}
    line = {"sampler": "confidence", "steps": 1, "encoder_calls": 0.0, "seconds": 1.0, "sentences_per_second": 9.0}
    line |= {
        "exact_match": interval(0.7),
        "token_accuracy": interval(0.9),
        "bleu": {"value": 80.0, "low": 79.0, "high": 81.0},
    }
    line |= {"cosine": interval(0.95), "exact_ratio": interval(0.9), "reference": "ancestral"}
    estimate = {"value": 1.2, "standard_error": 0.01, "low": 1.18, "high": 1.22}
    fraction = [
        {
            "low": i / 5,
            "high": (i + 1) / 5,
            "cross_entropy": 0.5 + i,
            "accuracy": 0.5,
            "masked_tokens": 9,
            "draws": 9,
            "nats_per_token": 0.1,
        }
        for i in range(5)
    ]
    cost = {
        "per_token": estimate,
        "length_per_sentence": estimate,
        "perplexity": {"value": 3.3, "low": 3.2, "high": 3.4},
        "by_mask_ratio": fraction,
    }
    retrieval = dict.fromkeys(("at_1", "at_5", "at_10", "mean_reciprocal_rank"), interval(0.9)) | {"candidates": 1000}
    sampler = {
        "cosine": interval(0.93),
        "squared_error_fraction": interval(0.1),
        "retrieval": retrieval,
        "neighbourhoods": {"rank_correlation": interval(0.9)},
        "frechet": 0.01,
        "cosines": generator.uniform(0.8, 1, 80).tolist(),
    }
    score = {
        "spearman": {"value": 80.0, "low": 78.0, "high": 82.0},
        "pearson": {"value": 80.0, "low": 78.0, "high": 82.0},
        "by_similarity": {k: {"spearman": 80.0, "pearson": 80.0} for k in ("manhattan", "euclidean", "dot", "cosine")},
        "ratio": interval(0.97),
    }
    diversity = {
        "entropy_sample": 2.0,
        "entropy_corpus": 5.0,
        "distinct": {str(n): 0.5 for n in range(1, 5)},
        "self_bleu": 20.0,
        "unique": 1.0,
        "attested_bigrams": {"value": 0.8, "low": 0.7, "high": 0.9},
    }
    truth, probabilities = generator.integers(0, 2, 40), generator.dirichlet([1, 1], 40)
    classes = measure(truth, probabilities, names=[HOSTILE, "b"], bins=5, replicates=20, seed=0, level=0.95)
    return ReportInputs(
        title="MM-LDLM",
        run={"name": "run-<i>", "path": "data/runs/x", "step": 1200, "fingerprint": "abc"},
        run_config={
            "model": {"kind": "<some kind>", "depth": 4, "dim": 192},
            "objective": {"kind": "some_objective"},
            "encoder": {"name": "minilm"},
            "fingerprints": {"tokens": "123"},
        },
        metrics={
            "l2t.exact_match": 0.8,
            "l2t.exact_match.low": 0.75,
            "l2t.exact_match.high": 0.85,
            "nll.per_token": 1.2,
            "sts.starter.spearman": 80.0,
        },
        inversion={
            "sentences": 80,
            "metrics": metrics,
            "by_length": by_length(rows, edges=[6, 9]).to_dict(orient="records"),
            "sweep_sentences": 40,
            "sweep": [
                {**line, "label": "one", "model_calls": 1.0},
                {**line, "label": "ancestral", "model_calls": 20.0},
                {**line, "label": "search", "model_calls": 8.0, "encoder_calls": 4.0},
            ],
            "baselines": {"bag_of_words": {"metrics": metrics}},
            "memorised": {"outputs": 0.0, "wrong_outputs": 0.0, "wrong": 16, "references": 0.0},
        },
        sts={
            "sets": {
                "starter": {
                    "pairs": 480,
                    "scores": dict.fromkeys(("encoder", "model", "one_step"), score),
                    "scatter": {"gold": [0.0, 5.0], "encoder": [0.1, 0.9], "model": [0.2, 0.8], "one_step": [0.1, 0.2]},
                }
            }
        },
        likelihood={
            "likelihood": "bound",
            "sentences": 500,
            "draws": 4,
            "unconditional": cost,
            "given_latent": cost,
            "latent_bits": {"per_token": estimate, "per_sentence": estimate},
            "zero_shot": {
                "wiki": {"sentences": 9, "unknown_fraction": 0.1, "outside_length": 2, "unconditional": cost}
            },
        },
        latents={
            "samplers": {"model": sampler, "one_step": sampler},
            "spectrum": {"real": {"rows": 80, "effective_rank": 9.0, "eigenvalues": [1.0, 0.5, 0.1]}},
            "calibration": {"samples": 4, "spread_to_error": 0.7, "rank_fraction": [0.2] * 5},
        },
        generation={"texts": 20, "memorised": 0.05, "generated": diversity, "real": diversity},
        inversion_rows=rows,
        unconditional=pd.DataFrame({"text": [HOSTILE, "a text"]}),
        log=[
            {
                "step": s,
                "loss": 5 / s,
                "lr": 1e-3,
                "text_loss": 4 / s,
                "grad_norm/backbone": 1.0,
                "text_nll_t0": 1.0,
                "text_nll_t1": 2.0,
                "grad_norm": "nan" if s == 3 else 1.0,
            }
            for s in range(1, 60)
        ],
        events=[
            {"event": "skip", "step": 3, "reason": HOSTILE},
            {
                "event": "trains",
                "step": 0,
                "parameters": 1234000,
                "parts": {"backbone": {"trains": 1200000, "frozen": 34000}},
            },
        ],
        ingestion_report={
            "rows_in": 100,
            "accepted": 90,
            "duplicates": 6,
            "quarantined": 4,
            "splits": {"train": 80, "test": 10},
            "tokens": {"splits": {"train": {"rows": 80}, "test": {"rows": 10}}, "vocab_size": 400},
        },
        validation_report={
            "findings": [{"severity": "warning", "check": "norms", "message": HOSTILE, "count": 2, "remedy": "look"}]
        },
        classification={"split": "test", "classifies": "texts", "model": classes},
        timings={"training": 421.0},
        parameters={"seed": 0, "ingestion": {"sources": [{"kind": "starter"}]}, "evil": HOSTILE},
        examples=10,
    )


def draw(report_inputs):
    return figures.all_figures(
        inversion=report_inputs.inversion,
        sts=report_inputs.sts,
        likelihood=report_inputs.likelihood,
        latents=report_inputs.latents,
        classification=report_inputs.classification,
        log=report_inputs.log,
        comparison=report_inputs.comparison,
    )


@pytest.fixture(scope="module")
def html(report_inputs):
    return page.render(report_inputs, draw(report_inputs), made_at="today")


def without_library(html):
    return html.replace(page.plotly_source(), "")


def test_the_page_is_self_contained(html):
    rest = without_library(html)
    assert not re.findall(r"""(?:src|href)=["'](?!#)[^"']*""", rest), "nothing is fetched"
    assert "@import" not in rest
    assert "url(" not in rest
    assert html.count(page.plotly_source()) == 1


def test_everything_from_data_is_escaped(html):
    rest = without_library(html)
    assert "<script>alert(1)" not in rest
    assert "run-<i>" not in rest
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in rest


def test_a_figure_cannot_end_its_script():
    figure = theme.empty(HOSTILE)
    text = page.embedded_json(figure)
    assert "<" not in text
    assert ">" not in text


def test_headline_examples_and_provenance_are_there(html):
    for words in (
        "80.0 %",
        "75.0 % – 85.0 %",
        "1,200 steps",
        "1.2 M parameters (depth 4, dim 192)",
        "of kind “&lt;some kind&gt;”",
        "with the objective “some_objective”",
        "parts.backbone.frozen: 34000",
        "NELBO (upper bound)",
        "examples of starter",
        "7 min 01 s",
        "123",
        "norms",
        "90 accepted",
    ):
        assert words in html, words


def test_a_run_without_results_has_a_page(report_inputs):
    bare = ReportInputs(
        title="t",
        run={},
        run_config={},
        metrics={},
        inversion={"skipped": "not trained"},
        sts={},
        likelihood={},
        latents={},
        generation={},
        inversion_rows=pd.DataFrame({"id": [], "reference": []}),
        unconditional=pd.DataFrame(),
    )
    html = page.render(bare, draw(bare))
    assert "Left out: not trained" in html
    assert page.plotly_source() not in html, "no plot, no library"


def test_results_of_an_earlier_version_still_have_a_page(report_inputs):
    for name in ("generated", "real"):
        report_inputs.generation[name] = {
            k: v for k, v in report_inputs.generation[name].items() if k != "attested_bigrams"
        }
    assert '<td class="n">–</td>' in page.render(report_inputs, {}, made_at="now")


def test_differences_are_found_word_by_word():
    assert content.word_difference("a cat sat down", "a dog sat down") == [
        ("same", "a"),
        ("lost", "cat"),
        ("made", "dog"),
        ("same", "sat down"),
    ]
    assert content.word_difference("a b", "") == [("lost", "a b")]


def test_the_worst_examples_are_the_worst(report_inputs):
    found = content.examples(report_inputs.inversion_rows, count=5, seed=0)
    wrong = report_inputs.inversion_rows[~report_inputs.inversion_rows["exact"]]
    assert found["worst"][0].accuracy == pytest.approx((wrong["matches"] / wrong["positions"]).min())
    assert all(not e.exact for e in found["worst"])
    assert len(found["any"]) == 5


def test_smoothing_starts_without_bias():
    assert training_figures.smoothed([3.0, 3.0, 3.0], 0.9) == pytest.approx([3.0, 3.0, 3.0])


def test_every_plot_has_something_to_show(report_inputs):
    drawn = draw(report_inputs)
    assert [name for name, figure in drawn.items() if not figure.data] == ["plot_comparison"]


def test_quality_against_calls_offers_every_metric_that_all_points_have(report_inputs):
    figure = figures.inversion_figures.calls(report_inputs.inversion)
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == ["exact match", "token accuracy", "BLEU", "cosine"]
    chosen = figure.layout.updatemenus[0].buttons[2]
    assert [len(values) for values in chosen.args[0]["y"]] == [2, 1], "model alone, and search"


def test_diagnostics_are_grouped_by_what_the_log_contains(report_inputs):
    figure = training_figures.diagnostics(report_inputs.log)
    assert [trace.name for trace in figure.data] == ["grad_norm/backbone", "text_nll_t0", "text_nll_t1"]
    assert "text nll by noise level" in figure.layout.annotations[1].text
    losses = [{"step": s, "some_new_loss": 1 / s, "validation/some_new_loss": 1.0} for s in range(1, 4)]
    assert [trace.name for trace in training_figures.training(losses).data] == ["some_new_loss"]


def test_every_axis_has_a_title(report_inputs):
    ours = Result("ours", report_inputs.metrics, report_inputs.inversion_rows)
    found = compare(ours, [ours], bootstrap=BootstrapConfig(replicates=50), seed=0)
    for name, figure in draw(dataclasses.replace(report_inputs, comparison=found)).items():
        assert figure.data, name
        axes = [*figure.select_xaxes(), *figure.select_yaxes()]
        assert all(axis.title.text for axis in axes if axis.visible is not False), name


def test_the_lines_of_a_diagnostic_are_named_in_order_and_have_colours_of_their_own():
    log = [{"step": s, **{f"activation_rms/block{b}": 1.0 + b for b in range(12)}} for s in range(3)]
    figure = training_figures.diagnostics(log)
    assert [trace.name for trace in figure.data] == [f"activation_rms/block{b}" for b in range(12)]
    colours = [trace.line.color for trace in figure.data]
    assert len(set(colours)) == 12
    title = figure.layout.annotations[0].text
    assert re.findall(r'color:(#\w+)">block(\d+)<', title) == [(c, str(b)) for b, c in enumerate(colours)]


def test_spikes_and_validation_losses_are_described(report_inputs):
    events = [{"event": "spike", "step": 2, "reason": "x"}] * 27
    log = [{"step": s, "validation/loss": v} for s, v in ((400, 3.0), (800, 2.5), (1200, 2.625))]
    parameters = {**report_inputs.parameters, "training": {"guard": {"spike_z": 10.0}}}
    html = page.render(dataclasses.replace(report_inputs, events=events, log=log, parameters=parameters), {})
    assert "27 steps were spikes: the loss or the gradient norm was more than 10 robust standard deviations" in html
    assert "is 2.625 at step 1,200; its lowest value is 2.500, at step 800." in html
    plain = page.render(report_inputs, {})
    assert content.event_lines([{"event": "preview", "step": 1, "text": "a bird"}] * 300 + events[:1]) == [
        ("2", "spike", ["reason: x"])
    ], "sentences that were shown leave room for events"
    assert "spikes" not in without_library(plain)
    assert "validation loss" not in without_library(plain)


def test_fractions_are_spelled_in_one_way(html):
    text = re.sub(r"<style>.*?</style>|<script.*?</script>|style=\"[^\"]*\"", "", html, flags=re.DOTALL)
    assert re.search(r"\d %", text)
    assert not re.findall(r"\d%", text)


def test_other_runs_are_compared_in_the_report(report_inputs):
    ours = Result("ours", report_inputs.metrics, report_inputs.inversion_rows)
    theirs = Result("theirs<i>", {"l2t.exact_match": 0.5}, report_inputs.inversion_rows)
    found = compare(ours, [theirs], bootstrap=BootstrapConfig(replicates=50), seed=0)
    compared = dataclasses.replace(report_inputs, comparison=found)
    html = page.render(compared, draw(compared))
    assert "This run − theirs&lt;i&gt;" in html
    assert "inversion, paired on 80 sentences" in html
    assert "not significant" in html
    assert draw(compared)["plot_comparison"].data


# -- text-only runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text_only_inputs(report_inputs):
    """A run without latents: it scores texts exactly and generates."""
    cost = {key: value for key, value in report_inputs.likelihood["unconditional"].items() if key != "by_mask_ratio"}
    cost |= {"length_per_sentence": {"value": 0.0, "standard_error": 0.0, "low": 0.0, "high": 0.0}}  # an end token
    likelihood = {"likelihood": "exact", "sentences": 500, "draws": None, "left_out": [], "unconditional": cost}
    diversity = report_inputs.generation["generated"] | {"attested_bigrams": interval(0.8)}
    generation = {"texts": 20, "empty": 0.1, "memorised": 0.05, "generated": diversity, "real": diversity}
    return dataclasses.replace(
        report_inputs,
        run_config={"model": {"kind": "causal", "depth": 4, "dim": 192}, "objective": {"kind": "autoregressive"}},
        metrics={"nll.exact": 1.0, "nll.per_token": 1.2, "unconditional.attested_bigrams": 0.8},
        inversion={"skipped": "this run cannot write texts from latents (l2t): it was trained with X. It can: score."},
        latents={"skipped": "this run cannot embed texts (t2l): it was trained with X. It can: score."},
        sts={"skipped": "this run cannot embed texts (t2l): it was trained with X. It can: score.", "sets": {}},
        likelihood=likelihood | {"zero_shot": {}},
        generation=generation,
        inversion_rows=pd.DataFrame({"id": [], "reference": []}),
    )


def test_a_text_only_run_reads_as_a_language_model(text_only_inputs):
    html = without_library(page.render(text_only_inputs, draw(text_only_inputs)))
    text = re.sub(r"<style>.*?</style>|<script.*?</script>", "", html, flags=re.DOTALL)
    for words in (
        "A model of kind “causal” with 1.2 M parameters",
        "exact negative log-likelihood; perplexity 3.32",
        "Attested word pairs",
        "10.0 % are empty",
        '<td class="n">in the tokens</td>',
        "<b>From latent to text.</b> Left out: this run cannot write texts from latents (l2t)",
        "It can: score.</p>",
        'href="#likelihood"',
        'href="#generation"',
        'data-plot="plot_training"',
    ):
        assert words in text, words
    for words in (
        "#inversion",
        "#embedding",
        "#examples",
        "plot_mask_ratio",
        "upper bound",
        "given the latent",
        "draws per",
    ):
        assert words not in text, words
    assert text.count("Left out: ") == 3


@pytest.mark.parametrize(("level", "words"), [(None, "95 %"), (0.9, "90 %"), (0.999, "99.9 %")])
def test_the_level_of_the_intervals_is_that_of_the_evaluation(text_only_inputs, level, words):
    bootstrap = {"replicates": 77} if level is None else {"replicates": 77, "level": level}
    inputs = dataclasses.replace(text_only_inputs, parameters={"evaluation": {"bootstrap": bootstrap}})
    html = without_library(page.render(inputs, {}))
    assert f"Intervals are {words} percentile bootstrap intervals over sentences or pairs (77 resamples" in html


def test_the_sampler_of_the_texts_from_noise_is_that_of_their_table(text_only_inputs):
    sampler = {"kind": "remdm<i>", "steps": 37, "temperature": 0.9, "top_k": None}
    parameters = {"text": {"kind": "confidence", "steps": 4}, "unconditional": {"count": 64, "text": sampler}}
    drawn = text_only_inputs.unconditional.copy()
    drawn.attrs = {"made_by": {"run": "run-1", "parameters": parameters}}
    html = without_library(page.render(dataclasses.replace(text_only_inputs, unconditional=drawn), {}))
    assert "Text sampler: remdm&lt;i&gt; (steps 37, temperature 0.9).</p>" in html
    assert "Text sampler" not in without_library(page.render(text_only_inputs, {}))


def test_the_first_sentence_names_the_process_and_counts_the_parameters_of_the_model(text_only_inputs):
    config = {"model": {"kind": "dit"}, "objective": {"kind": "text_diffusion", "process": {"kind": "sedd"}}}
    event = {"event": "trains", "step": 0, "parameters": 2_200_000, "objective_parameters": 1_800_000}
    inputs = dataclasses.replace(text_only_inputs, run_config=config, events=[event])
    assert content.lede(inputs).startswith(
        "A model of kind “dit” with 0.4 M parameters was trained with the objective “text_diffusion” and the process "
        "“sedd” (1.8 M further parameters) on "
    )
    head = dataclasses.replace(inputs, events=[event | {"objective_parameters": 900}])
    assert "further parameters" not in content.lede(head)


def test_sentences_about_numbers_that_a_run_lacks_are_left_out(report_inputs):
    """Generative perplexity without a causal model, one draw, the label of a classifier."""
    one = dataclasses.replace(
        report_inputs,
        generation={key: value for key, value in report_inputs.generation.items() if key != "generated"}
        | {"generated": {k: v for k, v in report_inputs.generation["generated"].items() if k != "perplexity"}},
        likelihood=report_inputs.likelihood | {"draws": 1},
        run_config=report_inputs.run_config | {"objective": {"kind": "classification", "label": "a.b:<words>"}},
    )
    html = without_library(page.render(one, {}))
    assert "Generative perplexity" not in html
    assert "1 draw per sentence" in html
    assert "The label is <code>a.b:&lt;words&gt;</code>." in html


def test_the_report_names_no_component():
    """It describes a run by its configuration: no model, objective or mode occurs in the code or in the template."""
    folder = Path(page.__file__).parent
    files = [*folder.glob("*.py"), *(folder / "templates").glob("*")]
    for file in files:
        found = re.findall(
            r"(?i)\b(mmdit|dit|causal|multimodal|text_diffusion|autoregressive|absorbing)\b", file.read_text()
        )
        assert not found, (file.name, found)


def test_exact_and_bounded_costs_are_labelled_in_the_comparison(text_only_inputs):
    rows = pd.DataFrame({"id": [f"i{i}" for i in range(50)], "tokens": 5, "nll": np.linspace(4, 6, 50)})
    ours = Result("ar", text_only_inputs.metrics, likelihood_rows=rows)
    bounded = Result("mdlm", {"nll.exact": 0.0, "nll.per_token": 1.4}, likelihood_rows=rows.assign(nll=rows["nll"] + 1))
    found = compare(ours, [bounded], bootstrap=BootstrapConfig(replicates=50), seed=0)
    compared = dataclasses.replace(text_only_inputs, comparison=found)
    drawn = draw(compared)
    html = page.render(compared, drawn)
    assert "1.200 <small>exact</small>" in html
    assert "1.400 <small>NELBO</small>" in html
    assert "likelihood, paired on 50 sentences" in html
    assert "The cost of the other run is an upper bound (NELBO)" in html
    assert [trace.text[0] for trace in drawn["plot_comparison"].data[:2]] == ["exact", "NELBO"]


def test_the_times_of_a_run_are_those_of_its_own_log(tmp_path):
    """The pipeline `training` takes no time where it finds the run finished."""
    others = {"sampling": 5.0, "training": 0.25}
    assert inputs.own_timings(tmp_path, others) == {"sampling": 5.0}
    assert (inputs.run_config(tmp_path), inputs.training_log(tmp_path), inputs.training_events(tmp_path)) == (
        {},
        [],
        [],
    )
    lines = [
        {"step": 0, "event": "trains", "seconds": 7777.0}, {"step": 1, "loss": 3.0, "seconds": 40.0},
        {"step": 2, "loss": 2.0, "seconds": 90.0}, {"step": 3, "loss": 1.0},
    ]  # fmt: skip
    (tmp_path / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "config.json").write_text('{"model": {"kind": "dit"}}')
    assert inputs.own_timings(tmp_path, others) == {"sampling": 5.0, "training": 90.0}
    assert [line["step"] for line in inputs.training_log(tmp_path)] == [1, 2, 3]
    assert [event["event"] for event in inputs.training_events(tmp_path)] == ["trains"]
    assert inputs.run_config(tmp_path) == {"model": {"kind": "dit"}}
