"""Statistics of a step: every number by an independent computation, and none of them changes the training."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.training import task

from mm_ldlm.extras.diagnostics.statistics import ZERO_DIAGNOSES
from mm_ldlm.training import loop


def test_diagnosed_steps_train_to_the_same_bits(tmp_path: Path) -> None:
    runs = []
    for every in (0, 2):
        runs.append(task.built(task.spec(diagnose_every=every, log_every=3), tmp_path / str(every)))
        loop.train(runs[-1])
    assert task.largest_difference(task.held(runs[0]), task.held(runs[1])) == 0
    steps = [line["step"] for line in runs[1].tracker.lines if "param_norm/text_head" in line]
    assert steps == [1, 2, 4, 6, 8, 10]
    assert [line["step"] for line in runs[1].tracker.lines] == [1, 2, 3, 4, 6, 8, 9, 10], "also those of the interval"


def test_norms_ratios_and_zeros_of_the_parts(tmp_path: Path) -> None:
    run = task.built(task.spec(diagnose_every=1, batch={"accumulation": 4}), tmp_path)
    batch, sizes = run.loader.make(next(run.loader.plan.first(1)))[::-1], list[float]()  # the last is not the largest
    statistics = run.observers["statistics"]
    statistics.before_step(0, batch)
    run.learner.root.model.blocks[1].register_forward_hook(
        lambda module, inputs, outputs: sizes.append(
            math.sqrt(sum(float(x.detach().square().mean()) for x in outputs) / 2)
        )
    )
    run.learner.optimization.set_lr(5, scale=1.0)
    run.stepper.forward_backward(batch, draw=0, step=0)
    run.learner.root.model.text_head.linear.weight.grad[:3] = 0
    statistics.scaler = SimpleNamespace(get_scale=lambda: 4.0, is_enabled=lambda: True)  # type: ignore[attr-defined]
    before = {name: p.detach().clone() for name, p in run.learner.root.named_parameters()}
    grads = {name: p.grad.clone() for name, p in run.learner.root.named_parameters() if p.grad is not None}
    statistics.before_update()
    run.learner.optimization.step()
    line = statistics.after_update(1, applied=True)
    after = dict(run.learner.root.named_parameters())
    head = [name for name in grads if name.startswith("model.text_head")]

    def norm(tensors: Any) -> float:
        return math.sqrt(sum(float(x.double().square().sum()) for x in tensors))

    assert all(map(math.isfinite, line.values()))
    assert (line["grad_norm/text_head"], line["fp16_scale"]) == (
        pytest.approx(norm(grads[name] for name in head) / 4, rel=1e-5),
        4,
    )
    assert line["param_norm/text_head"] == pytest.approx(norm(before[name] for name in head), rel=1e-5, abs=1e-9)
    block = [name for name in grads if name.startswith("model.blocks.0.streams.1")]
    moved = norm(after[name].detach() - before[name] for name in block)
    ratio = moved / norm(before[name] for name in before if name.startswith("model.blocks.0.streams.1"))
    assert line["update_ratio/block0.stream1"] == pytest.approx(ratio, rel=1e-4)
    assert line["grad_nonfinite/text_head"] == 0
    zeros = sum(int((grads[name] == 0).sum()) for name in head) / sum(grads[name].numel() for name in head)
    assert line["grad_zeros/text_head"] == pytest.approx(zeros)
    assert line["activation_rms/block1"] == pytest.approx(max(sizes), rel=1e-5)
    assert sizes[-1] < max(sizes)
    k, masks = torch.tensor([[1.0, 0, 0, 0], [9.0, 0, 0, 0]]), torch.tensor([True, False])
    statistics._attention("model.blocks.7.attention")(None, (k[:1] * 3, k, k, masks), k)  # type: ignore[attr-defined]
    assert float(statistics._numbers["attention_logit_max/block7"]) == 3 / 2  # type: ignore[attr-defined]
    size = 6 * sum(p.numel() for p in run.learner.root.model.blocks.parameters())
    assert size / 4 < run.throughput.flops_per_token < size
    for moves in (True, False):
        statistics.before_step(1, batch)
        statistics.before_update()
        if moves:
            run.learner.optimization.step()
        line = statistics.after_update(2, applied=not moves)
        assert {value for name, value in line.items() if "update_ratio" in name} == (set() if moves else {0.0})


def test_a_part_without_gradients_is_named_once_until_they_return(tmp_path: Path) -> None:
    run = task.built(task.spec(diagnose_every=1, max_steps=16), tmp_path)
    parts = {"step": 0, "dead": {*range(1, 6), *range(7, 17)}}
    read = run.observers["statistics"].before_update

    def before_update() -> None:
        parts["step"] += 1
        for name, p in run.learner.root.named_parameters():
            if p.grad is not None and name.startswith("model.text_head") and parts["step"] in parts["dead"]:
                p.grad.zero_()
        read()

    run.observers["statistics"].before_update = before_update  # type: ignore[method-assign]
    loop.train(run)
    event, again = run.tracker.of("alert")
    assert (event["step"], event["name"], again["name"]) == (ZERO_DIAGNOSES, *["zero_gradients_of_parts"] * 2)
    assert "text_head" in event["reason"]
    assert "block" not in event["reason"]
