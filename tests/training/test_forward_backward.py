"""Precision: float32 parameters under autocast, one decision of all ranks, and the loss scale of fp16."""

from pathlib import Path

import pytest
import torch
from tests.training import task
from tests.training.test_loop import faulty

from mm_ldlm.training import loop, precision
from mm_ldlm.training.config import PrecisionConfig
from mm_ldlm.training.precision import multiplies_bf16, resolve

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("able", "cpu", "expected"),
    [("amx_bf16", "Intel", "bf16"), ("avx512_bf16", "Intel", "fp32"), ("avx512_bf16", "AMD EPYC", "bf16")],
)
def test_auto_is_bf16_where_the_device_gains_by_it_in_the_folder_of_the_plan(
    able: str, cpu: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {able: True, "cpu_name": cpu}, raising=False)
    assert multiplies_bf16(CPU) is (expected == "bf16")
    assert resolve(PrecisionConfig(autocast="auto"), task.ALONE).autocast == expected
    assert resolve(PrecisionConfig(autocast="bf16"), task.ALONE).autocast == "bf16"
    spec = task.spec(precision={"autocast": "auto"}, max_steps=6)
    assert task.built(spec, tmp_path).checkpointer.directory.parent == tmp_path / spec.name
    monkeypatch.setattr(precision.collectives, "gather", lambda value: [value, False])  # another rank lacks it
    assert resolve(PrecisionConfig(autocast="auto"), task.ALONE).autocast == "fp32"


@pytest.mark.parametrize("autocast", ["fp32", "bf16", "fp16"])
def test_pitfall_03_products_have_the_type_and_parameters_stay_float32(autocast: str, tmp_path: Path) -> None:
    run = task.built(task.spec(precision={"autocast": autocast}, max_steps=6), tmp_path)
    seen = set()
    for module in run.learner.root.model.blocks.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    loop.train(run)
    assert seen == {{"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[autocast]}
    assert {value.dtype for value in task.held(run).values()} == {torch.float32}
    scaler = run.learner.optimization.scaler
    assert scaler.is_enabled() is (autocast == "fp16")
    losses = [line["loss"] for line in run.tracker.lines]
    plain = task.built(task.spec(max_steps=6), tmp_path / "plain")
    loop.train(plain)
    assert losses == pytest.approx([line["loss"] for line in plain.tracker.lines], rel=0.05)


def test_an_overflow_skips_a_step_halves_the_scale_and_is_restored(tmp_path: Path) -> None:
    spec = task.spec(
        faulty({"kind": "inf_gradient", "step": 3, "times": 1}), precision={"autocast": "fp16"}, max_steps=8
    )
    run = task.built(spec, tmp_path)
    task.train_until(run, 3)
    scaler = run.learner.optimization.scaler
    before, scale = task.held(run), scaler.get_scale()
    scaler.set_growth_interval(4)
    task.train_until(run, 4)
    assert task.largest_difference({key: value for key, value in before.items()}, task.held(run)) == 0
    assert (scaler.get_scale(), run.learner.state.skipped) == (scale / 2, 1)
    again = task.built(spec, tmp_path)
    again.checkpointer.resume("auto", tmp_path)
    assert again.learner.optimization.scaler.get_scale() == scale / 2
    task.train_until(run, 8)
    assert scaler.get_scale() == scale
