"""Results and the weights that made them: nothing of one run appears under the name of another."""

from __future__ import annotations

import errno
import types
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from kedro.io import DatasetError
from mm_ldlm.app.datasets.samples import KEEP, SamplesDataset
from mm_ldlm.sampling.config import SamplingConfig

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.pipelines.evaluation import nodes as evaluation
from mm_ldlm.pipelines.reporting import nodes as reporting
from mm_ldlm.pipelines.sampling import nodes as sampling
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.provenance import MADE_BY, made_by, weights_of

SUITES = ("inversion", "sts", "likelihood", "latents", "generation", "classification", "images")


def write_checkpoint(runs: Path, run: str, step: int, *, value: float = 0.0, averaged: bool = True) -> Path:
    tensors = {"model.safetensors": {"w": torch.full((2,), value)}}
    if averaged:
        tensors["ema.safetensors"] = {"w": torch.zeros(2)}
    return folder.write(runs / run / "checkpoints", step, Contents(tensors, {"training_state.json": {}}))


def samples(checkpoint: Path, *, use_ema: bool = True, seed: int = 0) -> pd.DataFrame:
    table = pd.DataFrame({"id": pd.Series(dtype="string"), "text": pd.Series(dtype="string")})
    table.attrs = {MADE_BY: made_by(weights_of(checkpoint, use_ema=use_ema), parameters={"rows": seed}, seed=seed)}
    return table


def model(checkpoint: Path) -> Any:
    unable = Capabilities(uses=frozenset(), trained_as="objective toy")
    return types.SimpleNamespace(capabilities=unable, parts=types.SimpleNamespace(checkpoint=checkpoint))


def others(runs: Path) -> dict[str, tuple[Path, bool]]:
    """Weights that are not the averaged ones of step 100 of run B, each other in one way only."""
    before = write_checkpoint(runs / "before", "B", 100, value=1.0)
    return {
        "another run": (write_checkpoint(runs, "A", 100), True),
        "another step": (write_checkpoint(runs, "B", 20), True),
        "an earlier training": (before, True),
        "other weights": (runs / "B" / "checkpoints" / folder.name_of(100), False),
    }


@pytest.mark.parametrize("other", ["another run", "another step", "an earlier training", "other weights"])
def test_samples_of_other_weights_are_refused_by_every_suite_that_reads_them(other: str, tmp_path: Path) -> None:
    mine = write_checkpoint(tmp_path, "B", 100)
    checkpoint, use_ema = others(tmp_path)[other]
    own, wrong = samples(mine), samples(checkpoint, use_ema=use_ema)
    nodes = {
        "samples_l2t": (evaluation.evaluate_inversion, ["dataset"], ["samples_l2t"]),
        "samples_unconditional": (evaluation.evaluate_generation, ["dataset"], ["samples_unconditional"]),
        "samples_t2l": (evaluation.evaluate_latents, ["dataset"], ["samples_t2l", "samples_unconditional"]),
        "samples_image_text": (
            evaluation.evaluate_images, ["dataset"],
            ["samples_caption_to_image", "samples_image_to_caption", "samples_image_text"],
        ),
    }  # fmt: skip
    for bad, (suite, before, tables) in nodes.items():
        given = [wrong if name == bad else own for name in tables]
        words = rf"{bad}: expected results of run B, step-00000100, averaged weights, found those of .*kedro run"
        with pytest.raises(EvaluationError, match=words):
            suite(model(mine), *before, *given, {}, 0)
        found = suite(model(mine), *before, *[own] * len(tables), {}, 5)
        metrics = found[1] if isinstance(found, tuple) else found
        assert metrics[MADE_BY] | {"samples": 0} == {
            **weights_of(mine, use_ema=True), "parameters": metrics[MADE_BY]["parameters"], "seed": 5, "samples": 0
        }  # fmt: skip
        assert set(metrics[MADE_BY]["samples"]) == set(tables)
        assert metrics[MADE_BY]["parameters"]["bootstrap"]


SUITES_OF_SAMPLES = {
    "inversion": ["samples_l2t"],
    "generation": ["samples_unconditional"],
    "latents": ["samples_t2l", "samples_unconditional"],
    "images": ["samples_caption_to_image", "samples_image_to_caption", "samples_image_text"],
}
"""The tables of samples that a suite reads, in the order of its arguments."""


@pytest.mark.parametrize("suite", SUITES_OF_SAMPLES)
@pytest.mark.parametrize("found", ["another step", "no weights"])
def test_the_advice_about_stale_samples_makes_them_again(suite: str, found: str, tmp_path: Path) -> None:
    """The command has every pipeline from the one that writes the table on; without it, the message would come back."""
    mine = write_checkpoint(tmp_path, "B", 100)
    own, wrong = samples(mine), samples(write_checkpoint(tmp_path, "B", 20))
    theirs = "run B, step-00000020, averaged weights"
    if found == "no weights":
        wrong.attrs, theirs = {}, "weights that it does not name"
    for bad in SUITES_OF_SAMPLES[suite]:
        given = [wrong if name == bad else own for name in SUITES_OF_SAMPLES[suite]]
        with pytest.raises(EvaluationError) as error:
            getattr(evaluation, f"evaluate_{suite}")(model(mine), "dataset", *given, {}, 0)
        assert str(error.value) == (
            f"{bad}: expected results of run B, step-00000100, averaged weights, found those of {theirs}. Run `kedro "
            "run --pipelines=sampling,evaluation,reporting`, with the same checkpoint and use_ema in the sections "
            "sampling and evaluation."
        )


def test_the_advice_of_the_report_evaluates_again(tmp_path: Path) -> None:
    mine, other = write_checkpoint(tmp_path, "B", 100), write_checkpoint(tmp_path, "A", 100)
    right, wrong = ({MADE_BY: weights_of(path, use_ema=True)} for path in (mine, other))
    expected = (
        "expected results of run B, step-00000100, averaged weights, found those of run A, step-00000100, averaged "
        "weights. Run `kedro run --pipelines=sampling,evaluation,reporting`, which evaluates this run again."
    )
    for suite in SUITES:
        given = {**dict.fromkeys(SUITES, right), suite: wrong}
        with pytest.raises(EvaluationError) as error:
            reporting.collect_metrics(**given, timings={}, run={"name": "B"}, runs=tmp_path, evaluation={})
        assert str(error.value) == f"metrics_{suite}: {expected}"


def test_samples_that_name_no_weights_are_refused(tmp_path: Path) -> None:
    mine = write_checkpoint(tmp_path, "B", 100)
    table = samples(mine)
    for attributes in ({}, {MADE_BY: "A/checkpoints/step-00000100"}, {MADE_BY: {"run": "B"}}, {MADE_BY: None}):
        table.attrs = attributes
        with pytest.raises(EvaluationError, match="found those of weights that it does not name"):
            evaluation.evaluate_inversion(model(mine), "dataset", table, {}, 0)


def test_the_weights_that_were_evaluated_are_those_that_were_loaded(tmp_path: Path) -> None:
    both, last = write_checkpoint(tmp_path, "a", 1), write_checkpoint(tmp_path, "b", 1, averaged=False)
    assert [weights_of(path, use_ema=True)["weights"] for path in (both, last)] == ["averaged", "last"]
    assert weights_of(both, use_ema=False)["weights"] == "last"


def test_the_report_refuses_metrics_of_other_weights(tmp_path: Path) -> None:
    mine = write_checkpoint(tmp_path, "B", 100)
    right = {MADE_BY: weights_of(mine, use_ema=True)}
    run, given = {"name": "B"}, dict.fromkeys(SUITES, right)
    found = reporting.collect_metrics(**given, timings={}, run=run, runs=tmp_path, evaluation={})
    assert found == right
    for other in ("another run", "another step", "an earlier training", "other weights"):
        if other == "another step":
            continue  # writes a checkpoint into the run itself; see below
        checkpoint, use_ema = others(tmp_path / other)[other] if other != "other weights" else (mine, False)
        wrong = {MADE_BY: weights_of(checkpoint, use_ema=use_ema)}
        for suite in SUITES:
            with pytest.raises(EvaluationError, match=rf"metrics_{suite}: expected results of run B"):
                reporting.collect_metrics(**{**given, suite: wrong}, timings={}, run=run, runs=tmp_path, evaluation={})
    write_checkpoint(tmp_path, "B", 200)  # the run was trained further since its evaluation
    with pytest.raises(EvaluationError, match="step-00000200, averaged weights, found those of run B, step-00000100"):
        reporting.collect_metrics(**given, timings={}, run=run, runs=tmp_path, evaluation={})
    at_100 = {"checkpoint": "100"}
    assert reporting.collect_metrics(**given, timings={}, run=run, runs=tmp_path, evaluation=at_100) == right


@pytest.mark.parametrize("bad", ["inversion_rows", "likelihood_rows"])
def test_rows_of_other_weights_are_neither_kept_nor_compared(bad: str, tmp_path: Path) -> None:
    mine, other = write_checkpoint(tmp_path, "B", 100), write_checkpoint(tmp_path, "A", 100)
    rows = {name: samples(other if name == bad else mine) for name in ("inversion_rows", "likelihood_rows")}
    with pytest.raises(EvaluationError, match=rf"{bad}: expected results of run B, .* found those of run A"):
        reporting.compare_runs(
            run={"name": "B"}, runs=tmp_path, metrics={MADE_BY: weights_of(mine, use_ema=True)}, **rows, reporting={},
            evaluation={}, seed=0, tracking={},
        )  # fmt: skip
    assert not (tmp_path / "B" / "evaluation").exists()


def test_a_table_keeps_its_provenance_on_disk_and_stays_for_the_same_weights_only(tmp_path: Path) -> None:
    one, two = write_checkpoint(tmp_path, "A", 1), write_checkpoint(tmp_path, "B", 1, value=1.0)
    entry = SamplesDataset(filepath=str(tmp_path / "samples.parquet"))
    drawn = samples(one, seed=3).reindex(range(2))
    drawn.attrs = samples(one, seed=3).attrs
    entry.save(drawn)
    assert entry.load().attrs == drawn.attrs
    not_requested = samples(one, seed=4)  # with other parameters
    not_requested.attrs |= {KEEP: weights_of(one, use_ema=True)}
    entry.save(not_requested)
    assert entry.load().attrs == drawn.attrs
    not_requested.attrs |= {KEEP: weights_of(two, use_ema=True)}
    entry.save(not_requested)
    assert len(entry.load()) == 0


@pytest.mark.parametrize("found", [b"", b"PAR1", b"half a table"])
def test_a_damaged_table_belongs_to_no_run_and_is_written_again(tmp_path: Path, found: bytes) -> None:
    """A full disk left such files, and the next run ended where it read who had made them."""
    weights = write_checkpoint(tmp_path, "A", 1)
    entry = SamplesDataset(filepath=str(tmp_path / "samples.parquet"))
    (tmp_path / "samples.parquet").write_bytes(found)
    not_requested = samples(weights, seed=4)
    not_requested.attrs |= {KEEP: weights_of(weights, use_ema=True)}
    entry.save(not_requested)
    assert entry.load().attrs == not_requested.attrs


def test_a_table_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SamplesDataset(filepath=str(tmp_path / "samples.parquet"))
    entry.save(samples(write_checkpoint(tmp_path, "A", 1), seed=3))
    before = (tmp_path / "samples.parquet").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    other = samples(write_checkpoint(tmp_path, "B", 2), seed=9)
    monkeypatch.setattr("mm_ldlm.core.files.os.fsync", full)
    with pytest.raises(DatasetError, match="No space left"):
        entry.save(other)
    assert [path.name for path in tmp_path.glob("*samples*")] == ["samples.parquet"]
    assert (tmp_path / "samples.parquet").read_bytes() == before


def test_a_result_names_every_table_that_it_was_made_of(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path, "A", 1)
    tables = [samples(one, seed=seed) for seed in (3, 4)]

    @evaluation._signed
    def suite(model: Any, samples_one: Any, samples_two: Any, evaluation: Any, seed: int) -> Any:
        return pd.DataFrame({"id": ["a"]}), {"a number": 1.5}

    rows, metrics = suite(model(one), *tables, {"progress": False}, seed=9)
    about = metrics[MADE_BY]
    assert about["samples"] == {"samples_one": tables[0].attrs[MADE_BY], "samples_two": tables[1].attrs[MADE_BY]}
    assert (about["run"], about["seed"], about["parameters"]["progress"]) == ("A", 9, False)
    assert rows.attrs == {MADE_BY: about}


def test_only_a_table_that_was_not_requested_leaves_an_earlier_one(tmp_path: Path) -> None:
    """A task that was requested and refused has no samples, and those of earlier parameters would be stale."""
    one = write_checkpoint(tmp_path, "A", 1)
    text, latent = {"kind": "confidence"}, {"kind": "ddim"}
    given = {"tasks": ["l2t"], "text": text, "latent": latent, "unconditional": {"text": text, "latent": latent}}
    config = parse(SamplingConfig, given, at="sampling")
    for task, kept in (("l2t", False), ("t2l", True)):
        for parts in ([], [pd.DataFrame({"id": ["a"]})]):
            table = sampling._table(parts, {"id": "string"}, model(one), config, task, 7)
            assert (KEEP in table.attrs) is kept
            assert table.attrs[MADE_BY]["seed"] == 7


@pytest.mark.parametrize("use_ema", [True, False])
def test_a_suite_signs_with_the_weights_that_its_own_parameters_choose(use_ema: bool, tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path, "A", 1)
    parameters = {"use_ema": use_ema, "progress": False}
    _, metrics = evaluation.evaluate_inversion(model(one), "dataset", samples(one, use_ema=use_ema), parameters, 3)  # type: ignore[arg-type]
    about = metrics[MADE_BY]
    assert {name: about[name] for name in weights_of(one, use_ema=use_ema)} == weights_of(one, use_ema=use_ema)
    assert about["parameters"]["use_ema"] is use_ema
    with pytest.raises(EvaluationError, match="samples_l2t: expected results of run A"):
        evaluation.evaluate_inversion(model(one), "dataset", samples(one, use_ema=not use_ema), parameters, 3)  # type: ignore[arg-type]
