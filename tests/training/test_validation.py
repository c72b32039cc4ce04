"""Validation: the mean over held-out examples with the averaged weights and always the same noise."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inference.runs import EXACT, WORD_TABLE
from tests.training import task

from mm_ldlm.training import loop, validation
from mm_ldlm.training.seeds import step_seed
from mm_ldlm.training.validation import Validation


@pytest.mark.parametrize("kind", ["multimodal", "text_diffusion"])
def test_a_run_is_validated_the_same_way_each_time_which_changes_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three examples, no time falls into some quarters, whose averages do not exist."""
    run = task.built(task.spec(kind, validate_every=1, validation_examples=3, validation_batch=1), tmp_path)
    task.train_until(run, 2)
    before, seeds = task.held(run), list[Any]()
    monkeypatch.setattr(validation, "step_seed", lambda *each: seeds.append(each) or step_seed(*each))
    first = run.validate(2)
    assert len({*seeds}) == len(seeds) > 3, "no noise is used twice"
    assert run.validate(2) == first
    assert (task.largest_difference(before, task.held(run)), run.learner.root.training) == (0, True)
    weights = run.stepper.objective.weights
    totals = [sum(weights.get(name, 0) * first.get(f"{kind}/{name}", 0) for name in weights)
              for kind in run.stepper.objective.kinds]  # fmt: skip
    assert first["loss"] == pytest.approx(sum(totals) / len(totals))
    assert first["perplexity"] == pytest.approx(math.exp(first["nll"]))


def test_pitfall_20_the_averages_are_validated(tmp_path: Path) -> None:
    run = task.built(task.spec(validate_every=1), tmp_path)
    loop.train(run)
    averaged = run.validate(10)
    with run.learner.ema.swapped():
        run.learner.ema.values = {}
        assert run.validate(10) == averaged
    assert run.validate(10) != averaged


@pytest.mark.parametrize("size", [1, 3, 20])
def test_the_batch_size_of_the_validation_changes_only_the_noise_of_its_batches(size: int, tmp_path: Path) -> None:
    """An exact likelihood has no noise, so that its losses are equal to rounding."""
    spec = task.spec(EXACT, model=WORD_TABLE, validate_every=1, validation_examples=20, validation_batch=size)
    run = task.built(spec, tmp_path)
    task.train_until(run, 2)
    at_once = task.spec(EXACT, model=WORD_TABLE, validation_examples=20)
    whole = Validation(task.data(spec).train, run.learner, at_once, task.ALONE)
    assert run.validate(2)["loss"] == pytest.approx(whole(2)["loss"], rel=1e-5)


@pytest.mark.parametrize("weight", [0.1, 0.0])
def test_a_text_costs_its_own_length_where_lengths_are_trained(weight: float, tmp_path: Path) -> None:
    objective = {"kind": "text_diffusion", "length_weight": weight}
    run = task.built(task.spec(objective, validate_every=1, validation_batch=5), tmp_path)
    length_n = torch.from_numpy(run.validate.plan.lengths)
    found, expected = [], []
    for logits_N in (torch.zeros(12), torch.arange(12.0)):
        run.learner.ema.values["model.length_prior.logits_N"].copy_(logits_N)
        found.append(run.validate(0)["nll"])
        expected.append(float(-logits_N.log_softmax(0)[length_n - 1].sum() / length_n.sum()))
    more = expected[1] - expected[0] if weight else 0.0
    assert found[1] - found[0] == pytest.approx(more, rel=1e-4, abs=1e-6)
    run.validate.loader.fill = True
    assert run.validate(0)["nll"] == pytest.approx(found[1], rel=1e-5), "what fills a batch costs nothing"


def test_it_reads_a_fixed_part_of_the_examples(tmp_path: Path) -> None:
    parts = []
    for name, count in (("first", 10), ("again", 10), ("all", 1000)):
        run = task.built(task.spec(validate_every=1, validation_examples=count), tmp_path / name)
        parts.append(run.validate.examples.tolist())
        read = run.validate.loader.make
        seen: list[int] = []

        def make(planned: Any, read: Any = read, seen: list[int] = seen) -> Any:
            seen.extend(planned.examples.tolist())
            return read(planned)

        run.validate.loader.make = make  # type: ignore[method-assign]
        run.validate(0)
        assert sorted(seen) == parts[-1]
    assert parts[0] == parts[1] != parts[2] == list(range(48))
    assert parts[0] != parts[2][:10], "not the first ones"
    assert len(set(parts[0])) == 10
