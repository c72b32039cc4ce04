"""What the loop hands to each of its parts in a step, and what it closes however it ends."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from parts import ALONE, Heard

from mm_ldlm.training import loop, throughput
from mm_ldlm.training.build import build


def made(root: Path, **settings: Any) -> Any:
    spec = helpers.spec(**{"model": {"depth": 1}, "objective": {"mode": "l2t"}, **settings})
    return build(spec, root=root, data=helpers.data(), process=ALONE, tracker=Heard())


def noted(parts: Any, *methods: str) -> list[tuple[str, tuple[Any, ...], dict[str, Any], Any]]:
    """Every call of these methods, `part.method`: name, arguments by place and by name, and result."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []

    def wrap(place: Any, name: str, method: str) -> None:
        plain = getattr(place, method)

        def call(*given: Any, **more: Any) -> Any:
            result = plain(*given, **more)
            calls.append((name, given, more, result))
            return result

        setattr(place, method, call)

    for name in methods:
        place = parts
        *way, method = name.split(".")
        for step in way:
            place = getattr(place, step)
        wrap(place, name, method)
    return calls


def test_each_part_receives_the_numbers_of_the_step_after_a_resume_and_a_roll_back(tmp_path: Path) -> None:
    """Step 4 with the 14th batch, after 3 updates of the averages, at half the learning rate."""
    parts = made(tmp_path, max_steps=5, log_every=1, optimizer={"lr": 3e-3, "warmup_steps": 2, "clip": 1e-6})
    state = parts.state
    state.step, state.draw, state.ema_updates, state.lr_scale = 4, 14, 3, 0.5
    state.epoch, state.batch_in_epoch, state.examples, state.tokens = 2, 1, 1000, 5000
    parts.preview = lambda step, *, last: None
    calls = noted(
        parts, "optimization.set_lr", "stepper.forward_backward", "guard.judge", "optimization.clip", "ema.update",
        "stepper.observe", "throughput.applied", "throughput.stepped", "throughput.line", "alerts.stepped",
        "checkpointer.save", "preview",
    )  # fmt: skip
    assert loop.run(parts) == "finished"
    found = {name: (given, more, result) for name, given, more, result in calls}
    assert len(found) == len(calls) == 12, "each of them once"
    planned = next(parts.loader.plan.from_(2, 1))
    given, more, lr = found["optimization.set_lr"]
    assert (given, more) == ((4,), {"scale": 0.5})
    given, more, (kind, _) = found["stepper.forward_backward"]
    assert (more, kind) == ({"draw": 14, "step": 4}, "l2t")
    assert [micro.examples_B.tolist() for micro in given[0]] == [planned.examples.tolist()]
    judged = found["guard.judge"][1]
    loss, norm = judged["loss"], judged["grad_norm"]
    assert judged == {"kind": "l2t", "loss": loss, "grad_norm": norm, "bad_ranks": [], "overflow": False}
    assert 0 < norm != loss > 0
    assert found["optimization.clip"] == ((norm,), {}, True)
    assert found["ema.update"][:2] == ((3,), {})
    (losses,), more, _ = found["stepper.observe"]
    assert more == {"step": 4}
    assert losses["text_loss"][1] == planned.tokens
    assert found["throughput.applied"][0] == (norm, True)
    (counted,) = found["throughput.stepped"][0]
    assert (counted.epoch, counted.index, counted.tokens) == (2, 1, planned.tokens)
    assert found["throughput.line"][:2] == ((lr,), {"flops_per_token": 0.0})
    assert found["alerts.stepped"][:2] == ((4,), {"kind": "l2t", "loss": loss, "grad_norm": norm})
    ((step, line),) = parts.tracker.lines
    assert (step, line["lr"], line["grad_norm"], line["clipped"], line["loss"]) == (5, lr, norm, 1.0, loss)
    assert (line["epoch"], line["batch_in_epoch"], line["mode"], line["l2t/loss"]) == (2, 1, "l2t", loss)
    (saved,) = found["checkpointer.save"][0]
    assert saved == {key: value for key, value in line.items() if key not in ("epoch", "batch_in_epoch", "mode")}
    assert found["preview"][:2] == ((5,), {"last": True})
    assert (state.step, state.draw, state.ema_updates) == (5, 15, 4)
    assert (state.epoch, state.batch_in_epoch) == (2, 2)
    assert (state.examples, state.tokens) == (1000 + len(planned.examples), 5000 + planned.tokens)


@pytest.mark.parametrize("autocast", ["fp32", "fp16"])
def test_only_under_a_loss_scale_a_norm_that_is_not_finite_is_an_overflow(autocast: str, tmp_path: Path) -> None:
    parts = made(tmp_path, max_steps=1, precision={"autocast": autocast}, optimizer={"warmup_steps": 0})
    calls = noted(parts, "guard.judge")
    loop.run(parts)
    assert [more["overflow"] for _, _, more, _ in calls] == [autocast == "fp16"]


def test_a_validation_has_a_line_of_its_own_and_a_checkpoint_between_lines_has_no_metrics(tmp_path: Path) -> None:
    parts = made(
        tmp_path, max_steps=7, log_every=5, validate_every=3, checkpoint={"every_steps": 2, "background": False}
    )
    validated: list[int] = []
    parts.validate = lambda step: validated.append(step) or {"loss": 10.0 + step, "l2t/text_loss": 2.5}
    saved: list[tuple[int, dict[str, float]]] = []
    parts.checkpointer.save = lambda line: saved.append((parts.state.step, line))
    loop.run(parts)
    assert validated == [3, 6, 7], "and after the last step"
    assert [step for step, _ in parts.tracker.lines] == [3, 5, 6, 7]
    for step, line in parts.tracker.lines:
        of_validation = {name: value for name, value in line.items() if name.startswith("validation/")}
        expected = {"validation/loss": 10.0 + step, "validation/l2t/text_loss": 2.5}
        assert of_validation == (expected if step in validated else {})
        assert line["loss"] > 0
    assert [step for step, _ in saved] == [2, 4, 6, 7]
    assert [bool(line) for _, line in saved] == [False, False, True, True]


def test_the_model_trains_in_training_mode_and_its_operations_are_counted_once(tmp_path: Path) -> None:
    parts = made(tmp_path, max_steps=4, diagnose_every=2)
    parts.stepper.root.eval()
    modes: list[bool] = []
    counted: list[tuple[Any, Any]] = []
    forward = parts.stepper.forward_backward

    def count(stepper: Any, batch: Any) -> None:
        counted.append((stepper, batch))
        parts.diagnostics.flops_per_token = 5e3

    def passes(micros: Any, **given: Any) -> Any:
        modes.extend(module.training for module in parts.stepper.root.modules())
        if parts.state.step == 0:
            assert counted[0][1] is micros[0]
        return forward(micros, **given)

    parts.stepper.forward_backward = passes
    parts.diagnostics.count_flops = count
    lines = noted(parts, "throughput.line")
    loop.run(parts)
    assert set(modes) == {True}
    assert [stepper for stepper, _ in counted] == [parts.stepper]
    assert [more for _, _, more, _ in lines] == [{"flops_per_token": 5e3}] * 4


def test_an_event_at_the_start_counts_the_parameters_that_train(tmp_path: Path) -> None:
    parts = made(tmp_path, max_steps=6)
    parts.state.step = 5
    loop.run(parts)
    step, kind, more = parts.tracker.events[0]
    root = parts.stepper.root
    assert (step, kind, set(more)) == (5, "trains", {"parameters", "parts"})
    assert more["parameters"] == sum(parameter.numel() for parameter in root.parameters())
    trained = sum(parameter.numel() for parameter in root.parameters() if parameter.requires_grad)
    assert sum(part["trains"] for part in more["parts"].values()) == trained


def test_a_warning_of_the_objective_is_an_event_of_its_step(tmp_path: Path) -> None:
    parts = made(tmp_path, max_steps=3)
    warnings = iter([None, "the losses are strange", None])
    parts.stepper.observe = lambda losses, *, step: next(warnings)
    loop.run(parts)
    assert [event for event in parts.tracker.events if event[1] == "objective_warning"] == [
        (1, "objective_warning", {"reason": "the losses are strange"})
    ]


def test_a_loop_that_fails_ends_its_thread_counts_its_seconds_and_waits_for_its_checkpoint(tmp_path: Path) -> None:
    parts = made(tmp_path, max_steps=4)

    def fails(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    parts.stepper.forward_backward = fails
    order: list[str] = []
    parts.throughput.count_seconds = lambda: order.append("seconds")
    parts.checkpointer.wait = lambda: order.append("wait")
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        loop.run(parts)
    assert order == ["seconds", "wait"]
    assert set(threading.enumerate()) <= before


def test_the_gradients_of_every_step_are_those_of_its_batch_alone(tmp_path: Path) -> None:
    """Also after a step that was skipped, whose gradients are cleared."""
    parts = made(
        tmp_path, max_steps=3, batch={"examples": 64, "length_multiple": 12}, optimizer={"lr": 1e-9, "warmup_steps": 0},
    )  # fmt: skip
    judge, norms = parts.guard.judge, list[float]()

    def second_is_skipped(**given: Any) -> Any:
        norms.append(given["grad_norm"])
        return judge(**given) if len(norms) != 2 else loop.Verdict("skip", "why")

    parts.guard.judge = second_is_skipped
    batch = next(parts.loader.from_(0, 0))
    noise = parts.stepper.generator
    parts.loader.from_ = lambda epoch, index: (batch for _ in range(9))
    parts.stepper.generator = lambda micro, draw: noise(micro, 0)
    loop.run(parts)
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-3), "the same batch, noise and nearly the same weights"
    assert all(parameter.grad is None for parameter in parts.stepper.root.parameters())


def test_the_ranks_send_their_flags_with_the_precision_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts beyond 2²⁴ are exact in float64 alone."""
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(loop.collectives, "sum_", lambda numbers: seen.append(numbers) or numbers)
    tally = loop.Tally()
    tally.add({"text": (torch.tensor(1.0), torch.tensor(2**25 + 1))}, torch.tensor(2.0))
    parts: Any = SimpleNamespace(
        process=ALONE, stop_requested=lambda: False, optimization=SimpleNamespace(norm=lambda: torch.tensor(4.0)),
        checkpointer=SimpleNamespace(minutes_over=lambda: False),
    )  # fmt: skip
    found = loop.agree(parts, tally, out_of_time=False)
    assert found.losses == {"text": (1.0, 2.0**25 + 1)}
    assert [numbers.dtype for numbers in seen] == [torch.float64]
    assert (found.loss, found.grad_norm, found.bad_ranks) == (2.0, 4.0, [])


@pytest.mark.parametrize(
    "actions",
    ["apply apply apply apply apply apply", "skip apply apply apply skip skip", "apply skip apply skip apply apply",
     "skip skip skip skip skip skip", "apply rollback skip apply apply skip"],
)  # fmt: skip
def test_the_numbers_of_a_line_are_those_of_applied_and_skipped_steps(
    actions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines of three steps of 16, 16 and 8 texts; a step takes 1/64 s for each padded token."""
    now = [100.0]
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(loop, "roll_back", lambda parts, verdict: None)
    spec = helpers.spec(
        max_steps=6, log_every=3, model={"depth": 1}, batch={"examples": 16, "length_multiple": 4},
    )  # fmt: skip
    parts: Any = build(spec, root=tmp_path, data=helpers.data(40), process=ALONE, tracker=Heard())
    verdicts = [loop.Verdict(action, "why") for action in actions.split()]  # type: ignore[arg-type]
    each = iter(verdicts)
    parts.guard.judge = lambda **_: next(each)
    plan, forward = parts.loader.plan, parts.stepper.forward_backward
    steps = [batch for epoch in (0, 1) for batch in plan.epoch(epoch)]
    assert [len(examples) for examples, _ in steps] == [16, 16, 8] * 2
    padded = [len(examples) * length for examples, length in steps]
    tokens = [int(plan.lengths[examples].sum()) for examples, _ in steps]

    def passes(*given: Any, step: int, **more: Any) -> Any:
        now[0] += padded[step] / 64
        return forward(*given, step=step, **more)

    parts.stepper.forward_backward = passes
    assert loop.run(parts) == "finished"
    assert [step for step, _ in parts.tracker.lines] == [3, 6]
    for first, (step, line) in zip((0, 3), parts.tracker.lines, strict=True):
        seconds = sum(padded[first:step]) / 64
        expected = {
            "tokens_per_second": sum(tokens[first:step]) / seconds, "seconds_per_step": seconds / 3,
            "padding_fraction": 1 - sum(tokens[first:step]) / sum(padded[first:step]),
            "tokens": sum(tokens[:step]), "seconds": sum(padded[:step]) / 64,
            "skipped": sum(verdict.action != "apply" for verdict in verdicts[:step]),
            "seconds_left": (6 - step) * sum(padded[first:step]) / 3 / 64,
        }  # fmt: skip
        assert {name: line[name] for name in expected} == pytest.approx(expected)


def test_a_diagnosed_step_that_is_skipped_has_no_update(tmp_path: Path) -> None:
    """Its line has the numbers of its gradients, and no averages of losses."""
    parts = made(tmp_path, max_steps=3, diagnose_every=1, optimizer={"warmup_steps": 0})
    verdicts = iter(["apply", "skip", "apply"])
    parts.guard.judge = lambda **_: loop.Verdict(next(verdicts), "why")
    calls = noted(parts, "diagnostics.after_update", "throughput.applied", "ema.update", "optimization.step")
    loop.run(parts)
    after = [(given, more) for name, given, more, _ in calls if name == "diagnostics.after_update"]
    assert after == [((1,), {"applied": True}), ((2,), {"applied": False}), ((3,), {"applied": True})]
    for name in ("throughput.applied", "ema.update", "optimization.step"):
        assert [call[0] for call in calls].count(name) == 2, name
    first, second, third = (line for _, line in parts.tracker.lines)
    for line, applied in ((first, True), (second, False), (third, True)):
        assert "grad_norm/block0.stream0" in line
        assert any(name.startswith("update_ratio/") for name in line) is applied
        assert ("loss" in line) is applied
    assert second["skipped"] == 1
