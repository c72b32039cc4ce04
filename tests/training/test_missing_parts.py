"""Trainings that lack something: averages, examples, gradients, a best checkpoint, a file that can be written."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from parts import ALONE, Heard
from test_importing import older

from mm_ldlm.core import files as atomic
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import CheckpointError, ConfigurationError, StoreError
from mm_ldlm.extras.foreign_checkpoints.exporting import export_checkpoint
from mm_ldlm.extras.foreign_checkpoints.importing import Given, import_checkpoint
from mm_ldlm.models.base import DataShape
from mm_ldlm.training import data as training_data
from mm_ldlm.training import initial, memory, plan, precision, resuming
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import BatchConfig, OptimizerConfig, TrainingConfig
from mm_ldlm.training.optimizer import Optimization
from mm_ldlm.training.spec import TrainingSpec

NONE = np.zeros(0, np.int64)


# -- averages and states -----------------------------------------------------------------------------------------------


def built(root: Path, *, averaged: bool) -> Any:
    """The components of a run with or without averages, whose weights are all 1."""
    spec = helpers.spec(model={"depth": 1}, ema={"enabled": averaged}, checkpoint={"background": False})
    parts = build(spec, root=root, data=helpers.data(), process=ALONE, tracker=Heard())
    with torch.no_grad():
        for parameter in parts.stepper.root.parameters():
            parameter.fill_(1.0)
    return parts


def test_a_run_without_averages_is_saved_and_restored_without_them(tmp_path: Path) -> None:
    first = built(tmp_path, averaged=False)
    first.state.step = 3
    first.checkpointer.save({})
    path = tmp_path / "run/checkpoints/step-00000003"
    assert {file.name for file in path.glob("*.safetensors")} == {
        "model.safetensors", "optimizer.safetensors", "rng_state_rank0.safetensors"
    }  # fmt: skip
    with torch.no_grad():
        for parameter in first.stepper.root.parameters():
            parameter.fill_(2.0)
    assert first.checkpointer.restore() == 3
    assert all(bool((parameter == 1.0).all()) for parameter in first.stepper.root.parameters())
    with pytest.raises(CheckpointError, match=r"expected a file ema\.safetensors, found none"):
        built(tmp_path, averaged=True).checkpointer.restore()


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("guard", {"windows": None}, "AttributeError: "),
        ("state", {"step": -1}, "ValueError: \"expected a count in 'step', found -1"),
        ("state", {"lr_scale": "half"}, "ValueError: \"expected a number in 'lr_scale', found 'half'"),
    ],
)
def test_a_checkpoint_whose_state_is_no_state_is_refused_with_its_fault(
    part: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    parts = built(tmp_path, averaged=True)
    parts.checkpointer.save({})
    path = tmp_path / "run/checkpoints/step-00000000"
    document = json.loads((path / "training_state.json").read_text())
    document[part] |= changes
    (path / "training_state.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError) as refused:
        parts.checkpointer.restore(path)
    text = str(refused.value)
    assert text.startswith(f"{path}: the state of the optimizer, the random generators or the guard cannot be restored")
    assert f"({words}" in text
    assert text.endswith("Choose another checkpoint.")


def test_a_damaged_pointer_does_not_replace_the_message_of_a_training_that_diverged(tmp_path: Path) -> None:
    parts = built(tmp_path, averaged=True)
    parts.checkpointer.save({})
    (tmp_path / "run/checkpoints/latest").write_text("../elsewhere")
    assert "expected the name of a checkpoint of this run" in parts.checkpointer.latest()


@pytest.mark.parametrize("best", [2, None])
def test_a_run_that_goes_back_keeps_its_best_checkpoint_where_that_is_an_earlier_one(
    best: int | None, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoints"
    for step in (2, 4, 6):
        folder.write(directory, step, folder.Contents({}, {"training_state.json": {"metrics": {"loss": 9.0 - step}}}))
    if best is not None:
        folder.point(directory, "best", directory / folder.name_of(best))
    state = SimpleNamespace(step=4, best=0.5)
    parts: Any = SimpleNamespace(
        checkpointer=SimpleNamespace(directory=directory, restore=lambda path: None), state=state, tracker=Heard(),
        process=SimpleNamespace(is_main=True),
    )  # fmt: skip
    resuming._go_back(parts, helpers.spec(checkpoint={"best_metric": "loss"}), directory / folder.name_of(4))
    assert folder.pointer(directory, "best") == (None if best is None else "step-00000002")
    assert state.best == 0.5, "not read again"
    assert (directory / "latest").read_text() == "step-00000004\n"


# -- examples and gradients --------------------------------------------------------------------------------------------


def limits(**given: Any) -> TrainingConfig:
    return parse(TrainingConfig, {"batch": {"examples": 4}, "optimizer": {"warmup_steps": 0}, **given}, at="training")


def test_without_examples_only_max_steps_limits_a_training() -> None:
    every = limits(epochs=2, max_tokens=100, max_steps=7)
    assert plan.steps_of(every, NONE, max_length=12, seed=0) == {"max_steps": 7}
    assert set(plan.steps_of(every, np.array([3, 5]), max_length=12, seed=0)) == {"max_steps", "epochs", "max_tokens"}
    with pytest.raises(ValueError, match="expected at least one example, found none"):
        BatchPlan(NONE, BatchConfig(examples=4), seed=0, max_length=12)


def test_a_split_without_examples_is_refused_by_the_plan_and_by_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = helpers.spec()
    dataset: Any = SimpleNamespace(
        directory=Path("the data"), fingerprints=spec.fingerprints, rows=lambda split: NONE, lengths=lambda split: NONE,
        tokenizer=SimpleNamespace(max_length=12),
    )  # fmt: skip
    monkeypatch.setattr(training_data.Dataset, "open", lambda path: dataset)
    words = r"^the data: expected examples of split 'train', found none\. Check ingestion\.splits\.$"
    with pytest.raises(StoreError, match=words):
        plan._resolved(limits(epochs=2), dataset, seed=0)
    with pytest.raises(StoreError, match=words):
        training_data.open_data(spec, tmp_path)


def test_the_norm_without_gradients_is_zero_and_nothing_is_clipped() -> None:
    made = Optimization(torch.nn.Linear(2, 2), OptimizerConfig(clip=1e-9), max_steps=10)
    assert (made.norm().shape, float(made.norm())) == ((), 0.0)
    assert made.clip(float(made.norm())) is False


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_spec_that_is_missing_or_no_json_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    with pytest.raises(ConfigurationError, match=r"spec\.json: no such spec\. Write one by `kedro run --to-nodes=plan"):
        TrainingSpec.read(file)
    file.write_text("{")
    with pytest.raises(ConfigurationError, match=r"spec\.json: not readable as JSON \(.+\)\.$"):
        TrainingSpec.read(file)


def test_a_folder_that_cannot_be_written_is_named_by_import_and_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_checkpoint(older(tmp_path / "older"), tmp_path / "runs/run", Given())

    plain = atomic.new_directory

    def full(path: Path) -> Any:
        if path.parent == tmp_path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(path)

    monkeypatch.setattr(atomic, "new_directory", full)
    for name, write in {
        "exported": lambda place: export_checkpoint(tmp_path / "runs/run", place),
        "imported": lambda place: import_checkpoint(tmp_path / "older", place, Given()),
    }.items():
        with pytest.raises(CheckpointError) as refused:
            write(tmp_path / name)
        assert str(refused.value) == (
            f"{tmp_path / name} cannot be written (No space left on device). Choose another folder."
        )


# -- what a machine or a model lacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_that_emulates_bf16_counts_as_one_without_it(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **given: asked.append(given) or supported)
    assert precision.multiplies_bf16(torch.device("cuda", 0)) is supported
    assert asked == [{"including_emulation": False}]


def test_a_model_that_cannot_be_built_is_refused_by_its_first_line() -> None:
    class TooLarge:
        def build(self, shape: DataShape, *, generator: torch.Generator) -> Any:
            raise RuntimeError("a dimension beyond 64 bits\nand the trace of it")

    with pytest.raises(ConfigurationError) as refused:
        memory.estimate(TooLarge(), helpers.SHAPE, limits(max_steps=1), tokens=8)
    assert str(refused.value) == (
        "parameter 'model': no model of this size can be built (a dimension beyond 64 bits). Lower its dimensions."
    )


def test_a_parameter_with_two_dimensions_of_tokens_cannot_be_remapped() -> None:
    def root(shape: DataShape) -> Any:
        made = torch.nn.Module()
        made.pairs = torch.nn.Parameter(torch.zeros(shape.vocab_size, 3, shape.vocab_size))
        return made

    shape = helpers.SHAPE
    both = initial.Vocabularies(torch.arange(3), torch.arange(3), dataclasses.replace(shape, vocab_size=20), shape)
    with pytest.raises(CheckpointError, match="weights: pairs is indexed by tokens in 2 dimensions") as refused:
        initial.remap(
            {"pairs": torch.zeros(20, 3, 20)}, dict(root(shape).named_parameters()), both, build=root,
            source=Path("weights"),
        )  # fmt: skip
    assert str(refused.value).endswith("Set training.init_vocabulary to same.")
