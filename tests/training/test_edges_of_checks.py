"""Checks before a run at their edges: GPUs without one, files that are no configuration, and ids of a few texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from parts import ALONE
from torch import nn

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import preflight
from mm_ldlm.training.config import PrecisionConfig
from mm_ldlm.training.preflight import Check


def test_different_versions_are_listed_for_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.collectives, "gather_texts", lambda mine, *, device: ["b", "a", "b"])
    assert preflight.versions(ALONE) == Check(
        "versions", "rank 0: b; rank 1: a; rank 2: b",
        "install the same versions on every host (constraints file)",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
def test_a_gpu_is_described_with_its_free_and_its_whole_memory(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"mem_get_info": (3 * 2**29, 2**32), "get_device_name": "X", "device_count": 2, "is_bf16_supported": True}
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    process = Process(RankInfo(rank=3, world=4, local_world=2), torch.device("cuda:1"), "nccl")
    assert preflight.device(process, PrecisionConfig(autocast=kind)) == Check(
        "device", "cuda:1 X, 1.5 of 4.0 GiB free"
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    refused = Check("device", "X has no bf16", "set training.precision.autocast to fp16 or fp32")
    assert (preflight.device(process, PrecisionConfig(autocast=kind)) == refused) is (kind == "bf16")


@pytest.mark.parametrize("content", ["{", "\udcff", None])
def test_a_configuration_that_cannot_be_read_names_its_file(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    found = preflight.configuration(tmp_path, helpers.spec())
    assert found.name == "configuration"
    assert found.found.startswith(f"{tmp_path / 'config.json'}: ")
    assert found.remedy == "make the run's folder readable and writable"


def test_the_probe_of_the_run_folder_is_removed_and_the_disk_is_that_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preflight.shared_folder(ALONE, tmp_path) == Check("run folder", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    asked: list[Path] = []
    monkeypatch.setattr(
        preflight.shutil, "disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=2**40)
    )  # fmt: skip
    stepper: Any = SimpleNamespace(root=nn.Linear(1, 1))
    assert preflight.disk(stepper, helpers.spec().training, tmp_path / "run", averaged=True, done=0).ok
    assert asked == [tmp_path / "run"]


@pytest.mark.parametrize(("pad", "mask", "ok"), [(0, 1, True), (3, 3, False), (-1, 1, False), (0, -1, False)])
def test_pad_and_mask_are_two_ids(pad: int, mask: int, ok: bool) -> None:
    shape: Any = SimpleNamespace(vocab_size=24, pad_id=pad, mask_id=mask, max_length=12, latent_dim=None)
    data: Any = SimpleNamespace(train=helpers.Rows(5), shape=shape)
    found = preflight.data_shape(data, ())
    assert found.ok is ok
    if not ok:
        assert found == Check("data", f"24 tokens, pad and mask ids {(pad, mask)}", "prepare the tokenizer again")


@pytest.mark.parametrize(("count", "bad", "ok"), [(1, 0, False), (5, 4, False), (300, 255, False), (300, 256, True)])
def test_the_ids_of_the_first_256_texts_are_read(count: int, bad: int, ok: bool) -> None:
    rows: Any = SimpleNamespace(
        lengths=np.ones(count, np.int64),
        tokens=lambda rows, *, length: np.where(rows[:, None] == bad, 99, np.full((1, length), 3)),
    )  # fmt: skip
    data: Any = SimpleNamespace(train=rows, shape=helpers.SHAPE)
    found = preflight.data_shape(data, ())
    assert found.ok is ok
    assert ok or found == Check("data", "24 tokens, but a token id of 99", "make the tokens again with this tokenizer")


def test_latents_of_another_dimension_are_named() -> None:
    shape = dataclasses.replace(helpers.SHAPE, latent_dim=9)
    data: Any = SimpleNamespace(train=helpers.Rows(5), shape=shape)
    assert preflight.data_shape(data, ("latents",)) == Check(
        "data", "24 tokens, latents of 8", "the run was planned for latents of dimension 9: plan it again"
    )
