from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch

from mm_ldlm.core.errors import PreflightError
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import data as training_data
from mm_ldlm.training import preflight
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.config import BatchConfig, PrecisionConfig
from mm_ldlm.training.worker import train


def failing(tmp_path: Path, **settings: Any) -> str:
    with pytest.raises(PreflightError) as raised:
        train(helpers.spec(preflight=True, **settings), root=tmp_path, data=helpers.data())
    return str(raised.value)


def test_latents_of_another_dimension_than_planned_are_refused(tmp_path: Path) -> None:
    other = dataclasses.replace(helpers.SHAPE, latent_dim=7)
    found = preflight.data_shape(dataclasses.replace(helpers.data(), shape=other), ("latents",))
    assert not found.ok
    assert "latents of 8" in found.found
    assert "planned for latents of dimension 7" in found.remedy


def test_batches_that_cannot_be_dealt_out(tmp_path: Path) -> None:
    assert "fewer examples than its 4 micro-batches" in failing(tmp_path, batch={"examples": 2, "accumulation": 4})


def test_no_room_for_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert "✗ disk" in failing(tmp_path)
    assert not list((tmp_path / "run/checkpoints").iterdir())


def test_out_of_memory_reports_what_would_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = preflight._passes

    def small(stepper: Any, data: Any, size: int, length: int, accumulation: int) -> None:
        if size > 5:
            raise torch.OutOfMemoryError("on purpose")
        plain(stepper, data, size, length, accumulation)

    monkeypatch.setattr(preflight, "_passes", small)
    text = failing(tmp_path)
    assert "out of memory at 16 examples × 12 tokens" in text
    assert "4 examples × 12 tokens fit" in text
    assert "accumulation to 4" in text


def test_fp16_on_a_cpu_is_refused(tmp_path: Path) -> None:
    assert "fp16 on a CPU" in failing(tmp_path, precision={"autocast": "fp16"})


# -- each check alone --------------------------------------------------------------------------------------------------


def process(*, rank: int = 0, world: int = 1, local_world: int = 1, device: str = "cpu") -> Process:
    return Process(RankInfo(rank=rank, world=world, local_world=local_world), torch.device(device), "gloo")


@pytest.mark.parametrize(
    ("local_world", "gpus", "autocast", "supported", "remedy"),
    [
        (2, 2, "bf16", True, ""), (3, 2, "fp32", True, "lower training.launch.processes to the number of GPUs"),
        (1, 2, "bf16", False, "set training.precision.autocast to fp16 or fp32"), (1, 2, "fp16", False, ""),
    ],
)  # fmt: skip
def test_a_gpu_for_each_rank_of_the_host_with_the_precision(
    local_world: int, gpus: int, autocast: Any, supported: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = {"mem_get_info": (3 * 2**29, 80 * 2**30), "get_device_name": "NVIDIA X", "device_count": gpus,
            "is_bf16_supported": supported}  # fmt: skip
    for name, value in fake.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    found = preflight.device(process(local_world=local_world, device="cuda:1"), PrecisionConfig(autocast=autocast))
    assert found.remedy.startswith(remedy)
    assert found.ok == (remedy == "")
    if found.ok:
        assert found.found == "cuda:1 NVIDIA X, 1.5 of 80.0 GiB free"


def test_all_hosts_have_the_same_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for others, ok in (([], True), (["torch 1.0, NCCL none"], False)):
        monkeypatch.setattr(preflight.collectives, "gather_texts", lambda text, *, device, o=others: [text, text, *o])
        found = preflight.versions(process())
        assert found.ok == ok
        assert ("rank 2: torch 1.0" in found.found) == (not ok)


@pytest.mark.parametrize(("factor", "ok"), [(3.0, True), (2.0, False)])
def test_a_sum_over_ranks_is_that_of_all_of_them(factor: float, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """This rank adds 2; the ranks 1, 2 and 3 together are 6."""
    monkeypatch.setattr(preflight.collectives, "sum_", lambda tensor: tensor.mul_(factor))
    assert preflight.all_reduce(process(rank=1, world=3)).ok == ok
    assert preflight.all_reduce(process()).found == "one, no communication"


def test_the_configuration_of_a_run_is_its_own(tmp_path: Path) -> None:
    spec = helpers.spec(run_name=None)
    other = helpers.spec(run_name=None, max_steps=11)
    unlike = {"objective": {}}
    for written, words in (
        ({**spec.to_dict(), "versions": {}}, ""), (other.to_dict(), "set training.run_name"),
        (unlike, "set training.run_name"),
    ):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(written))
        assert words in preflight.configuration(tmp_path, spec).remedy
        assert preflight.configuration(tmp_path, spec).ok == (words == "")
    (tmp_path / "config.json").write_text("{")
    assert "readable and writable" in preflight.configuration(tmp_path, spec).remedy


@pytest.mark.parametrize("shared", [True, False])
def test_every_rank_reads_what_the_first_one_writes(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers: list[bool] = []
    monkeypatch.setattr(preflight.collectives, "barrier", lambda: barriers.append((tmp_path / ".preflight").exists()))
    assert preflight.shared_folder(process(), tmp_path).ok
    assert barriers == [True, True], "written before the first and removed after the second"
    assert not (tmp_path / ".preflight").exists()
    if shared:
        (tmp_path / ".preflight").touch()
    found = preflight.shared_folder(process(rank=1, world=2), tmp_path)
    assert found.ok == shared
    assert (tmp_path / ".preflight").exists() == shared, "the first rank removes it"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"mask_id": 0}, "prepare the tokenizer again"),
        ({"pad_id": -1}, "prepare the tokenizer again"),
        ({"vocab_size": helpers.VOCAB - 1}, "make the tokens again"),
    ],
)
def test_tokens_belong_to_the_vocabulary_of_the_model(change: dict[str, int], words: str) -> None:
    data = helpers.data()
    given = dataclasses.replace(data, shape=dataclasses.replace(helpers.SHAPE, **change))
    found = preflight.data_shape(given, ("latents",))
    assert words in found.remedy
    assert found.ok == (words == "")


@pytest.mark.parametrize(("limit", "size", "accumulation"), [(16, 16, None), (15, 8, 6), (5, 4, 12), (1, 1, 48)])
def test_a_smaller_batch_is_proposed_that_fits(
    limit: int, size: int, accumulation: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def passes(stepper: Any, data: Any, size: int, length: int, accumulation: int) -> None:
        tried.append(size)
        if size > limit:
            raise torch.OutOfMemoryError("on purpose")

    monkeypatch.setattr(preflight, "_passes", passes)
    stepper: Any = SimpleNamespace(process=process(), root=torch.nn.Linear(1, 1))
    data = helpers.data()
    plan = BatchPlan(
        data.train.lengths, BatchConfig(examples=16, accumulation=3, length_multiple=12), seed=0, max_length=12
    )
    found = preflight.dry_step(stepper, plan, data, filled=False)
    assert tried[-1] == size
    assert found.ok == (accumulation is None)
    if accumulation is not None:
        assert f"training.batch.accumulation to {accumulation}, or batch.tokens to {size * 12}" in found.remedy
    for filled, largest in ((False, 9), (True, 16)):
        tried.clear()
        few = helpers.data(9)
        plan = BatchPlan(few.train.lengths, BatchConfig(examples=16, length_multiple=12), seed=0, max_length=12)
        preflight.dry_step(stepper, plan, few, filled=filled)
        assert tried[0] == largest


def test_tokens_are_counted_in_parts_and_pads_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = helpers.Rows(10)
    ids = rows.tokens(np.arange(10), length=helpers.LONGEST)
    expected = np.bincount(ids[ids != 0], minlength=helpers.VOCAB + 3)
    shape = dataclasses.replace(helpers.SHAPE, mask_id=helpers.VOCAB + 2)  # an id behind the vocabulary
    for at_once in (3, 5, 10, 8192):
        monkeypatch.setattr(training_data, "_COUNTED_ROWS", at_once)
        assert training_data.token_counts(rows, shape).tolist() == expected.tolist()


@pytest.mark.parametrize("harm", [False, True])
def test_every_check_runs_and_the_dry_step_only_after_the_others(harm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("device", "versions", "all_reduce", "configuration", "shared_folder", "disk", "data_shape", "batches",
             "dry_step")  # fmt: skip
    for name in names:
        bad = "correct it" if harm and name == "disk" else ""
        check = preflight.Check(name, "found", bad)
        monkeypatch.setattr(preflight, name, lambda *_, check=check, **__: check)
    told: list[Any] = []
    parts: Any = SimpleNamespace(
        process=process(), loader=SimpleNamespace(plan=None), config=helpers.spec().training,
        ema=SimpleNamespace(values={}),
        stepper=SimpleNamespace(objective=SimpleNamespace(fields=())), state=SimpleNamespace(step=5, epoch=2),
        tracker=SimpleNamespace(event=lambda step, kind, *, checks: told.append((step, kind, len(checks)))),
    )  # fmt: skip
    if harm:
        with pytest.raises(PreflightError, match=r"✓ device: found(.|\n)*✗ disk \(rank 0\): found\n    → correct it"):
            preflight.preflight(parts, helpers.spec(), helpers.data(), Path())
    else:
        assert [check.name for check in preflight.preflight(parts, helpers.spec(), helpers.data(), Path())] == [*names]
    assert told == [(5, "preflight", len(names) - harm)]
