"""The first lines of a run: what it will do, where its results will be, and how long the last one took."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mm_ldlm.app.tracking.outlook import outlook, training_time, until_trained

PROJECT = Path("/projects/here")
TYPED: dict[str, Any] = {
    "ingestion": SimpleNamespace(sources=(SimpleNamespace(kind="starter"), SimpleNamespace(kind="starter"))),
    "encoder": SimpleNamespace(kind="local", name="minilm"),
    "model": SimpleNamespace(kind="mmdit", stores=()),
    "objective": SimpleNamespace(
        kind="multimodal", process=SimpleNamespace(kind="gidd"), fields=("latents",), stores=()
    ),
    "training": SimpleNamespace(max_steps=950, epochs=None, max_tokens=None, max_minutes=None),
}
NODES = {"ingestion": ["a", "b"], "embedding": ["c"], "training": ["d", "e"], "reporting": ["f"]}


def lines(seconds: dict[str, float], executed: dict[str, list[str]] | None = None) -> list[str]:
    results = {"report": PROJECT / "data/08_reporting/report.html", "checkpoints in": Path("/elsewhere/runs")}
    return outlook(executed or NODES, TYPED, seconds=seconds, results=results, project=PROJECT)


def test_a_first_run_names_its_pipelines_sizes_and_results_and_invents_no_time() -> None:
    assert lines({"sampling": 9.0}) == [
        "this run: ingestion (starter) → embedding (minilm) → "
        "training (model mmdit, objective multimodal, process gidd, 950 steps) → reporting; 6 nodes",
        "results: report data/08_reporting/report.html, checkpoints in /elsewhere/runs",
        "time: no run here yet; embedding and training will show an estimate after the first seconds",
    ]


def test_an_encoder_is_named_only_where_something_is_embedded() -> None:
    text_only = SimpleNamespace(kind="autoregressive", fields=(), stores=())
    for objective, model_stores, words in (
        (text_only, (), "embedding (needs no encoder) → training (model mmdit, objective autoregressive, 950 steps)"),
        (text_only, ("token_vectors",), "embedding (minilm) → "),
        (SimpleNamespace(kind="x", fields=(), stores=("token_clusters",)), (), "embedding (minilm) → "),
    ):
        typed = {**TYPED, "objective": objective, "model": SimpleNamespace(kind="mmdit", stores=model_stores)}
        assert words in outlook(NODES, typed, seconds={}, results={"in": PROJECT}, project=PROJECT)[0]


def test_a_later_run_reports_what_the_last_one_took_the_longest_first() -> None:
    found = {"ingestion": 0.2, "embedding": 91.0, "training": 497.4, "reporting": 1.6, "sampling": 34.0}
    assert lines(found)[2] == (
        "time: the last run here took 9 min 50 s (training 8 min 17 s, embedding 1 min 31 s, reporting 2 s)"
    )
    assert lines({"embedding": 91.0})[2] == (
        "time: the last run here took 1 min 31 s; without ingestion, training, reporting, which did not run yet"
    )


def test_a_run_without_measured_pipelines_or_without_nodes_has_fewer_lines() -> None:
    assert lines({}, {"reporting": ["f"]}) == [
        "this run: reporting; 1 node",
        "results: report data/08_reporting/report.html, checkpoints in /elsewhere/runs",
    ]
    assert outlook({}, TYPED, seconds={}, results={}, project=PROJECT) == []


def test_every_limit_of_the_training_is_named() -> None:
    limits = SimpleNamespace(max_steps=None, epochs=3, max_tokens=10**9, max_minutes=1.5)
    (first, *_) = outlook(
        {"training": ["d"]}, {**TYPED, "training": limits}, seconds={}, results={"in": PROJECT}, project=PROJECT
    )
    assert "3 epochs or 1,000,000,000 tokens or 1.5 minutes" in first
    limits.epochs = 1
    (first, *_) = outlook(
        {"training": ["d"]}, {**TYPED, "training": limits}, seconds={}, results={"in": PROJECT}, project=PROJECT
    )
    assert "1 epoch or" in first


def test_a_measured_training_is_shown_with_what_it_was_measured_on() -> None:
    assert training_time(161.5, steps=950, per_step=0.17, measured=6, processes=2) == (
        "time: the training will take about 3 min on this machine "
        "(950 steps of 0.17 s, measured over 6 trial steps of 2 processes)"
    )
    assert training_time(7300.0, steps=1000, per_step=7.3, measured=1, processes=1).endswith(
        "about 2 h 02 min on this machine (1,000 steps of 7.3 s, measured over 1 trial step of one process)"
    )


def test_the_time_until_the_end_of_the_training_is_that_of_both_parts() -> None:
    now = time.mktime((2026, 11, 22, 22, 48, 0, 0, 0, -1))
    assert until_trained(embedding=95.0, training=262.0, now=now) == (
        "time: the model will be trained in about 6 min, at about 22:53: embedding takes about 2 min more, training "
        "about 4 min; validation, sampling and evaluation are not included"
    )


def test_the_end_of_a_training_on_another_day_has_a_date() -> None:
    now = time.mktime((2026, 11, 22, 22, 48, 0, 0, 0, -1))
    hour, days = 3600.0, 86_400.0
    for training, shown in (
        (hour, "23:50"), (2 * hour, "2026-11-23 00:50"), (50 * hour, "2026-11-25 00:50"),
        (30 * days, "2026-12-22 22:50"), (365 * days, "2027-11-22 22:50"),
    ):  # fmt: skip
        assert f", at about {shown}: " in until_trained(embedding=120.0, training=training, now=now)
