"""Each expectation of a check fails alone where its number alone is wrong; the numbers come from scripted sessions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.extras.gpu_check import compiling, extraction, flops, precision
from mm_ldlm.extras.gpu_check.outcome import Setting

NAN, INF = math.nan, math.inf


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("cpu", tmp_path)


# -- fp16 --------------------------------------------------------------------------------------------------------------

FP16: dict[str, Any] = {
    "scales": [1024.0, 512.0, 1024.0], "skipped": [2, 3], "moved": 0.0, "progress": 0.5, "restored": 512.0,
    "difference": 0.0,
}  # fmt: skip


def scripted_fp16(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the sessions of the check by one that reports these values; list what was done with it."""
    done: list[Any] = []
    state = SimpleNamespace(skipped=found["skipped"][0])
    scales = iter([*found["scales"], found["restored"]])
    differences = iter([found["moved"], found["progress"], found["difference"]])

    def train(steps: int) -> float:
        done.append(steps)
        state.skipped = found["skipped"][min(len(done) - 2, 1)] if steps == 1 else state.skipped
        return 1.0

    scaler = SimpleNamespace(get_scale=lambda: next(scales), set_growth_interval=lambda n: done.append(("growth", n)))
    checkpointer = SimpleNamespace(newest=lambda: "newest", restore=lambda what: done.append(("restore", what)))
    parts = SimpleNamespace(stepper=SimpleNamespace(scaler=scaler), state=state, checkpointer=checkpointer)

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, **more: Any) -> Iterator[Any]:
        done.append((spec.training.precision.autocast, spec.training.max_steps, sorted(more)))
        yield SimpleNamespace(parts=parts, train=train, tensors=dict)

    monkeypatch.setattr(precision, "session", session)
    monkeypatch.setattr(precision, "_losses", lambda setting, name: [2.0, 1.0])
    monkeypatch.setattr(precision.task, "largest_difference", lambda a, b: next(differences))
    return done


def test_fp16_overflows_after_three_steps_and_grows_for_four(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    done = scripted_fp16(FP16, monkeypatch)
    found = precision.fp16(setting)
    assert found.faults == ()
    opened = [("fp16", 8, ["checkpoints", "wrap_objective"]), ("fp16", 8, [])]
    assert done == [opened[0], ("growth", 4), 3, 1, 4, opened[1], ("restore", "newest")]
    assert (found.numbers["skipped"], found.numbers["scale restored"]) == (1, 512.0)


@pytest.mark.parametrize(("changes", "words"), [
    ({"skipped": [2, 2]}, "is skipped (1 skip; found 0)"),
    ({"skipped": [2, 4]}, "is skipped (1 skip; found 2)"),
    ({"moved": 1e-9}, "it moves nothing (largest change 1e-09)"),
    ({"moved": INF}, "it moves nothing (largest change inf)"),
    ({"scales": [1024.0, 1024.0, 2048.0], "restored": 1024.0}, "halves the scale (from 1024; found 1024)"),
    ({"scales": [1024.0, 256.0, 512.0], "restored": 256.0}, "halves the scale (from 1024; found 256)"),
    ({"scales": [1024.0, 512.0, 512.0]}, "double the scale again (found 512)"),
    ({"scales": [1024.0, 512.0, 2048.0]}, "double the scale again (found 2048)"),
    ({"progress": 0.0}, "these steps train"),
    ({"progress": INF}, "these steps train"),
    ({"restored": 1024.0}, "restores the scale (512; found 1024)"),
    ({"difference": 1e-9}, "and the weights (largest difference 1e-09)"),
])  # fmt: skip
def test_each_expectation_of_fp16_fails_alone(
    changes: dict[str, Any], words: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_fp16({**FP16, **changes}, monkeypatch)
    (fault,) = precision.fp16(setting).faults
    assert fault.startswith("expected that ")
    assert words in fault


@pytest.mark.parametrize("place", [0, 1])
def test_a_loss_of_fp16_far_from_float32_is_a_fault(
    place: int, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_fp16(FP16, monkeypatch)
    other = [2.0, 1.0]
    other[place] *= 1.051
    monkeypatch.setattr(precision, "_losses", lambda setting, name: other if name == "fp16" else [2.0, 1.0])
    found = precision.fp16(setting)
    assert found.numbers["loss error"] == pytest.approx(0.051)
    assert "in fp16 within 0.05 of float32" in found.faults[0]
    other[place] /= 1.051 / 1.049
    scripted_fp16(FP16, monkeypatch)
    monkeypatch.setattr(precision, "_losses", lambda setting, name: other if name == "fp16" else [2.0, 1.0])
    assert precision.fp16(setting).faults == ()


# -- compilation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("with_it", "without", "fits"), [
    ([2.0, 1.0], [2.0, 1.0], True), ([2.0, 1.0009], [2.0, 1.0], True), ([2.0, 1.0011], [2.0, 1.0], False),
    ([1.997, 1.0], [2.0, 1.0], False), ([2.0, NAN], [2.0, 1.0], False), ([NAN, 1.0], [2.0, 1.0], False),
    ([2.0, 1.0], [2.0, NAN], False),
])  # fmt: skip
def test_a_compiled_model_is_compared_step_by_step(
    with_it: list[float], without: list[float], fits: bool, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[Any] = []

    @contextlib.contextmanager
    def session(spec: Any, folder: Path, *, data: Any) -> Iterator[Any]:
        chosen = spec.training.precision.compile
        specs.append((chosen, len({int(n) for n in data.train.lengths})))
        seconds = {1: 9.0, 5: 10.0} if chosen else {1: 7.0, 5: 15.0}
        losses = with_it if chosen else without
        yield SimpleNamespace(train=seconds.__getitem__, log=SimpleNamespace(losses=lambda: losses))

    monkeypatch.setattr(compiling, "session", session)
    found = compiling.compiled(setting)
    assert specs == [(False, 1), (True, 1)], "one shape"
    assert (found.numbers["seconds of compiling"], found.numbers["ms per step"]) == (7.0, 2000.0)
    assert found.numbers["ms per step without"] == 3000.0
    assert (found.faults == ()) == fits
    assert (found.numbers["loss error"] <= 1e-3) == fits  # type: ignore[operator]


# -- extraction and operations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [0, 50, 95])
@pytest.mark.parametrize(("moved", "fits"), [(1e-4, True), (3e-4, False), (-3e-4, False)])
def test_every_vector_is_compared_with_that_of_the_cpu(
    moved: float, row: int, fits: bool, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = extraction.encoder

    def other(device: str, *, small: bool) -> Any:
        located, made = plain("cpu", small=small)
        if device == "cpu":
            return located, made
        run = made.run

        def moving(prepared: Any) -> Any:
            out = np.array(run(prepared))
            out[row % len(out), 3] += moved
            return out

        monkeypatch.setattr(made, "run", moving)
        return located, made

    monkeypatch.setattr(extraction, "encoder", other)
    monkeypatch.setattr(Setting, "small", True)
    found = extraction.extraction(Setting("meta", setting.folder))
    assert found.numbers["repeated bytes"] is True
    assert [("found a difference of" in fault) for fault in found.faults] == ([] if fits else [True])


@pytest.mark.parametrize(("counted", "parameters", "words"), [
    (0, 0, None), (1, 0, "operations (torch's counter)"), (0, 1, f"found {flops.PARAMETERS_892M + 1:,}. Correct"),
])  # fmt: skip
def test_other_operations_or_parameters_than_expected_are_faults(
    counted: int, parameters: int, words: str | None, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, length = 4, flops.SHAPE_892M.max_length
    formula = flops.forward_flops(
        flops.MMDIT_892M, flops.SHAPE_892M, examples=examples, length=length, logits=examples * length,
        heads=("text", "length"),
    )  # fmt: skip
    found = (formula + counted, flops.PARAMETERS_892M + parameters)
    monkeypatch.setattr(flops, "counted_flops", lambda *given, **more: found)
    finding = flops.flops(setting)
    assert finding.numbers["GFLOP per token"] == 3 * formula / (4 * 1024) / 1e9
    assert [words in fault for fault in finding.faults] == ([] if words is None else [True])  # type: ignore[operator]
