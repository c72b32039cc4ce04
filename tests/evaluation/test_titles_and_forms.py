"""Titles, axes, forms and orders of every panel, menu and table of the report, each written out here once more."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mm_ldlm.evaluation.report import comparison_page, content, figures, inversion_figures, theme, training_figures


def headings(figure: Any) -> list[str]:
    """The titles of the panels, without the names of their lines."""
    return [re.sub(r"<.*", "", each.text) for each in figure.layout.annotations]


# Key of a line of the log → title of its panel, title of its axis, scale
PANELS = {
    "loss": ("loss", "loss", "linear"),
    "validation/loss": ("loss", "loss", "linear"),
    "text_loss": ("parts of the loss", "loss", "log"),
    "latent_loss": ("parts of the loss", "loss", "log"),
    "text_accuracy": ("accuracy", "fraction correct", "linear"),
    "grad_norm": ("gradient norm", "norm before clipping", "log"),
    "lr": ("learning rate", "learning rate", "linear"),
    "tokens_per_second": ("speed", "tokens per second", "linear"),
    "noise_level": ("noise", "noise level; fraction of masks", "linear"),
    "masking_rate": ("noise", "noise level; fraction of masks", "linear"),
    "curriculum_stage": ("stage", "stage", "linear"),
}
DIAGNOSTICS = {
    "grad_norm/head": ("gradient norm by part", "norm", "log"),
    "update_ratio/head": ("update ÷ weight by part", "ratio", "log"),
    "attention_logit_max/block3": ("largest attention logit by block", "logit", "linear"),
    "activation_rms/block3": ("activation RMS by block", "RMS", "linear"),
    "text_nll_t3": ("text nll by noise level (t0: least noise)", "text nll", "linear"),
    "latent_error_t12": ("latent error by noise level (t0: least noise)", "latent error", "linear"),
}


@pytest.mark.parametrize(
    ("draw", "table"), [(training_figures.training, PANELS), (training_figures.diagnostics, DIAGNOSTICS)]
)
def test_each_key_of_the_log_is_in_the_panel_of_its_title_its_axis_and_its_scale(draw: Any, table: Any) -> None:
    others = {**PANELS, **DIAGNOSTICS}.keys() - table.keys()
    for key, (title, axis, scale) in table.items():
        figure = draw([{"step": step, key: 0.5} for step in (1, 2)])
        assert headings(figure) == [title]
        assert (figure.layout.yaxis.title.text, figure.layout.yaxis.type) == (axis, scale)
        assert [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data] == [(key, [1, 2], [0.5, 0.5])]
    for key in (*others, "mixed/text_loss", "mixed/grad_norm", "seconds", "a_mean", "text_nll_t", "Text_t1", "lrs"):
        assert draw([{"step": 1, key: 0.5}]) is None, key


def test_the_panels_of_a_training_are_in_a_fixed_order() -> None:
    line = dict.fromkeys(reversed(PANELS), 0.5) | {"b_std": 1.0, "b_max": 1.0, "a_min": 1.0, "a_mean": 1.0}
    figure: Any = training_figures.training([{"step": step, **line} for step in (1, 2)])
    assert headings(figure) == [*dict.fromkeys(title for title, *_ in PANELS.values()), "a", "b"]
    names: dict[str, list[str]] = {}
    for trace in figure.data:
        names.setdefault(trace.yaxis, []).append(trace.name)
    assert names["y"] == ["loss", "validation/loss"]
    assert names["y2"] == ["latent_loss", "text_loss"]
    assert (names["y9"], names["y10"]) == (["a_mean", "a_min"], ["b_max", "b_std"])
    fonts = {(each.font.size, each.font.color) for each in figure.layout.annotations}
    assert fonts == {(12, theme.INK)}


METRICS = {
    "exact_match": ("exact match", ".0%"), "token_accuracy": ("token accuracy", ".0%"),
    "token_set_f1": ("token F1", ".0%"), "bleu": ("BLEU", ".0f"), "chrf": ("chrF", ".0f"),
    "rouge_l": ("ROUGE-L", ".0%"), "cosine": ("cosine", ".2f"),
}  # fmt: skip


def test_the_menu_of_metrics_has_titles_and_forms_in_a_fixed_order() -> None:
    number = {"value": 0.5, "low": 0.25, "high": 0.75}
    line = {"label": "a", "reference": "a", "model_calls": 1.0, "encoder_calls": 0.0, "sentences_per_second": 1.0,
            **dict.fromkeys(reversed(METRICS), number), "sentence_bleu": number}  # fmt: skip
    figure: Any = inversion_figures.calls({"sweep": [line]})
    found = [(button.label, button.args[1]["yaxis.title.text"], button.args[1]["yaxis.tickformat"])
             for button in figure.layout.updatemenus[0].buttons]  # fmt: skip
    assert found == [(title, title, form) for title, form in METRICS.values()]


def test_each_key_of_the_curves_of_members_has_its_title() -> None:
    def run(*keys: str) -> dict[str, Any]:
        return {"run": "a, 0", "member": "a", "curves": {key: [(1.0, 2.0)] for key in keys}}

    both = ["nats per scored token", "loss"]
    for keys, titles in ((("loss", "text_nll"), both), (("loss",), both[1:]), (("text_nll", "other"), both[:1])):
        figure = comparison_page.curves([run(*keys)], smoothing=0.5)
        assert figure is not None
        assert headings(figure) == titles
    assert comparison_page.curves([run("other")], smoothing=0.5) is None
    assert comparison_page.curves([], smoothing=0.5) is None


def test_the_numbers_of_a_comparison_are_drawn_in_a_fixed_order() -> None:
    costs = ["nll.per_token", "nll.given_latent.per_token"]
    fractions = ["l2t.exact_match", "l2t.token_accuracy", "l2t.token_set_f1", "l2t.cosine", "t2l.cosine",
                 "t2l.retrieval.at_1", "unconditional.attested_bigrams", "unconditional.distinct_2"]  # fmt: skip
    cell = {"value": 0.5, "low": None, "high": None, "note": ""}
    keys = [*reversed(fractions), "perplexity", *reversed(costs), "l2t.bleu"]
    table = [{"metric": key, "label": f"label of {key}", "values": [cell]} for key in keys]
    figure: Any = figures.comparison_plot({"runs": ["a"], "table": table})
    assert [list(trace.x) for trace in figure.data] == [
        [f"label of {key}" for key in some] for some in (costs, fractions)
    ]
    assert headings(figure) == ["cost", "fractions and cosines"]


def test_the_rows_of_the_table_of_inversion_are_in_a_fixed_order() -> None:
    labels = {
        "exact_match": "Exact match", "token_accuracy": "Token accuracy", "token_set_f1": "Token-set F1 (vec2text)",
        "bleu": "BLEU, corpus", "sentence_bleu": "BLEU, mean of sentences", "chrf": "chrF", "rouge_l": "ROUGE-L",
        "cosine": "Cosine, re-embedded", "exact_match_as_written": "Exact match, as written",
        "token_set_f1_as_written": "Token-set F1, as written", "bleu_as_written": "BLEU, as written",
    }  # fmt: skip
    points, cosines = {"bleu", "sentence_bleu", "chrf", "bleu_as_written"}, {"cosine"}
    found = content.inversion_table({"metrics": dict.fromkeys(reversed(labels), 0.12345)})
    assert found == [
        {"label": label, "model": "0.1" if key in points else "0.123" if key in cosines else "12.3 %"}
        for key, label in labels.items()
    ]
