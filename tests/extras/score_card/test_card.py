"""Score cards of small runs: their numbers are those of the suites, and what cannot be compared has a reason instead."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.corpus.examples import word_tokenizer
from tests.environments import run_in_process
from tests.inference import runs
from tests.inference.runs import DIT, EXACT, MULTIMODAL, TEXT, WORD_TABLE, write_run
from tests.toy.toy_component import ToyGeneration

from mm_ldlm import MMLDLM
from mm_ldlm.core import ConfigurationError, EvaluationError, parse
from mm_ldlm.data.corpus.tokenizer import WrapConfig
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.encoders.base import parse_encoder
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.evaluation.suites import suites
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.extras.score_card import card as module
from mm_ldlm.extras.score_card.card import make_card
from mm_ldlm.extras.score_card.config import ScoreCardConfig
from mm_ldlm.extras.score_card.mauve import divergence_area, mauve
from mm_ldlm.extras.score_card.report import latex, markdown, tables
from mm_ldlm.extras.score_card.rows import at_entropy

SAMPLER = {"kind": "ancestral", "steps": 3}
TEXTS = [" ".join(f"w{(3 * i + j * j) % 20}" for j in range(2 + i % 7)) for i in range(60)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Any]) -> Dataset:
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, TEXTS, ["train"] * 10 + ["test"] * 50)
    return Dataset.open(root / "dataset")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {
        "mdlm": write_run(root / "mdlm", model=DIT, objective=TEXT),
        "again": write_run(root / "again", model=DIT, objective=TEXT),
        "toy": write_run(root / "toy", model=WORD_TABLE, objective=EXACT),
        "imported": write_run(root / "imported", model=DIT, objective={**TEXT, "length_weight": 0.0}),
        "embeds": write_run(root / "embeds", objective={**MULTIMODAL, "mode": "t2l"}),
    }


@pytest.fixture
def carded(tmp_path: Path, dataset: Dataset) -> Callable[..., dict[str, Any]]:
    """`carded(runs, **parameters)` makes a card; `judge` and `data` replace the judge and the data."""

    def make(
        rows: dict[str, Any], judge: Path | None = None, data: Any = dataset, draws: int = 2, **given: Any
    ) -> dict[str, Any]:
        config = {
            "samples": 40,
            "sampler": SAMPLER,
            "mauve": False,
            "runs": {name: str(path) for name, path in rows.items()},
        }
        return make_card(
            parse(ScoreCardConfig, config | given, at="score_card"), evaluation(judge, draws), parse_encoder({"name": "minilm"}),
            dataset=data, seed=3, kept=tmp_path,
        )  # fmt: skip

    return make


def evaluation(judge: Path | None, draws: int = 2) -> EvaluationConfig:
    given = {
        "likelihood": {"draws": draws},
        "generation": {"causal_model": judge and str(judge)},
        "bootstrap": {"replicates": 200},
    }
    return parse(EvaluationConfig, given, at="evaluation")


def cells(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row["cells"] for row in found["rows"] if row["name"] == name)


def reasons(found: dict[str, Any], name: str) -> dict[str, str]:
    return next(row["reasons"] for row in found["rows"] if row["name"] == name)


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_suites(
    written: dict[str, Path], carded: Callable[..., Any], dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {name: written[name] for name in ("toy", "mdlm")}
    found = carded(rows, judge=written["toy"])
    for name, path in rows.items():
        model, one = MMLDLM.from_run(path), cells(found, name)
        drawn = model.generate(40, seed=3, **({"sampler": {**SAMPLER, "temperature": 1.0}} if name == "mdlm" else {}))
        given = Evaluation(
            model, dataset, {"unconditional": drawn.to_frame().assign(tokens=drawn.tokens)}, evaluation(rows["toy"]), 3
        )
        costs, _ = suites()["likelihood"].evaluate(given)
        texts, _ = suites()["generation"].evaluate(given)
        keys = {"nats_per_token": "per_token", "perplexity": "perplexity", "bits_per_character": "bits_per_character"}
        for column, key in keys.items():
            assert one[column]["value"] == pytest.approx(costs["unconditional"][key]["value"], rel=1e-12)
        made = texts["generated"]
        assert (one["entropy"], one["self_bleu"]) == pytest.approx(
            (made["entropy_corpus"], made["self_bleu"]), rel=1e-12
        )
        assert (one["distinct_2"], one["empty"]) == (made["distinct"][2], texts["empty"])
        assert found["held_out"]["entropy"] == pytest.approx(texts["real"]["entropy_corpus"], rel=1e-12)
        assert found["held_out"]["generative_perplexity"] == pytest.approx(texts["real"]["perplexity"], rel=1e-12)
        curve = next(each["points"] for each in found["curves"] if each["name"] == name)
        (point,) = (point for point in curve if point["temperature"] == 1)
        assert point["perplexity"] == pytest.approx(made["perplexity"], rel=1e-12)
    nll = {name: MMLDLM.from_run(path).score(TEXTS[10:], draws=2, seed=3) for name, path in rows.items()}
    words = sum(nll["toy"].tokens)
    toy, mdlm = cells(found, "toy"), cells(found, "mdlm")
    assert (toy["kind"], mdlm["kind"]) == ("exact", "NELBO")
    assert mdlm["word_perplexity"]["value"] == pytest.approx(math.exp(nll["mdlm"].nll.sum() / words))
    assert mdlm["difference"]["value"] == pytest.approx((nll["mdlm"].nll - nll["toy"].nll).sum() / words)
    monkeypatch.setattr(module, "score", None)  # an equal protocol computes nothing again
    assert carded(rows, judge=written["toy"]) == found
    assert carded({"alone": rows["mdlm"]}, judge=written["toy"])["rows"][0]["cells"].items() >= {
        "nats_per_token": mdlm["nats_per_token"], "seconds_per_1000": mdlm["seconds_per_1000"]
    }.items()  # fmt: skip


def test_a_glob_is_one_row_over_all_of_its_runs(written: dict[str, Path], carded: Callable[..., Any]) -> None:
    found = carded({"toy": written["toy"], "seeds": written["mdlm"].parent / "[ma]*[mn]"})
    seeds = found["rows"][1]
    assert [run["weights"]["run"] for run in seeds["runs"]] == ["again", "mdlm"]
    alone = cells(carded({"mdlm": written["mdlm"]}), "mdlm")
    fewer = cells(carded({"mdlm": written["mdlm"]}, samples=20), "mdlm")  # another protocol is scored anew
    for column in ("entropy", "distinct_2"):
        assert seeds["cells"][column] == pytest.approx(alone[column]) != fewer[column]
    more = cells(carded({"mdlm": written["mdlm"]}, draws=3), "mdlm")
    for column in ("nats_per_token", "bits_per_character"):
        assert seeds["cells"][column]["value"] == pytest.approx(alone[column]["value"]) != more[column]["value"]
    assert seeds["cells"]["paired_runs"] == 1, "the baseline has one run"


@pytest.mark.parametrize("shift", [0.0, 0.25, 1.0])
def test_the_perplexity_is_read_at_an_entropy_between_temperatures(shift: float) -> None:
    points = [{"entropy": 3.0 + x, "perplexity": math.exp(2 * x)} for x in (1.0, 0.0)]
    value, _ = at_entropy([{"points": points}], 3.0 + shift)
    assert value == pytest.approx(math.exp(2 * shift))
    assert at_entropy([{"points": points}, {"points": points}], 3.0 + shift)[0] == pytest.approx(value)
    for beyond in (2.99, 4.01):
        assert at_entropy([{"points": points}], beyond)[0] is None


def test_mauve_has_its_closed_forms() -> None:
    for p in (np.array([0.2, 0.8]), np.array([1.0, 0.0])):
        assert divergence_area(p, p) == pytest.approx(1)
    apart = divergence_area(np.array([1.0, 0.0]), np.array([0.0, 1.0]), points=4001)
    assert apart == pytest.approx(math.factorial(5) ** 2 / math.factorial(10), rel=1e-3)  # ∫ λ⁵ d(1−λ)⁵
    some, other = divergence_area(np.array([0.3, 0.7]), np.array([0.6, 0.4])), np.array([0.6, 0.4])
    assert some == pytest.approx(divergence_area(other, np.array([0.3, 0.7])))
    assert apart < some < divergence_area(np.array([0.3, 0.7]), np.array([0.4, 0.6])) < 1
    draw = np.random.default_rng(0)
    one, two = draw.normal(size=(2, 100, 5))
    assert mauve(one, one) == pytest.approx(1)
    assert mauve(one, two + 100) < 0.01 < 0.5 < mauve(one, two)


# -- what is left out --------------------------------------------------------------------------------------------------


def test_runs_of_other_tokenizers_are_compared_by_words_and_characters(
    written: dict[str, Path], carded: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"other": reversed(range(20)), "lossy": (i for i in range(20) if i != 3)}
    for name, words in names.items():
        made = word_tokenizer(*(f"w{i}" for i in words), max_length=12)
        monkeypatch.setattr(runs, "tokenizer", lambda made=made: made)
        write_run(tmp_path / name, model=DIT, objective=TEXT)
    found = carded(
        {"mdlm": written["mdlm"], **{name: tmp_path / name for name in names}, "both": tmp_path / "[lo]*[yr]"},
        judge=written["toy"],
    )
    assert found["protocol"]["unit"] == "word"
    mine = MMLDLM.from_run(tmp_path / "other").score(TEXTS[10:], draws=2, seed=3).nll
    base = MMLDLM.from_run(written["mdlm"]).score(TEXTS[10:], draws=2, seed=3).nll
    characters, other, lossy = sum(map(len, TEXTS[10:])), cells(found, "other"), cells(found, "lossy")
    assert other["nats_per_token"] is other["perplexity"] is None
    assert "tokens" in reasons(found, "other")["nats_per_token"]
    assert other["bits_per_character"]["value"] == pytest.approx(mine.sum() / math.log(2) / characters)
    assert other["difference"]["value"] == pytest.approx((mine - base).sum() / math.log(2) / characters)
    count = sum("w3" in text.split() for text in TEXTS[10:])
    assert lossy["bits_per_character"] is None
    assert f"{count} of 50" in reasons(found, "lossy")["difference"]
    assert "difference" not in lossy
    words = [word for text in TEXTS[10:] for word in text.split()]
    assert lossy["unknown"] == pytest.approx(words.count("w3") / len(words)), "of all tokens"
    assert cells(found, "both")["unknown"] == pytest.approx(lossy["unknown"] / 2), "the mean of the runs of a row"


def test_what_a_run_cannot_do_has_its_reason_in_the_table(
    written: dict[str, Path], carded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {name: written[name] for name in ("mdlm", "embeds", "toy", "imported")}
    found = carded(rows)
    assert (
        "it was trained with"
        in reasons(carded({"embeds": written["embeds"], "toy": written["toy"]}), "toy")["difference"]
    )
    for column in ("bits_per_character", "difference", "self_bleu", "generative_perplexity"):
        assert "it was trained with" in reasons(found, "embeds")[column]
    assert "given_length" in reasons(found, "imported")["nats_per_token"]
    assert "length as a number" in reasons(found, "imported")["distinct_2"]
    assert {"difference", "distinct_2"} <= cells(found, "toy").keys()
    costs, texts = tables(found)
    letters = {row[0]: row[costs.header.index("nats per token")] for row in costs.rows}
    assert letters["embeds"] == "– (a)"
    assert letters["imported"] == "– (b)"
    assert [note[:3] for note in costs.notes[:2]] == ["(a)", "(b)"]
    assert texts.rows[0][0] == "held-out text"
    monkeypatch.setattr(ToyGeneration, "has_length", False)  # as where an end token ends a text
    given = carded(rows, given_length=True, length=5)
    score = MMLDLM.from_run(written["mdlm"]).score(TEXTS[10:], draws=2, seed=3)
    assert cells(given, "mdlm")["nats_per_token"]["value"] == pytest.approx(score.token_nll.sum() / score.tokens.sum())
    assert cells(given, "imported")["kind"] == cells(given, "mdlm")["kind"] == "NELBO given the length"
    assert "given the length" in reasons(given, "toy")["difference"]
    assert "distinct_2" in cells(given, "imported")


def test_a_card_without_runs_or_texts_is_refused(
    written: dict[str, Path], carded: Callable[..., Any], tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    with refuses(ConfigurationError, "score_card.runs"):
        carded({})
    with refuses(EvaluationError, "score_card.texts"):
        carded({"mdlm": written["mdlm"]}, data=None)
    with refuses(EvaluationError, "exact"):
        carded({"toy": written["toy"]}, judge=written["mdlm"])
    (tmp_path / "long.txt").write_text(f"{'w1 ' * 13}\nw2\n")
    with refuses(EvaluationError, "1 of 2"):
        carded({"mdlm": written["mdlm"]}, texts=str(tmp_path / "long.txt"))
    (tmp_path / "short.txt").write_text("w1 w2\nw3\n" + "w1 " * 13)
    found = carded({"mdlm": written["mdlm"], "toy": written["toy"]}, texts=str(tmp_path / "short.txt"), data=None)
    assert (found["protocol"]["held_out"]["count"], found["protocol"]["left_out"]) == (2, 1)
    assert "p" not in cells(found, "toy"), "of few texts"


def test_lines_of_a_file_are_wrapped_where_the_data_are(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS))
    monkeypatch.setattr(module, "wrap_of", lambda tokens: WrapConfig())
    config = ScoreCardConfig(texts=str(tmp_path / "lines.txt"))
    texts, tokens = module.texts_of(config, dataset, count=None, seed=0)
    assert {len(tokens[text]) for text in texts} == {dataset.shape.max_length}
    assert " ".join(TEXTS).startswith(" ".join(texts))


# -- tables and files --------------------------------------------------------------------------------------------------


def test_tables_have_a_cell_for_each_column_in_every_format(
    written: dict[str, Path], carded: Callable[..., Any]
) -> None:
    found = tables(carded({"50% | a_b": written["mdlm"], "toy": written["toy"]}, judge=written["toy"]))
    text, paper = markdown(found), latex(found)
    for table in found:
        assert {len(row) for row in table.rows} == {len(table.header)}
        assert {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")} == {
            len(table.header) + 1
        }
        body = [line for line in paper.splitlines() if line.endswith(r"\\")]
        assert {line.replace(r"\&", "").count("&") for line in body} == {len(table.header) - 1}
    assert r"50\% | a\_b" in paper
    assert "≤" not in paper
    assert "≤ " in text
    assert paper.count("{") == paper.count("}")


def test_the_pipeline_writes_the_card_in_all_formats(finished: Path) -> None:
    here = finished / "data/test"
    run_in_process(finished, ["score_card"], tracking={}, score_card={"runs": {"base": str(here / "06_models/runs")}})
    card = json.loads((here / "08_reporting/score_card.json").read_text())
    scores = json.loads((here / "08_reporting/metrics.json").read_text())
    (row,) = card["rows"]
    assert row["cells"]["nats_per_token"]["value"] == pytest.approx(scores["nll.per_token"])
    assert 0 < row["cells"]["mauve"] <= 1
    assert row["cells"]["peak_gb"] >= 0
    for name in ("score_card.md", "score_card.tex", "score_card.html"):
        assert "0.7" in (here / "08_reporting" / name).read_text()
