"""Who writes the gradients of a diagnosed step, in which scale, and the line of a step that is not finite."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mm_ldlm.core.errors import FreezingError
from mm_ldlm.models.parts import tag
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.diagnostics import Diagnostics
from mm_ldlm.training.gradients import STATISTICS, gradient_statistics


def root(gradient: list[float] | None, *, parts: str = "head") -> TrainableRoot:
    """A model of one vector of weights 3 and 4 with this gradient."""
    model = nn.Module()
    model.vector = nn.Parameter(torch.tensor([3.0, 4.0]))
    model.vector.grad = None if gradient is None else torch.tensor(gradient)
    objective: Any = SimpleNamespace(kinds=("a",))
    return TrainableRoot(tag(model, parts), objective)


def diagnosed(
    made: TrainableRoot, *, scale: float | None = None, gradients: Path | None = None, writes: bool = True,
    applied: bool = False,
) -> dict[str, float]:  # fmt: skip
    """The line of one diagnosed step, the seventh."""
    scaler: Any = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    watch = Diagnostics(
        1, made, compiled=False, scaler=scaler, device=torch.device("cpu"), gradients=gradients, writes=writes
    )
    watch.before_update()
    made.model.vector.data += torch.tensor([0.3, 0.4])  # type: ignore[operator,union-attr]
    watch.after_update(7, applied=applied)
    return watch.take()


def test_without_gradients_there_are_no_rows() -> None:
    names, values = gradient_statistics(root(None), scale=1.0)
    assert (names, values.shape, values.dtype) == ([], (0, len(STATISTICS)), torch.float64)


@pytest.mark.parametrize("writes", [True, False])
def test_one_rank_writes_the_gradients_of_the_loss_without_its_scale(writes: bool, tmp_path: Path) -> None:
    line = diagnosed(root([6.0, 8.0]), scale=2.0, gradients=tmp_path, writes=writes)
    assert (line["grad_norm/head"], line["fp16_scale"], line["fp16_underflow"]) == (5.0, 2.0, 0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["gradients.jsonl"] * writes
    if writes:
        (text,) = (tmp_path / "gradients.jsonl").read_text().splitlines()
        found = json.loads(text)
        assert found["step"] == 7
        assert found["parameters"] == {"model.vector": pytest.approx({
            "norm": 5.0, "mean": 3.5, "std": 0.5, "largest": 4.0, "zeros": 0.0, "nonfinite": 0.0,
        })}  # fmt: skip


def test_nothing_is_computed_for_a_file_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.training.diagnostics.gradient_statistics", lambda *_, **__: pytest.fail("computed"))
    assert diagnosed(root([1.0, 1.0]))["grad_norm/head"] == pytest.approx(2**0.5)


def test_the_line_of_a_step_that_is_not_finite_has_its_numbers() -> None:
    """The number of entries that are not finite, the norm as it is, and no ratio of an update that was not made."""
    line = diagnosed(root([math.inf, 8.0]))
    del line["memory_peak_gib"]
    assert line == {"param_norm/head": 5.0, "grad_norm/head": math.inf, "grad_zeros/head": 0.0,
                    "grad_nonfinite/head": 1.0}  # fmt: skip
    line = diagnosed(root([math.nan, math.inf]))
    assert math.isnan(line["grad_norm/head"])
    assert line["grad_nonfinite/head"] == 2.0


def test_the_line_of_a_step_is_whole() -> None:
    """Of weights 3 and 4 that move by 0.3 and 0.4; a scale is logged with fp16 alone."""
    line = diagnosed(root([0.0, 8.0]), applied=True)
    assert line.pop("memory_peak_gib") > 0
    assert line == pytest.approx({
        "param_norm/head": 5.0, "grad_norm/head": 8.0, "grad_zeros/head": 0.5, "grad_nonfinite/head": 0.0,
        "update_ratio/head": 0.1,
    })  # fmt: skip


def test_frozen_weights_are_watched_from_the_start_of_the_training() -> None:
    made = root(None)
    made.model.register_parameter("fixed", nn.Parameter(torch.ones(3), requires_grad=False))
    watch = Diagnostics(1, made, compiled=False, scaler=None, device=torch.device("cpu"))
    watch.verify_freezing()  # nothing is watched yet
    assert watch.watch_freezing() == {"parameters": 5, "parts": {"head": {"trains": 2, "frozen": 3}}}
    watch.verify_freezing()
    made.model.vector.data += 1.0  # type: ignore[operator,union-attr]
    watch.verify_freezing()
    made.model.fixed.data[2] += 1.0  # type: ignore[operator,union-attr,index]
    with pytest.raises(FreezingError, match=r"model\.fixed \(head\) is frozen and has moved"):
        watch.verify_freezing()
