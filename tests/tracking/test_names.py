from __future__ import annotations

from pathlib import Path

import pytest
from mm_ldlm.app.tracking.description import clean, command, name_of, note, without_paths

from mm_ldlm.app.tracking import names
from mm_ldlm.evaluation.headline import most_important

TRAINING = (
    "loss", "validation/loss", "tokens_per_second", "lr", "epoch", "l2t/text_loss", "validation/l2t/text_nll",
    "grad_norm", "grad_norm/block0", "grad_norm_max", "update_ratio/heads", "memory_peak_gib", "fp16_underflow",
)  # fmt: skip
EVALUATION = (
    "l2t.exact_match", "l2t.exact_match.low", "perplexity", "sts.starter.spearman", "seconds.training", "nll.per_token",
    "baseline.unigram.bleu", "t2l.retrieval.at_1",
)  # fmt: skip


def test_every_key_has_one_name_and_the_name_leads_back() -> None:
    first = ("l2t.exact_match", "perplexity")
    named = {names.of_training(key): key for key in TRAINING}
    named |= {names.of_evaluation(key, first=first): key for key in EVALUATION}
    assert len(named) == len(TRAINING) + len(EVALUATION)
    assert {name: names.key_of(name) for name in named} == named
    assert names.key_of("l2t.bleu") == "l2t.bleu", "of an earlier version"


def test_the_headline_numbers_come_first_in_alphabetical_order() -> None:
    metrics = {key: 0.5 for key in EVALUATION} | {f"l2t.{name}": 0.5 for name in ("bleu", "cosine")}
    metrics |= {f"sts.{name}.spearman": 0.5 for name in "abcdefgh"} | {"t2l.cosine": 0.5, "unconditional.perplexity": 1}
    first = most_important(metrics, count=names.MOST_HEADLINES)
    shown = sorted(
        [names.of_training(key) for key in TRAINING] + [names.of_evaluation(key, first=first) for key in metrics]
    )
    assert shown[:10] == [
        "1_headline/l2t.bleu", "1_headline/l2t.cosine", "1_headline/l2t.exact_match", "1_headline/loss",
        "1_headline/perplexity", "1_headline/sts.a.spearman", "1_headline/t2l.cosine",
        "1_headline/tokens_per_second", "1_headline/unconditional.perplexity", "1_headline/validation_loss",
    ]  # fmt: skip
    assert not shown[10].startswith("1_headline")
    assert {name.partition("/")[0] for name in shown[10:]} == {
        "2_training", "3_validation", "4_evaluation", "5_diagnostics"
    }  # fmt: skip


def test_a_run_of_a_classifier_has_its_own_headline_numbers() -> None:
    metrics = {"classification.accuracy": 0.9, "classification.macro_f1": 0.8, "seconds.training": 1.0, "made_by": {}}
    assert most_important(metrics, count=7) == ["classification.accuracy", "classification.macro_f1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python /home/someone/project/run.py", "python …/run.py"),
        ("data=/data/big/disk,x=1", "data=…/disk,x=1"),
        ("path='/a/b/c.csv'", "path='…/c.csv'"),
        ("uri=sqlite:////srv/db/mlflow.db,x=1", "uri=sqlite:///…/mlflow.db,x=1"),
        ("sqlite:///data/mlflow.db", "sqlite:///data/mlflow.db"),
        ("data/06_models/run", "data/06_models/run"),
        ("https://user:secret@host/path/x", "https://***@host/path/x"),
        ("loss 1/2 and 3/4/5", "loss 1/2 and 3/4/5"),
        ("PROJECT/data/x.npy", "data/x.npy"),
    ],
)
def test_texts_have_no_absolute_paths_and_no_credentials(text: str, expected: str) -> None:
    assert without_paths(text.replace("PROJECT", "/work/my/project"), project=Path("/work/my/project")) == expected


def test_nested_values_are_cleaned() -> None:
    value = {"a": ["/srv/x/y"], "password": "p", "b": {"c": 1, "uri": "http://u:p@h/x"}}
    assert clean(value) == {"a": ["…/y"], "password": "***", "b": {"c": 1, "uri": "http://***@h/x"}}


def test_the_command_names_no_folder() -> None:
    assert command(["/opt/venv/bin/kedro", "run", "--params", "a=/x/y/z.csv"]) == "kedro run --params a=…/z.csv"
    assert command(["/opt/venv/bin/kedro", "run", "--env=test"]) == "kedro run --env=test"
    assert command(["/opt/lib/kedro/__main__.py", "run"]) == "python -m kedro run"
    assert command([]) == ""


WHOLE = {"training": ["training.plan_training", "training.run_training"], "sampling": ["s.a", "s.b", "s.c", "s.d"]}


@pytest.mark.parametrize(
    ("executed", "expected"),
    [
        (WHOLE, "all"),
        ({"training": WHOLE["training"]}, "training"),
        ({"training": ["training.plan_training"]}, "training (plan_training)"),
        ({"training": ["training.run_training"], "sampling": WHOLE["sampling"]}, "training (run_training),sampling"),
        ({"sampling": ["s.a", "s.b", "s.c"]}, "sampling (3 of 4 nodes)"),
        ({}, ""),
    ],
)
def test_a_run_is_named_for_what_it_executes(executed: dict[str, list[str]], expected: str) -> None:
    assert name_of(executed, WHOLE, ("training", "sampling")) == expected


def test_a_description_contains_summary_numbers_facts_and_command() -> None:
    text = note(summary="Trained x.", command="kedro run", facts={"run": "run-1"}, headline={"perplexity": 3.14159})
    for words in ("Trained x.", "`kedro run`", "| perplexity | 3.142 |", "| run | run-1 |"):
        assert words in text
    assert note(summary="Runs.", command="c", facts={}, headline={}) == "Runs.\n\n`c`"
