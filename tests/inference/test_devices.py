"""Devices of a run: the default, those that cannot be used, and what is loaded onto the one that was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import loading
from mm_ldlm.objectives.root import TrainableRoot


@pytest.mark.parametrize(("available", "expected"), [(True, "cuda"), (False, "cpu")])
def test_the_default_is_the_first_gpu_if_there_is_one(
    available: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert loading._device(None) == torch.device(expected)
    for given in ("cpu", torch.device("cpu"), "cuda:1"):
        assert loading._device(given) == torch.device(given), "a device that is named is not the default"


@pytest.mark.parametrize("error", [RuntimeError, AssertionError, NotImplementedError])
def test_a_device_that_a_model_cannot_be_moved_to_is_refused_with_the_first_line_of_the_reason(
    error: type[Exception], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, device: Any) -> Any:
        raise error(f"no {device} here\nand a long explanation")

    monkeypatch.setattr(TrainableRoot, "to", refuse)
    with pytest.raises(SamplingError) as raised:
        loading.load_run(run_folder, device="cuda:7")
    assert str(raised.value) == (
        "device 'cuda:7' cannot be used on this machine (no cuda:7 here). Choose cpu, cuda or cuda:N, or None for the "
        "default."
    )


@pytest.mark.parametrize(
    ("device", "shown", "reason"),
    [
        ("meta", "'meta'", "its tensors have no values"),
        (torch.device("meta"), "'meta'", "its tensors have no values"),
        (3, "3", "expected a name"), (True, "True", "expected a name"), ("", "''", ""),
    ],
)  # fmt: skip
def test_what_is_no_device_is_named(device: Any, shown: str, reason: str) -> None:
    with pytest.raises(SamplingError) as raised:
        loading._device(device)
    assert str(raised.value).startswith(f"device {shown} cannot be used on this machine ({reason}")


def test_the_model_and_its_encoder_are_on_the_device_that_was_chosen(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Any] = []
    monkeypatch.setattr(TrainableRoot, "to", lambda self, device: moved.append(device) or self)
    monkeypatch.setattr(loading, "_encoder_loader", lambda *given: given)
    parts = loading.load_run(run_folder, device="cuda:7")
    assert moved == [torch.device("cuda:7")]
    assert parts.load_encoder == ({}, "0" * 32, torch.device("cuda:7"))
    assert parts.fingerprints == {"encoder": "0" * 32}
    assert (parts.step, parts.checkpoint) == (3, run_folder / "checkpoints" / "step-00000003")
    assert not any(parameter.requires_grad for parameter in parts.model.model.parameters())
    assert not any(module.training for module in parts.model.model.modules())
