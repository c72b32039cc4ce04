"""The repetition of a step that failed: which examples, modules, losses and gradients are named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parts import ALONE, Heard
from torch import nn

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training import diagnosis
from mm_ldlm.training.diagnosis import diagnose


def batch(latents: Any, examples: list[int], **fields: Any) -> Batch:
    latents = torch.as_tensor(latents, dtype=torch.float32)
    one = torch.ones(len(latents), 1, dtype=torch.int64)
    return Batch(
        tokens_BL=one, valid_BL=one > 0, fields={"latents": latents, **fields}, examples_B=torch.tensor(examples),
        position_B=torch.arange(len(latents)), global_size=len(latents), global_tokens=len(latents),
    )  # fmt: skip


class Model(nn.Module):
    """Two layers with a function between them that belongs to no module."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        self.between = between
        nn.init.ones_(self.one.weight)
        nn.init.ones_(self.two.weight)

    def forward(self, latents_Bd: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(self.between(self.one(latents_Bd)))
        return found


class _Objective:
    kinds, weights, units = ("a",), {"trained": 1.0}, {"trained": "examples"}

    def __init__(self, reported: float = 1.0, before: Any = lambda x: x) -> None:
        self.reported, self.before = reported, before

    def __call__(self, model: Any, batch: Batch, generator: Any, *, kind: str, step: int) -> Any:
        value = model(self.before(batch.fields["latents"])).sum()
        count = torch.tensor(1.0)
        return {"trained": (value, count), "reported": (torch.tensor(self.reported), count)}


def told(
    micros: list[Batch], directory: Path, *, before: Any = lambda x: x, between: Any = lambda x: x,
    reported: float = 1.0, scaler: Any = None,
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """The paragraph of a diagnosis, and the findings of the first rank."""
    objective: Any = _Objective(reported, before)
    root = TrainableRoot(Model(between), objective)

    def losses(batch: Batch, **asked: Any) -> Any:
        repeated.append(asked)
        return root(batch, None, asked["kind"], asked["step"])

    repeated: list[dict[str, Any]] = []
    stepper: Any = SimpleNamespace(
        process=ALONE, root=root, objective=objective, parallel=Parallel(root, ALONE), scaler=scaler, losses=losses
    )
    heard = Heard()
    optimization: Any = SimpleNamespace(drop_gradients=lambda: None)
    text = diagnose(
        stepper, optimization, micros, kind="a", step=3, draw=5, reason="why", directory=directory, tracker=heard
    )
    written = json.loads((directory / "diagnosis-step-00000003.json").read_text())
    assert (written["step"], written["draw"], written["reason"], written["diagnosis"]) == (3, 5, "why", text)
    assert heard.events == [(3, "diagnosis", {"reason": text})]
    assert all(asked == {"kind": "a", "draw": 5, "step": 3} for asked in repeated), "with the noise of the step"
    assert repeated
    return text, written["ranks"][0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_number_that_is_not_finite_names_its_example_and_fillings_are_none(bad: float, tmp_path: Path) -> None:
    micros = [
        batch([[1.0, bad], [1.0, 1.0], [bad, bad]], [41, 42, -1], ids=torch.ones(3, dtype=torch.int64)),
        batch([[1.0, 1.0], [bad, 1.0]], [43, 44]),
    ]
    text, found = told(micros, tmp_path)
    assert found["examples"] == {"latents": [41, 44]}, "of every micro-batch"
    assert "latents of examples [41, 44] contain NaN or Inf" in text


def test_a_module_is_named_only_if_its_own_inputs_are_finite(tmp_path: Path) -> None:
    """What lies between two modules makes NaN: neither the first module does nor the second."""
    fine = batch([[1.0, 2.0]], [7])
    _, found = told([fine], tmp_path, between=lambda x: x * math.nan)
    assert found["forward"] == "model", "the whole model is the smallest module with finite inputs"
    _, found = told([fine], tmp_path, between=lambda x: x * 1e38)
    assert found["forward"] == "two", "its inputs are finite, but not their sum"
    assert (found["inputs"], found["parameters"], found["examples"]) == ([], [], {})


def test_arguments_of_the_model_that_are_not_finite_are_named(tmp_path: Path) -> None:
    """The objective makes them from finite examples, and they have no gradient."""
    text, found = told([batch([[1.0, 2.0]], [7])], tmp_path, before=lambda x: x * math.nan)
    assert (found["examples"], found["inputs"], found["forward"]) == ({}, ["0"], None)
    assert "the model received values that are not finite: 0." in text


def test_losses_that_are_only_reported_are_no_cause(tmp_path: Path) -> None:
    text, found = told([batch([[1.0, 2.0]], [7])], tmp_path, reported=math.nan)
    assert found["losses"] == []
    assert "all values were finite on every rank" in text
    _, found = told([batch([[1.0, 2.0]], [7])] * 2, tmp_path, between=lambda x: x * math.nan)
    assert found["losses"] == ["trained"], "once for all micro-batches"


def test_gradients_and_magnitudes_are_those_of_all_micro_batches(tmp_path: Path) -> None:
    """The first micro-batch is the largest, and the only one whose gradient is not finite."""

    def steep(x: torch.Tensor) -> torch.Tensor:
        """0 for values above 100, where its derivative is no number."""
        return (x - x.detach()).abs().sqrt() if float(x.detach().max()) > 100 else x

    large, small = batch([[60.0, 60.0]], [1]), batch([[1.0, 1.0]], [2])
    _, found = told([large, small], tmp_path)
    assert found["largest"]["one"] == 120.0
    assert found["gradient"] is None
    assert found["norm"] == pytest.approx((4 * 60**2 + 2 * 120**2) ** 0.5)
    assert found["steepest"] == "model.two.weight"
    text, found = told([large, small], tmp_path, between=steep)
    assert found["gradient"] == "model.one.weight"
    assert "gradients became non-finite" in text


def test_of_several_gradients_the_one_that_is_computed_first_is_named(tmp_path: Path) -> None:
    """Both gradients are infinite, and the backward pass meets that of the last layer first."""
    scaler = SimpleNamespace(scale=lambda loss: loss * math.inf)
    _, found = told([batch([[1.0, 2.0]], [7])], tmp_path, scaler=scaler)
    assert found["gradient"] == "model.two.weight"


def test_with_fp16_the_loss_is_scaled_as_in_the_step(tmp_path: Path) -> None:
    scaler = SimpleNamespace(scale=lambda loss: loss * 16.0)
    _, plain = told([batch([[1.0, 1.0]], [1])], tmp_path)
    _, scaled = told([batch([[1.0, 1.0]], [1])], tmp_path, scaler=scaler)
    assert scaled["norm"] == pytest.approx(16 * plain["norm"])


def test_a_step_that_cannot_be_repeated_is_reported_as_such(tmp_path: Path) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise OSError("gone")

    text, found = told([batch([[1.0, 1.0]], [1])], tmp_path, between=fails)
    assert found["trouble"] == "OSError: gone"
    assert "the step could not be repeated (OSError: gone)" in text


def test_the_findings_of_every_rank_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def everyone(text: str, *, device: torch.device) -> list[str]:
        other = {**json.loads(text), "rank": 1, "examples": {"latents": [9]}}
        return [text, json.dumps(other)]

    monkeypatch.setattr(diagnosis.collectives, "gather_texts", everyone)
    text, _ = told([batch([[1.0, 1.0]], [1])], tmp_path)
    written = json.loads((tmp_path / "diagnosis-step-00000003.json").read_text())
    assert [rank["rank"] for rank in written["ranks"]] == [0, 1]
    assert text.startswith("Rank 1, a step of kind a: the input is not finite: latents of examples [9]")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_alone_writes_what_all_of_them_found(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis.collectives, "gather_texts", lambda text, *, device: [text])
    objective: Any = _Objective()
    root = TrainableRoot(Model(lambda x: x * math.nan), objective)
    process = Process(RankInfo(rank=rank, world=2), torch.device("cpu"), None)
    stepper: Any = SimpleNamespace(
        process=process, root=root, objective=objective, parallel=Parallel(root, ALONE), scaler=None,
        losses=lambda batch, *, kind, draw, step: root(batch, None, kind, step),
    )  # fmt: skip
    heard, cleared = Heard(), list[int]()
    optimization: Any = SimpleNamespace(drop_gradients=lambda: cleared.append(1))
    text = diagnose(
        stepper, optimization, [batch([[1.0, 2.0]], [7])], kind="a", step=3, draw=5, reason="why", directory=tmp_path,
        tracker=heard,
    )  # fmt: skip
    assert text.startswith(f"Rank {rank}, a step of kind a: ")
    assert [path.name for path in tmp_path.iterdir()] == ["diagnosis-step-00000003.json"] * (rank == 0)
    assert len(heard.events) == (rank == 0)
    assert len(cleared) == 2, "before and after the repetition"


def test_the_paragraph_has_the_findings_of_at_most_four_ranks_and_of_none_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_by(**of_rank: dict[str, Any]) -> str:
        def everyone(text: str, *, device: torch.device) -> list[str]:
            return [json.dumps({**json.loads(text), "rank": n, **of_rank.get(f"r{n}", {})}) for n in range(7)]

        monkeypatch.setattr(diagnosis.collectives, "gather_texts", everyone)
        return told([batch([[1.0, 1.0]], [1])], tmp_path)[0]

    bad = {"parameters": ["w"]}
    text = told_by(r1=bad, r2=bad, r3={"trouble": "gone"}, r4=bad, r5=bad, r6=bad)
    assert [n for n in range(7) if f"Rank {n}," in text] == [1, 2, 4, 5]
    text = told_by(r2={"trouble": "OSError: gone"}, r5={"trouble": "lost"})
    assert [n for n in range(7) if f"Rank {n}," in text] == [2, 5]
    assert "(OSError: gone)" in text
    assert "(lost)" in text
    assert "all values were finite on every rank" in told_by()
