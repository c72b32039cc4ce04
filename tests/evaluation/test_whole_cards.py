"""Cards and rows of the page as a whole: label, value in its digits, interval, note, and the fractions of the bar."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest

from mm_ldlm.evaluation.config import ReportingConfig
from mm_ldlm.evaluation.report import content, inputs, page
from mm_ldlm.evaluation.report.cards import Card, cards
from mm_ldlm.evaluation.report.inputs import ReportInputs


def spread(key: str, value: float, low: float, high: float) -> dict[str, float]:
    return {key: value, f"{key}.low": low, f"{key}.high": high}


METRICS: dict[str, float] = {
    **spread("l2t.exact_match", 0.91234, 0.90123, 0.92345),
    **spread("l2t.token_accuracy", 0.97536, 0.97124, 0.98231),
    **spread("l2t.bleu", 95.123, 94.234, 96.045),
    **spread("l2t.cosine", 0.98765, 0.97654, 0.99432),
    **spread("t2l.cosine", 0.93456, 0.92345, 0.94567),
    **spread("classification.accuracy", 0.81234, 0.80123, 0.82345),
    **spread("classification.macro_f1", 0.71256, 0.70145, 0.72367),
    "baseline.logistic_regression.accuracy": 0.61234,
    **spread("sts.news.spearman", 75.123, 74.234, 76.345),
    "sts.news.encoder_spearman": 82.456,
    "sts.news.ratio": 0.91123,
    "nll.exact": 0.0,
    **spread("nll.per_token", 1.25, 1.12345, 1.37654),
    "nll.given_latent.per_token": 0.34567,
    **spread("latent.bits_per_sentence", 12.345, 11.234, 13.456),
    **spread("unconditional.attested_bigrams", 0.51234, 0.50123, 0.52345),
    "real.attested_bigrams": 0.95123,
    **spread("unconditional.entropy_sample", 2.3456, 2.2345, 2.4567),
    "real.entropy_sample": 2.5678,
    **spread("unconditional.perplexity", 34.567, 33.456, 35.678),
    "real.perplexity": 21.345,
    **spread("caption_to_image.accuracy", 0.41234, 0.40123, 0.42345),
    "images.classifier_accuracy": 0.99312,
    **spread("image_to_caption.accuracy", 0.31234, 0.30123, 0.32345),
    **spread("image_text.agreement", 0.21234, 0.20123, 0.22345),
}
WHOLE = [
    Card("Exact match", "91.2 %", "90.1 % – 92.3 %", "of held-out sentences, token for token", 0.91234, 0.90123,
         0.92345),
    Card("Token accuracy", "97.54 %", "97.12 % – 98.23 %", "by position; a wrong length counts as errors", 0.97536,
         0.97124, 0.98231),
    Card("BLEU", "95.1", "94.2 – 96.0", "sacrebleu, 0 to 100", 0.95123, 0.94234, 0.96045),
    Card("Cosine, re-embedded", "0.988", "0.977 – 0.994", "reconstructed text, encoded again, to its source", 0.98765,
         0.97654, 0.99432),
    Card("Cosine, text to latent", "0.935", "0.923 – 0.946", "to the encoder's own vector", 0.93456, 0.92345, 0.94567),
    Card("Accuracy", "81.2 %", "80.1 % – 82.3 %",
         "of held-out examples; logistic regression on the latents 61.2 %", 0.81234, 0.80123, 0.82345),
    Card("Macro F1", "0.713", "0.701 – 0.724", "mean over the classes", 0.71256, 0.70145, 0.72367),
    Card("STS news", "75.1", "74.2 – 76.3", "Spearman × 100; encoder 82.5, ratio 91.1 %", 0.75123, 0.74234, 0.76345),
    Card("Nats per token", "1.250", "1.123 – 1.377",
         "NELBO (upper bound); perplexity 3.49; 0.346 nats given the latent"),
    Card("Bits in a latent", "12.3", "11.2 – 13.5", "about its sentence: the drop in code length"),
    Card("Attested word pairs", "51.2 %", "50.1 % – 52.3 %",
         "of unconditional samples, found in the training text; held-out text 95.1 %", 0.51234, 0.50123, 0.52345),
    Card("Token entropy", "2.35", "2.23 – 2.46", "nats, of unconditional samples; held-out text 2.57"),
    Card("Generative perplexity", "34.6", "33.5 – 35.7", "of unconditional samples; held-out text 21.3"),
    Card("Image of the caption", "41.2 %", "40.1 % – 42.3 %",
         "recognised by a classifier trained on real images; real held-out images 99.3 %", 0.41234, 0.40123, 0.42345),
    Card("Caption of the image", "31.2 %", "30.1 % – 32.3 %", "with the label of the held-out image", 0.31234, 0.30123,
         0.32345),
    Card("Image and caption agree", "21.2 %", "20.1 % – 22.3 %", "generated together, by the classifier", 0.21234,
         0.20123, 0.22345),
]  # fmt: skip


def flat(card: Card) -> tuple[Any, ...]:
    bar = [None if part is None else round(part, 9) for part in (card.fraction, card.low, card.high)]
    return (card.label, card.value, card.interval, card.note, *bar)


def test_every_card_with_its_digits_its_interval_its_note_and_its_bar() -> None:
    assert [flat(card) for card in cards(METRICS)] == [flat(card) for card in WHOLE]


@pytest.mark.parametrize("place", range(len(WHOLE)))
def test_a_card_without_an_interval_and_without_numbers_beside_it(place: int) -> None:
    """Only the number itself is known: no interval, no ends of the bar, and the note without a comparison."""
    whole = WHOLE[place]
    key = next(key for key in METRICS if [card.label for card in cards({key: METRICS[key]})] == [whole.label])
    (found,) = cards({key: METRICS[key]})
    assert (found.label, found.value, found.interval, found.low, found.high) == (
        whole.label, whole.value, "", None, None
    )  # fmt: skip
    assert (found.fraction is None) == (whole.fraction is None)
    alone = re.split(r"; (?:held-out|real|logistic|encoder|\d)", whole.note)[0]
    assert found.note == alone
    one_sided = {key: METRICS[key], f"{key}.low": METRICS[f"{key}.low"]}
    assert cards(one_sided)[0].interval == "", "an interval has two ends"


def test_a_cost_that_is_known_only_given_the_latent_says_so() -> None:
    (found,) = cards({"nll.given_latent.per_token": 0.5, "nll.exact": 1.0})
    assert flat(found) == (
        "Nats per token", "0.500", "", "exact negative log-likelihood, given the latent; perplexity 1.65",
        None, None, None,
    )  # fmt: skip


# -- what the template receives ----------------------------------------------------------------------------------------


def given(monkeypatch: pytest.MonkeyPatch, report: ReportInputs, **options: Any) -> dict[str, Any]:
    """The values that the template of the page receives."""
    seen: dict[str, Any] = {}

    def keep(template: str, **values: Any) -> str:
        seen.update(values, template=template)
        return "rendered"

    monkeypatch.setattr(page, "rendered", keep)
    assert page.render(report, {}, **options) == "rendered"
    return seen


def test_the_page_receives_the_content_of_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pd.DataFrame({
        "id": [f"i{i}" for i in range(30)], "reference": [f"a{i}" for i in range(30)],
        "hypothesis": [f"b{i}" for i in range(30)], "exact": False, "matches": range(30), "positions": 30,
    })  # fmt: skip
    log = [{"step": 5, "validation/loss": 1.5}]
    events = [{"event": "spike", "step": 3}]
    report = ReportInputs(
        title="T", run={"step": 7}, metrics={"l2t.exact_match": 0.5}, inversion={"metrics": {"bleu": 30.0}}, sts={},
        latents={}, generation={}, likelihood={"likelihood": "exact"}, inversion_rows=rows,
        unconditional=pd.DataFrame(), log=log, events=events, examples=4, seed=11,
        run_config={"objective": {"label": "mood"}, "fingerprints": {"tokens": "f1"}, "versions": {"torch": "9.9"}},
        parameters={"seed": 3, "evaluation": {"bootstrap": {"level": 0.8}}},
        validation_report={"findings": [{"severity": "warning"}]},
    )  # fmt: skip
    seen = given(monkeypatch, report, made_at="today")
    assert (seen["template"], seen["made_at"], seen["m"], seen["plots"]) == ("report.html.j2", "today", report, {})
    assert seen["lede"] == content.lede(report)
    assert seen["cards"] == cards(report.metrics)
    assert seen["examples"] == content.examples(rows, count=4, seed=11) != content.examples(rows, count=4, seed=0)
    assert seen["inversion_table"] == [{"label": "BLEU, corpus", "model": "30.0"}]
    assert seen["events"] == [("3", "spike", [])]
    assert str(seen["spikes"]).startswith("1 step was a spike")
    assert seen["validation_losses"] == "The validation loss of the averaged weights is 1.500 at step 5."
    assert seen["left_out"] == content.left_out(report)
    assert (seen["level"], seen["sampler"], seen["label"]) == (0.8, None, "mood")
    assert seen["likelihood_label"] == "exact negative log-likelihood"
    assert seen["findings"] == [{"severity": "warning"}]
    assert seen["parameters"] == [("seed", "3"), ("evaluation.bootstrap.level", "0.8")]
    assert (seen["fingerprints"], seen["run_versions"]) == ([("tokens", "f1")], {"torch": "9.9"})
    assert seen["versions"] == content.installed_versions() != seen["run_versions"]
    assert (seen["spelled"], seen["duration"]) == (content.spelled, content.duration)


def test_the_filters_of_the_templates() -> None:
    filters = page._environment().filters
    assert [filters["fixed"](1.23456), filters["fixed"](1.23456, 1)] == ["1.235", "1.2"]
    assert (filters["grouped"](1234567), filters["percent"](0.5)) == ("1,234,567", "50.0 %")
    with pytest.raises(Exception, match="is undefined"):
        page._environment().from_string("{{ unknown }}").render()


def test_the_time_of_a_page_is_local_to_the_minute() -> None:
    found = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d) \S+", inputs.now())
    assert found is not None
    assert pd.Timestamp.now() - pd.Timestamp(*map(int, found.groups())) < pd.Timedelta(minutes=2)


@pytest.mark.parametrize(("cosine", "shown"), [(0.5, 0.5), (float("nan"), None), (float("inf"), None), (None, None)])
def test_an_example_shows_the_verdict_of_its_row(cosine: float | None, shown: float | None) -> None:
    """Texts may be equal where tokens are not, and the row decides."""
    for exact in (True, False):
        row = {"reference": "a b", "hypothesis": "a b" if not exact else "a  b", "exact": exact, "accuracy": 0.25,
               "cosine": cosine}  # fmt: skip
        found = content._example("any", row)
        assert (found.kind, found.reference, found.exact, found.accuracy) == ("any", "a b", exact, 0.25)
        assert (found.cosine, found.pieces) == (shown, [("same", "a b")])


def test_examples_at_random_are_of_the_whole_table() -> None:
    rows = pd.DataFrame({"reference": [str(i) for i in range(400)], "hypothesis": "x", "exact": True, "matches": 1,
                         "positions": 1})  # fmt: skip
    drawn = [int(example.reference) for example in content.examples(rows, count=20, seed=3)["any"]]
    assert drawn == sorted(set(drawn))
    assert (len(drawn), min(drawn) < 100, max(drawn) > 300) == (20, True, True)
    assert len(content.examples(rows[:5], count=20, seed=3)["any"]) == 5


def test_a_report_shows_as_many_examples_as_the_parameters_say() -> None:
    names = ("run", "run_config", "metrics", "inversion", "sts", "likelihood", "latents", "generation")
    empty: dict[str, Any] = {name: {} for name in names}
    report = ReportInputs(title="T", inversion_rows=pd.DataFrame(), unconditional=pd.DataFrame(), **empty)
    assert (report.examples, report.seed, report.log, report.events) == (ReportingConfig().examples, 0, (), ())
    assert [getattr(report, name) for name in ("classification", "images", "timings", "comparison")] == [{}] * 4
