"""Perplexity while training: that of the evaluation, and the metric that `best` may follow."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from parts import ALONE

from mm_ldlm import MMLDLM
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import Likelihood
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import BatchConfig, EmaConfig
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.jsonl import read_metrics
from mm_ldlm.training.validation import Subset, Validation, _use
from mm_ldlm.training.worker import train

SMALL = {"dim": 16, "depth": 1, "heads": 2}
AR = {"model": {"kind": "causal", **SMALL}, "objective": {"kind": "autoregressive"}}
OFTEN = {
    "validate_every": 2, "validation_examples": 100, "max_steps": 6, "run_name": "run",
    "checkpoint": {"every_steps": 2, "keep_last": 9, "best_metric": "validation/perplexity", "background": False},
}  # fmt: skip


def validations(root: Path) -> dict[int, dict[str, Any]]:
    lines = read_metrics(root / "run/training_log.jsonl")
    return {line["step"]: line for line in lines if "validation/loss" in line}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    helpers.write_stores(root)
    return root


def test_the_perplexity_of_the_validation_is_that_of_the_evaluation_and_best_follows_it(stores: Path) -> None:
    train(helpers.planned(stores, **AR, **OFTEN), root=stores / "runs")
    found = validations(stores / "runs")
    assert sorted(found) == [2, 4, 6]
    dataset = Dataset.open(stores / "dataset")
    lists = dataset.tokens.lists("input_ids")
    ids = [lists.take(np.array([row]))[0].tolist() for row in dataset.rows("validation")]
    for step, line in found.items():
        model = MMLDLM.from_run(stores / "runs/run", checkpoint=step, device="cpu")
        scores = model.score_tokens(ids, [""] * len(ids))
        expected = scores.nll.sum() / sum(map(len, ids))
        assert line["validation/nll"] == pytest.approx(expected, rel=1e-4)
        assert line["validation/perplexity"] == pytest.approx(math.exp(expected), rel=1e-3)
    best = min(found, key=lambda step: found[step]["validation/perplexity"])
    assert folder.pointer(stores / "runs/run/checkpoints", "best") == folder.name_of(best)


def test_fillings_and_batches_do_not_change_an_exact_perplexity(tmp_path: Path) -> None:
    values = []
    for name, batch in (("all", None), ("three", 3), ("one", 1)):
        settings = {**AR, **OFTEN, "validation_batch": batch, "max_steps": 2}
        train(helpers.spec(**settings), root=tmp_path / name, data=helpers.data())
        values.append(validations(tmp_path / name)[2]["validation/nll"])
    assert values[1:] == pytest.approx([values[0]] * 2, rel=1e-5)


def test_the_length_of_a_text_is_part_of_its_likelihood_and_fillings_are_not() -> None:
    lengths = torch.tensor([2, 3, 0])
    batch = Batch(
        tokens_BL=torch.ones(3, 3, dtype=torch.long), valid_BL=torch.arange(3) < lengths[:, None], fields={},
        examples_B=torch.tensor([7, 4, -1]), position_B=torch.arange(3), global_size=2, global_tokens=5,
    )  # fmt: skip
    chances = torch.tensor([0.125, 0.25, 0.5])
    model: Any = SimpleNamespace(
        has_length=True,
        likelihood=lambda tokens_BL, **options: Likelihood(torch.tensor([[1.0, 2.0, 100.0]], dtype=torch.float64)),
        length_log_probs=lambda latents_Bd, *, rows: chances.log().expand(rows, 3),
    )
    validation: Any = SimpleNamespace(_scores="score", seed=0)
    total, tokens = Validation._negative_log_likelihood(validation, model, batch, draw=0).tolist()
    assert tokens == 5
    assert total == pytest.approx(3 - math.log(0.25) - math.log(0.5))


@pytest.mark.parametrize(
    ("model", "objective", "scored"),
    [
        ({"kind": "mmdit", "latent_tokens": 2, **SMALL}, {"kind": "multimodal", "mode": "mixed"}, True),
        ({"kind": "mmdit", "latent_tokens": 2, **SMALL}, {"kind": "multimodal", "mode": "l2t"}, True),
        ({"kind": "mmdit", "latent_tokens": 2, **SMALL}, {"kind": "multimodal", "mode": "t2l"}, False),
        ({"kind": "dit", **SMALL}, {"kind": "text_diffusion"}, True),
        ({"kind": "latent_mlp", "dim": 16, "depth": 1}, {"kind": "classification"}, False),
    ],
)
def test_runs_that_score_texts_have_a_perplexity(
    model: dict[str, Any], objective: dict[str, Any], scored: bool, stores: Path
) -> None:
    settings = {**OFTEN, "checkpoint": {"every_steps": 2}, "max_steps": 2, "resume": "never"}
    train(helpers.planned(stores, model=model, objective=objective, **settings), root=stores / "runs")
    line = validations(stores / "runs")[2]
    assert ("validation/perplexity" in line) == scored
    if scored:
        assert line["validation/perplexity"] == pytest.approx(math.exp(line["validation/nll"]))
        assert 1 < line["validation/nll"] < 20


class _Objective(SimpleNamespace):
    def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
        count = batch.real_B.sum().double()
        values = {"a": (2.0, 5.0), "b": (3.0, 7.0)}[kind]
        one = {"text": (values[0] * count, count), "length": (values[1] * count, count)}
        return one if kind == "a" else {**one, "rare": (0.0 * count, 0.0 * count)}


class Root(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)
        self.objective = _Objective(kinds=("a", "b"), fields=(), weights={"text": 2.0, "length": 0.5, "absent": 9.0})


def test_the_validation_loss_is_the_mean_over_kinds_of_the_weighted_losses() -> None:
    root: Any = Root()
    validation = Validation(
        helpers.Rows(20), root, Ema(root, EmaConfig()), ALONE, batch=BatchConfig(examples=4), examples=10,  # type: ignore[arg-type]
        seed=0, max_length=helpers.LONGEST, fill=True,
    )  # fmt: skip
    found = validation(3)
    assert found == pytest.approx({
        "loss": ((2 * 2 + 0.5 * 5) + (2 * 3 + 0.5 * 7)) / 2, "a/text": 2.0, "a/length": 5.0, "b/text": 3.0,
        "b/length": 7.0,
    })  # fmt: skip


def test_the_subset_of_the_validation_is_drawn_once() -> None:
    rows: Any = helpers.Rows(50)
    one, again, other = (Subset(rows, 20, seed=seed) for seed in (3, 3, 4))
    assert one.examples.tolist() == again.examples.tolist() == sorted(one.examples.tolist())
    assert one.examples.tolist() != other.examples.tolist()
    assert len(set(one.examples.tolist())) == 20
    assert one.lengths.tolist() == rows.lengths[one.examples].tolist()
    some = np.array([4, 2])
    assert (one.tokens(some, length=12) == rows.tokens(one.examples[some], length=12)).all()
    assert (one.field("latents", some) == rows.field("latents", one.examples[some])).all()
    assert len(Subset(rows, 99, seed=0).examples) == 50


@pytest.mark.parametrize(("nll", "perplexity"), [(2.0, math.exp(2.0)), (5_000.0, math.exp(700.0))])
def test_a_perplexity_is_a_finite_number(nll: float, perplexity: float, monkeypatch: pytest.MonkeyPatch) -> None:
    root: Any = Root()
    root.objective.generative_model = lambda model: model
    validation = Validation(
        helpers.Rows(8), root, Ema(root, EmaConfig()), ALONE, batch=BatchConfig(examples=4), examples=8,  # type: ignore[arg-type]
        seed=0, max_length=helpers.LONGEST, fill=False,
    )  # fmt: skip
    validation._scores = "score"
    pair = torch.tensor([3 * nll, 3.0], dtype=torch.float64)
    monkeypatch.setattr(validation, "_negative_log_likelihood", lambda model, batch, *, draw: pair)
    found = validation(0)
    assert (found["nll"], found["perplexity"]) == pytest.approx((nll, perplexity))


def test_a_likelihood_given_a_latent_needs_latents() -> None:
    both, given = ("score", "score_given_latent"), ("score_given_latent",)
    cases: list[tuple[tuple[str, ...], tuple[str, ...], str | None]] = [
        (both, ("latents",), "score"), (given, ("latents",), "score_given_latent"), (given, (), None),
        (("score",), (), "score"), ((), ("latents",), None),
    ]  # fmt: skip
    for uses, fields, expected in cases:
        able: Any = Capabilities(uses=frozenset(uses), trained_as="a test")  # type: ignore[arg-type]
        assert _use(able, fields) == expected


def test_a_pass_reads_every_example_once_in_evaluation_mode_with_the_averages_and_without_gradients() -> None:
    """With dropout, or with the weights of the last step, the numbers would be plausible and not those of the run."""
    seen: list[int] = []
    states: set[tuple[bool, bool, bool, float]] = set()

    root: Any = Root()

    class Watching(_Objective):
        def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
            weight = float(model.weight.detach())
            states.add((root.training, model.training, torch.is_grad_enabled(), weight))
            seen.extend(batch.examples_B[batch.real_B].tolist() if kind == "a" else [])
            return super().__call__(model, batch, generator, kind=kind, step=step)

    root.objective = Watching(**vars(root.objective))
    ema = Ema(root, EmaConfig())
    with torch.no_grad():
        ema.values["model.weight"].fill_(0.75)
        root.model.weight.fill_(0.5)
    rows: Any = helpers.Rows(23)
    validation = Validation(
        rows, root, ema, ALONE, batch=BatchConfig(examples=4), examples=22, seed=0, max_length=helpers.LONGEST,
        fill=True,
    )  # fmt: skip
    validation(3)
    assert sorted(seen) == list(range(22)), "rows of the subset"
    assert states == {(False, False, False, 0.75)}
    assert (root.training, root.model.training, float(root.model.weight.detach())) == (True, True, 0.5)
