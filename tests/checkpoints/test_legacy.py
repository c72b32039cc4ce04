"""Checkpoints of other trainers are read as tensors alone; everything else in the file is refused, never executed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import reading as legacy


def saved(folder: Path, content: Any, name: str = "model.pt") -> Path:
    torch.save(content, folder / name)
    return folder


def test_weights_lose_their_wrappers_and_become_float32(tmp_path: Path) -> None:
    low = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    saved(tmp_path, {"module._orig_mod.a.weight": low, "ids": torch.arange(2)})
    (tmp_path / "training_state.json").write_text(json.dumps({"step": 92261}))
    assert legacy.is_legacy(tmp_path)
    found = legacy.read(tmp_path)
    assert list(found.tensors) == ["a.weight", "ids"]
    assert found.tensors["a.weight"].dtype == torch.float32
    assert found.tensors["a.weight"].tolist() == [1.5, -2.0]
    assert (found.step, found.file) == (92261, tmp_path / "model.pt")


def test_random_states_of_numpy_beside_the_weights_are_not_read(tmp_path: Path) -> None:
    saved(tmp_path, {"a": torch.ones(2)})
    saved(tmp_path, {"numpy": np.random.default_rng(0).bit_generator.state, "n": np.float64(1)}, "rng_state_rank0.pt")
    (tmp_path / "rng_state_rank_x.pt").write_bytes(b"")
    assert list(legacy.read(tmp_path).tensors) == ["a"]


@pytest.mark.parametrize("key", ["model", "model_state_dict", "state_dict"])
@pytest.mark.parametrize("name", ["checkpoint.pt", "model_final.pth", "model.pth"])
def test_files_that_contain_more_than_the_weights(key: str, name: str, tmp_path: Path) -> None:
    saved(tmp_path, {key: {"model.a": torch.ones(2)}, "config": {"dim": 2}, "global_step": 7}, name)
    for path in (tmp_path, tmp_path / name):
        found = legacy.read(path)
        assert (list(found.tensors), found.step) == (["a"], 7)


def test_of_several_files_and_steps_the_first_of_their_order_counts(tmp_path: Path) -> None:
    for number, name in enumerate(legacy.FILES):
        saved(tmp_path, {"state_dict": {"a": torch.full((1,), float(number))}, "global_step": 5}, name)
    (tmp_path / "training_state.json").write_text('{"state": {"step": 6}, "step": 7}')
    for number, name in enumerate(("model.pt", "checkpoint.pt", "model_final.pth", "model.pth", "pytorch_model.bin")):
        found = legacy.read(tmp_path)
        assert (found.file.name, found.tensors["a"].item(), found.step) == (name, number, 5)
        (tmp_path / name).unlink()
    assert not legacy.is_legacy(tmp_path)
    both = {"model_state_dict": {"module.model.a": torch.ones(1)}, "model": {"b": torch.ones(1)}}
    found = legacy.read(saved(tmp_path, both))
    assert (list(found.tensors), found.step) == (["a"], 7), "beside the file, if it has no step itself"


def test_safetensors_are_read_by_their_path(tmp_path: Path) -> None:
    save_file({"backbone.a": torch.ones(2)}, tmp_path / "weights.safetensors")
    assert legacy.is_legacy(tmp_path / "weights.safetensors")
    assert list(legacy.read(tmp_path / "weights.safetensors").tensors) == ["a"]


def test_the_record_of_the_training_state_is_read_without_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass
    class TrainingState:
        epoch: int = 0
        step: int = 0

    module = types.ModuleType("their_trainer")
    module.TrainingState = TrainingState  # type: ignore[attr-defined]
    TrainingState.__module__, TrainingState.__qualname__ = "their_trainer", "TrainingState"
    monkeypatch.setitem(sys.modules, "their_trainer", module)
    saved(tmp_path, {"model_state_dict": {"a": torch.ones(2)}, "state": TrainingState(step=90_000)}, "checkpoint.pt")
    monkeypatch.delitem(sys.modules, "their_trainer")
    assert legacy.read(tmp_path).step == 90_000
    assert "their_trainer" not in sys.modules


class Harm:
    def __reduce__(self) -> Any:
        return (os.system, ("touch harm-was-done",))


class TrainingState(Harm):
    """Named like the record that is read."""


class Args:
    lr = 1.0


@pytest.mark.parametrize("content", [{"a": Harm()}, {"a": torch.ones(1), "state": TrainingState()}, Harm()])
def test_a_pickle_that_would_run_something_is_refused(
    content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, content)
    with pytest.raises(CheckpointError, match=r"refused, because it contains objects of .*system"):
        legacy.read(tmp_path)
    assert not (tmp_path / "harm-was-done").exists()


def test_objects_of_the_trainer_are_named(tmp_path: Path) -> None:
    saved(tmp_path, {"state_dict": {"a": torch.ones(1)}, "hyper_parameters": Args()})
    with pytest.raises(CheckpointError, match=r"contains objects of .*Args.*save its weights") as error:
        legacy.read(tmp_path)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "found none"),
        ([torch.ones(2)], "found list"),
        (torch.ones(2), "found Tensor"),
        ({1: torch.ones(2)}, "found the name 1, which is no text"),
        ({("a",): torch.ones(2)}, "which is no text"),
        ({"a": 3.0}, "found float under 'a'"),
        ({"a": {"b": torch.ones(2)}}, "found dict under 'a'"),
        ({"a": torch.ones(2), "module.a": torch.ones(2)}, "two tensors for 'a'"),
        ({"a": torch.tensor([1.0, float("nan")])}, "NaN or infinity in 1 of 1"),
        ({"a": torch.tensor([float("inf")])}, "NaN or infinity"),
        ({"a": torch.tensor([1e300], dtype=torch.float64)}, "NaN or infinity"),
        ({"a": torch.ones(3).to_sparse()}, "sparse"),
        ({"a": torch.ones(2, device="meta")}, "meta"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "complex64"),
        ({"a": torch.ones(1).expand(10**6, 10**6)}, r"shape \(1000000, 1000000\), of which the file has 4 bytes"),
        ({"a" * 5000: 1}, "found int under"),
    ],
)
def test_what_is_no_tensor_by_name_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    saved(tmp_path, content)
    with pytest.raises(CheckpointError, match=message) as error:
        legacy.read(tmp_path)
    assert len(str(error.value)) < 800
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["model.pt", "w.safetensors"])
@pytest.mark.parametrize("kept", [0, 1, 20, 0.5, -3])
def test_truncated_files_are_refused(name: str, kept: float, tmp_path: Path) -> None:
    if name == "model.pt":
        saved(tmp_path, {"a": torch.ones(50)})
    else:
        save_file({"a": torch.ones(50)}, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else int(kept)])
    with pytest.raises(CheckpointError, match="refused or not readable"):
        legacy.read(tmp_path / name)


@pytest.mark.parametrize("content", [b"not a checkpoint", b"PK\x03\x04", b"\x80\x02}q\x00.", b"\x00" * 100])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.pt: "):
        legacy.read(tmp_path)


@pytest.mark.parametrize("state", ["[1]", '{"step": "x"}', '{"step": -1}', '{"step": true}', '{"step": 1e30}', "null"])
def test_a_step_that_is_none_is_not_read(state: str, tmp_path: Path) -> None:
    saved(tmp_path, {"a": torch.ones(1)})
    (tmp_path / "state.json").write_text(state)
    assert legacy.read(tmp_path).step is None
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state\.json: not readable as JSON"):
        legacy.read(tmp_path)


@settings(max_examples=60, deadline=None)
@given(harm=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), part=st.booleans())
def test_damaged_bytes_are_read_as_tensors_or_refused(
    harm: list[tuple[float, int]], part: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any byte may differ, also those of the pickle inside the archive."""
    file = tmp_path_factory.getbasetemp() / "damaged.pt"
    torch.save({"model_state_dict": {"module.a": torch.ones(3), "b": torch.zeros(2, 2)}, "step": 3}, file)
    content = bytearray(file.read_bytes())
    end = 400 if part else len(content)  # the pickle comes first
    for place, value in harm:
        content[int(place * (end - 1))] = value
    file.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        assert all(isinstance(value, torch.Tensor) for value in legacy.read(file).tensors.values())


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float64, torch.float64), (torch.float16, torch.float32), (torch.bfloat16, torch.float32),
     (torch.float32, torch.float32), (torch.int32, torch.int32), (torch.bool, torch.bool)],
)  # fmt: skip
def test_no_precision_is_lost(dtype: torch.dtype, expected: torch.dtype, tmp_path: Path) -> None:
    value = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).to(dtype)
    found = legacy.read(saved(tmp_path, {"a": value.T})).tensors["a"]
    assert found.dtype == expected
    assert found.is_contiguous()
    assert torch.equal(found, value.T.to(expected))
