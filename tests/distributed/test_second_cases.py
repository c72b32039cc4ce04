"""The second case of each reader and of each message: other variables, other ranks, other signals, other addresses."""

from __future__ import annotations

import logging
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import ConfigurationError, WorkerFailed
from mm_ldlm.distributed import failure, interfaces, launch, master, parallel
from mm_ldlm.distributed.environment import Hosts, RankInfo, first_host, hosts, rank_info
from mm_ldlm.distributed.process import Process, joined

JOB = {"SLURM_NNODES": "3", "SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "gpu[03-05]"}


# -- variables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({**JOB, "NODE_RANK": "1"}, Hosts(3, 1, "gpu03:29400", None)),  # a number that was set comes before SLURM's
        ({**JOB, "MASTER_ADDR": "head", "MASTER_PORT": "7"}, Hosts(3, 2, "head:7", None)),
        ({**JOB, "MASTER_PORT": "7"}, Hosts(3, 2, "gpu03:7", None)),
        ({**JOB, "NNODES": "2", "NODE_RANK": "0"}, Hosts(2, 0, "gpu03:29400", None)),
        ({**JOB, "SLURM_NNODES": "1", "SLURM_NODEID": "0"}, Hosts(1, None, None, None)),  # there is nobody to meet
        ({"SLURM_JOB_NODELIST": "gpu[03-05]"}, Hosts()),
        ({"MASTER_ADDR": "head"}, Hosts(None, None, "head:29400", None)),
        ({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "0"}, Hosts()),  # a rank of torchrun counts no hosts
        ({"WORLD_SIZE": "4", "RANK": "3", "NNODES": "2", "NODE_RANK": "1"}, Hosts(2, 1, None, None)),
        ({"NNODES": "", "NODE_RANK": "", "NPROC_PER_NODE": ""}, Hosts()),
        ({"NPROC_PER_NODE": "3"}, Hosts(None, None, None, 3)),
    ],
    ids=str,
)
def test_what_was_set_for_the_command_comes_before_what_the_job_says(env: dict[str, str], expected: Hosts) -> None:
    assert hosts(env) == expected


def test_variables_of_ranks_are_refused_by_their_names() -> None:
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    for name in (*ranks, "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        with pytest.raises(ConfigurationError, match=rf"in the environment variable {name}, found 'x'"):
            rank_info({**ranks, name: "x"})
    for rank in ("-1", "2"):
        with pytest.raises(ConfigurationError, match=rf"RANK in 0\.\.1 with WORLD_SIZE=2, found {rank}\."):
            rank_info({**ranks, "RANK": rank})
    slurm = {"SLURM_PROCID": "8", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "a"}
    with pytest.raises(ConfigurationError, match=r"RANK in 0\.\.7"):
        rank_info(slurm)
    assert rank_info({**slurm, "SLURM_PROCID": "7", "SLURM_STEP_TASKS_PER_NODE": "3,5"}).local_world == 3
    for nodelist in ("", "[1-3]", ","):
        with pytest.raises(ConfigurationError, match="expected a SLURM node list, found "):
            first_host(nodelist)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [("[::1]:29400", "::1", 29400), ("head:1", "head", 1), ("head:65535", "head", 65535), ("a:b:7", "a:b", 7)],
)
def test_an_endpoint_is_a_host_and_a_port(endpoint: str, host: str, port: int) -> None:
    assert master._parts(endpoint) == (host, port)
    assert interfaces.address_towards("[::1]:no port") is None


def test_an_interface_is_found_by_its_address_without_its_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.7", "fe80::1%eth0"], "eth1": ["10.0.0.8"]}
    there = {"head": ["10.0.0.8"], "link": ["fe80::1"], "both": ["192.0.2.1", "10.0.0.7"], "far": ["192.0.2.1"]}
    found = {name: [SimpleNamespace(address=each) for each in each_of] for name, each_of in held.items()}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: found)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [(0, 0, 0, "", (one, 0)) for one in there[host]])
    assert {host: interfaces.interface_of(host) for host in there} == {
        "head": "eth1", "link": "eth0", "both": "eth0", "far": None
    }  # fmt: skip


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_only_the_signal_of_the_kernel_is_explained_by_the_memory(number: signal.Signals) -> None:
    text = failure.describe_signals([(4, -number, "a/b/c.log")])
    assert text is not None
    assert text.startswith(f"rank 4 was ended by {number.name} from outside.")
    assert ("memory runs out" in text) == (number == signal.SIGKILL)


def test_the_first_of_several_lost_ranks_is_named() -> None:
    ended = [(2, -signal.SIGTERM, "two"), (5, -signal.SIGSEGV, "five"), (3, -signal.SIGKILL, "three")]
    text = failure.describe_signals(ended)
    assert text is not None
    assert text.startswith("rank 5 was ended by SIGSEGV")
    assert "The log of that rank is five" in text


def test_a_lost_rank_is_named_with_its_own_log_and_not_that_of_another(tmp_path: Path) -> None:
    for attempt in (0, 1):
        for local in (0, 1, 10):
            folder = tmp_path / "job" / f"attempt_{attempt}" / str(local)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text("")
            os.utime(folder / "stderr.log", (100 + attempt, 100 + attempt))
    for local in (0, 1, 10):
        assert launch._log_of(tmp_path, local) == str(tmp_path / "job" / "attempt_1" / str(local) / "stderr.log")
    assert launch._log_of(tmp_path, 7) == str(tmp_path)


def test_a_record_says_where_an_error_of_others_was_raised_and_which_rank_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4, "TORCHELASTIC_ERROR_FILE": tmp_path / "new" / "error.json"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    for error, ours, words in ((KeyError("x"), False, "KeyError (test_second_cases.py:"), (WorkerFailed(""), True, "")):
        try:
            raise error
        except Exception as caught:
            failure.record(caught)
        found = failure.first_failure(tmp_path, since=0)
        assert found is not None
        assert (found.rank, found.local_rank, found.step, found.is_ours) == (3, 1, None, ours)
        assert found.log == str(tmp_path / "new" / "stderr.log")
        assert str(found).startswith(f"rank 3 on {found.host} failed before the first step: {words}")
        assert found.message == ("'x'" if not ours else "WorkerFailed"), "an error without words has its name"
        assert bool(found.location) is not ours
    assert failure.first_failure(tmp_path, since=found.time) is not None, "the moment itself counts"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["error.json"], "nothing temporary is left"


def test_a_host_that_waits_says_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    tried: list[float] = []

    def refuse(address: Any, *, timeout: float) -> Any:
        tried.append(timeout)
        if len(tried) < 5:
            raise TimeoutError
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(socket, "create_connection", refuse)
    with caplog.at_level(logging.INFO):
        master._wait("head", 7, seconds=30.0, every=0.001)
    assert len(tried) == 5
    (record,) = caplog.records
    assert record.getMessage() == "waiting up to 30 s for the first host at head, port 7 (no answer)"


# -- devices and sharding ----------------------------------------------------------------------------------------------


def test_a_rank_with_a_gpu_computes_on_it_and_its_group_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "h", "MASTER_PORT": 7}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.update(device=device))
    monkeypatch.setattr("torch.distributed.TCPStore", lambda *_, **__: "store")
    monkeypatch.setattr("torch.distributed.PrefixStore", lambda *_: "store")
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda backend, **how: seen.update(backend=backend, **how)
    )
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: None)
    with joined(device="auto") as process:
        assert process.device == torch.device("cuda", 1)
        assert process.backend == "nccl"
    assert (seen["device"], seen["backend"], seen["device_id"]) == (process.device, "nccl", process.device)
    with joined(device="cpu", threads=3) as process:
        assert (process.device, process.backend, torch.get_num_threads()) == (torch.device("cpu"), "gloo", 3)
    torch.set_num_threads(1)
    assert seen["device_id"] is None


def test_every_block_is_sharded_before_the_whole_and_a_single_rank_shards_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[Any] = []
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda kind, sizes: (kind, sizes))
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", lambda module, *, mesh: order.append((module, mesh)))
    whole = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    for world, expected in ((1, []), (3, [whole[0], whole[1], whole])):
        parallel.shard(whole, [whole[0], whole[1]], Process(RankInfo(world=world), torch.device("cpu"), None))
        assert [module for module, _ in order] == expected
    assert {mesh for _, mesh in order} == {("cpu", (3,))}


def test_gathered_parameters_are_freed_where_there_are_any_and_values_are_whole() -> None:
    freed: list[str] = []
    whole = torch.nn.ModuleDict({"a": torch.nn.Linear(1, 1), "b": torch.nn.Linear(1, 1)})
    whole["a"].reshard = lambda: freed.append("a")  # type: ignore[assignment]
    parallel.reshard(whole)
    assert freed == ["a"]
    plain = torch.ones(2)
    assert parallel.full(plain) is plain
    assert parallel.full(SimpleNamespace(full_tensor=lambda: "whole")) == "whole"  # type: ignore[arg-type,comparison-overlap]
    target = torch.zeros(2, requires_grad=True)
    parallel.assign(target, torch.tensor([3, 4]))
    assert target.tolist() == [3.0, 4.0]
    assert target.grad_fn is None


def test_the_log_of_a_rank_is_not_that_of_a_rank_whose_number_begins_alike(tmp_path: Path) -> None:
    for place, age in (("a/attempt_0/1", 300), ("b/attempt_1/1", 200), ("b/attempt_1/10", 0), ("b/attempt_1/11", 0)):
        file = tmp_path / place / "stderr.log"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
    assert launch._log_of(tmp_path, 1) == str(tmp_path / "b/attempt_1/1/stderr.log")
    assert launch._log_of(tmp_path, 10) == str(tmp_path / "b/attempt_1/10/stderr.log")
    assert launch._log_of(tmp_path, 2) == str(tmp_path), "the folder of all logs, where it has none"
