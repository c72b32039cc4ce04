"""Every line of the checks before a run, word for word, and what each check receives."""

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
from parts import ALONE, Heard

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import preflight
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.config import BatchConfig, PrecisionConfig
from mm_ldlm.training.preflight import Check

INFO = RankInfo(rank=2, world=4, local_world=2, master_address="head", master_port=29411, run_id="a-launch")
RANK = Process(INFO, torch.device("cpu"), "gloo")


def test_a_check_is_one_line_or_two_with_its_remedy() -> None:
    assert (str(Check("disk", "enough")), Check("disk", "enough").ok) == ("✓ disk: enough", True)
    bad = Check("disk", "full", "free some space")
    assert (str(bad), bad.ok) == ("✗ disk: full\n    → free some space", False)


@pytest.mark.parametrize(("threads", "words"), [(1, "CPU, 1 thread per rank"), (2, "CPU, 2 threads per rank")])
def test_the_threads_of_a_cpu_are_counted(threads: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for kind in ("fp32", "bf16"):
        assert preflight.device(RANK, PrecisionConfig(autocast=kind)) == Check("device", words)  # type: ignore[arg-type]
    refused = Check("device", "fp16 on a CPU", "set training.precision.autocast to fp32 (or bf16)")
    assert preflight.device(RANK, PrecisionConfig(autocast="fp16")) == refused


def test_a_gpu_that_is_shared_or_lacks_bf16_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"mem_get_info": (2**30, 2**32), "get_device_name": "X", "device_count": 1, "is_bf16_supported": False}
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    shared = Process(INFO, torch.device("cuda:0"), "nccl")
    assert preflight.device(shared, PrecisionConfig()).found == "2 processes on 1 GPUs"
    alone = Process(RankInfo(), torch.device("cuda:0"), None)
    assert preflight.device(alone, PrecisionConfig(autocast="bf16")).found == "X has no bf16"


def test_versions_and_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.versions(ALONE) == Check("versions", f"torch {torch.__version__}, NCCL none")
    monkeypatch.setattr(torch.cuda, "nccl", SimpleNamespace(version=lambda: (2, 27, 3)), raising=False)
    gpu = Process(RankInfo(), torch.device("cuda:0"), None)
    assert preflight.versions(gpu).found == f"torch {torch.__version__}, NCCL 2.27.3"
    where = "4 over gloo, meeting at head:29411"
    for total, expected in (
        (10.0, Check("processes", f"{where}, all-reduce correct")),
        (9.0, Check("processes", f"{where}: a sum over ranks is wrong", "check the network and the NCCL or gloo "
                    "versions")),
    ):  # fmt: skip
        given: list[set[float]] = []

        def sum_(value: torch.Tensor, total: float = total, given: Any = given) -> torch.Tensor:
            given.append(set(value.tolist()))
            return value.fill_(total)

        monkeypatch.setattr(preflight.collectives, "sum_", sum_)
        assert preflight.all_reduce(RANK) == expected
        assert given == [{3.0}], "rank 2 adds 3"


def test_one_wrong_element_of_a_sum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def sum_(value: torch.Tensor) -> None:
        value.fill_(10.0)[700] = 9.0

    monkeypatch.setattr(preflight.collectives, "sum_", sum_)
    assert not preflight.all_reduce(RANK).ok


def test_the_probe_of_a_shared_folder_names_host_and_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    probe = tmp_path / ".preflight"
    monkeypatch.setattr(preflight.environment, "host_name", lambda: "host-b")
    monkeypatch.setattr(
        preflight.collectives, "barrier", lambda: seen.append(probe.read_text() if probe.exists() else "")
    )
    first = Process(RankInfo(rank=0, world=4, run_id="a-launch"), torch.device("cpu"), "gloo")
    assert preflight.shared_folder(first, tmp_path) == Check("run folder", str(tmp_path))
    assert seen == ["host-b a-launch"] * 2
    assert preflight.shared_folder(RANK, tmp_path) == Check(
        "run folder", f"{tmp_path} on host-b is not the folder that rank 0 writes",
        "put the data folder on storage that all hosts share (kedro run --params data=/shared/…)",
    )  # fmt: skip


def test_the_configuration_is_named_by_its_file(tmp_path: Path) -> None:
    spec = helpers.spec()
    file = tmp_path / "config.json"
    missing = preflight.configuration(tmp_path, spec)
    assert missing.found.startswith(f"{file}: ")
    assert missing.remedy == "make the run's folder readable and writable"
    file.write_text(json.dumps(spec.to_dict() | {"versions": {"torch": "1"}}))
    assert preflight.configuration(tmp_path, spec) == Check("configuration", str(file))
    file.write_text("[]")
    assert preflight.configuration(tmp_path, spec) == Check(
        "configuration", str(file), "another run writes into this folder: set training.run_name"
    )


def test_tokens_and_fields_are_described_by_their_shapes() -> None:
    class Rows(helpers.Rows):
        def field(self, name: str, rows: Any) -> Any:
            shapes = {"latents": (helpers.DIM,), "states": (3, 5), "number": ()}
            assert rows.tolist() == [0]
            return np.zeros((1, *shapes[name]))

    data: Any = SimpleNamespace(train=Rows(9), shape=helpers.SHAPE)
    found = preflight.data_shape(data, ("latents", "states", "number"))
    assert found == Check("data", "24 tokens, latents of 8, states of 3 × 5, number of one number")
    assert preflight.data_shape(data, ()) == Check("data", "24 tokens")


@pytest.mark.parametrize(("largest", "ok"), [(23, True), (24, True), (25, True), (26, False)])
def test_ids_of_pad_and_mask_may_lie_behind_the_vocabulary(largest: int, ok: bool) -> None:
    """24 words, and the mask is id 25."""
    rows = helpers.Rows(5)
    plain = rows.tokens
    rows.tokens = lambda rows_, *, length: np.where(plain(rows_, length=length) > 20, largest, 3)  # type: ignore[method-assign]
    shape = dataclasses.replace(helpers.SHAPE, mask_id=25)
    data: Any = SimpleNamespace(train=rows, shape=shape)
    found = preflight.data_shape(data, ())
    assert found.ok is ok
    assert ok or found.found == "24 tokens, but a token id of 26"


def test_batches_are_described_with_their_first_six_shapes() -> None:
    plan = BatchPlan(
        np.repeat(np.arange(1, 9), 4), BatchConfig(examples=4, length_multiple=1, accumulation=2), seed=0, max_length=8
    )
    shapes = [(4, length) for length in range(1, 7)]
    assert preflight.batches(plan, ALONE, epoch=3) == Check(
        "batches", f"32 examples, 8 batches an epoch, shapes {shapes}"
    )
    short = BatchPlan(np.array([9, 3]), BatchConfig(examples=2, length_multiple=8), seed=0, max_length=8)
    found = preflight.batches(short, ALONE, epoch=0)
    assert found.found.endswith("shapes [(2, 8)], longest text 9")
    assert found.remedy == "raise tokenizer.max_length to 9"


def test_no_gradient_is_left_of_a_pass_that_did_not_fit() -> None:
    module = torch.nn.Linear(2, 2)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    preflight._free_memory(SimpleNamespace(root=module, process=ALONE))  # type: ignore[arg-type]
    assert [parameter.grad for parameter in module.parameters()] == [None, None]


# -- all of them -------------------------------------------------------------------------------------------------------


def test_every_check_receives_the_parts_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    for name in ("device", "versions", "all_reduce", "configuration", "shared_folder", "disk", "data_shape", "batches",
                 "dry_step"):  # fmt: skip

        def check(*places: Any, name: str = name, **named: Any) -> Check:
            given[name] = (places, named)
            return Check(name, f"found {name}")

        monkeypatch.setattr(preflight, name, check)
    (tmp_path / "checkpoints").mkdir()
    config = helpers.spec(precision={"compile": True}).training
    stepper, data, spec, heard = (
        SimpleNamespace(objective=SimpleNamespace(fields=("a", "b"))),
        object(),
        object(),
        Heard(),
    )
    parts: Any = SimpleNamespace(
        process=ALONE, loader=SimpleNamespace(plan="the plan"), config=config, ema=SimpleNamespace(values={}),
        stepper=stepper, state=SimpleNamespace(step=7, epoch=3), tracker=heard,
    )  # fmt: skip
    found = preflight.preflight(parts, spec, data, tmp_path)  # type: ignore[arg-type]
    assert given == {
        "device": ((ALONE, config.precision), {}), "versions": ((ALONE,), {}), "all_reduce": ((ALONE,), {}),
        "configuration": ((tmp_path, spec), {}), "shared_folder": ((ALONE, tmp_path), {}),
        "disk": ((stepper, config, tmp_path), {"averaged": False, "done": 0}),
        "data_shape": ((data, ("a", "b")), {}), "batches": (("the plan", ALONE), {"epoch": 3}),
        "dry_step": ((stepper, "the plan", data), {"filled": True}),
    }  # fmt: skip
    assert [check.name for check in found] == list(given)
    assert heard.events == [(7, "preflight", {"checks": [f"✓ {name}: found {name}" for name in given]})]
