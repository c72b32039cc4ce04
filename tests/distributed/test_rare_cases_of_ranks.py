"""Rare cases of ranks: one byte, a rank of a second host, an empty variable, a rank that ended already."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mm_ldlm.distributed.forked import run_forked

from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed import collectives, environment, failure, forked, parallel, shared_memory
from mm_ldlm.distributed.environment import Hosts, RankInfo
from mm_ldlm.distributed.process import Process, joined

CPU = torch.device("cpu")

# -- ranks -------------------------------------------------------------------------------------------------------------


def test_one_byte_and_none_are_gathered_like_many() -> None:
    def work(process: Process) -> list[Any]:
        found = [
            collectives.gather_bytes(data, device=CPU) for data in (b"x"[process.rank :], b"ab"[: 1 + process.rank])
        ]
        return [[list(data) for data in each] for each in found]

    assert run_forked(work, processes=2, seconds=60) == [[[120], []], [[97], [97, 98]]]


def test_the_first_rank_of_another_host_is_not_the_main_one() -> None:
    made = [Process(RankInfo(rank=rank, local_rank=rank % 2, world=4, local_world=2), CPU, None) for rank in range(4)]
    assert [process.is_main for process in made] == [True, False, False, False]
    assert [process.rank for process in made] == [0, 1, 2, 3]
    assert {process.world for process in made} == {4}


@pytest.mark.parametrize("error", [RuntimeError("refused\nmore"), dist.DistNetworkError("refused\nmore")])
def test_a_store_that_cannot_be_reached_is_a_lost_rank(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "head", "MASTER_PORT": 7}.items():
        monkeypatch.setenv(name, str(value))

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(dist, "TCPStore", fail)
    with pytest.raises(WorkerFailed) as raised, joined(device="cpu", timeout_minutes=2):
        pass
    assert str(raised.value) == (
        "rank 1 of 2 could not join the others at head:7 within 2 minutes (refused). Check that every host was "
        "started, that the address is that of the first host, and that the port is open between the hosts."
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "none"])
def test_a_single_rank_wraps_and_exchanges_nothing(strategy: str) -> None:
    inner = torch.nn.Linear(1, 1)
    made = parallel.Parallel(inner, Process(RankInfo(), CPU, None), strategy=strategy)
    assert (made.strategy, made.module, made.gradient_scale) == ("none", inner, 1.0)


def test_memory_is_shared_by_ranks_that_are_all_on_this_host() -> None:
    def work(process: Process) -> list[bool]:
        found = []
        for world, local in ((2, 2), (4, 2), (2, 1)):
            info = dataclasses.replace(process.rank_info, world=world, local_world=local)
            found.append(shared_memory.shared_memory(dataclasses.replace(process, rank_info=info), elements=1) is None)
        return found

    assert run_forked(work, processes=2, seconds=60) == [False, True, True]


@pytest.mark.parametrize(("size", "fits"), [(4095, False), (4096, True), (4097, False)])
def test_memory_of_another_size_is_not_that_of_the_group(size: int, fits: bool, tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(bytes(4096))
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = shared_memory._mapped(str(tmp_path / "memory"), size)
    assert (found is not None) == fits
    if found is not None:
        found.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- forked ranks ------------------------------------------------------------------------------------------------------


def test_a_single_forked_rank_needs_no_port_and_leaves_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    run_forked(lambda process: 0, processes=1, seconds=60)  # what is opened once
    monkeypatch.setattr(forked, "_store", lambda seconds: pytest.fail("a port was opened"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert run_forked(lambda process: process.world, processes=1, seconds=60) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_store_of_forked_ranks_is_reached_from_this_machine_alone() -> None:
    found = forked._store(5.0)
    assert found.host == "127.0.0.1"
    assert found.port > 0


def test_a_rank_ends_with_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Context:
        @staticmethod
        def Pipe(*, duplex: bool) -> Any:
            assert not duplex
            return [SimpleNamespace(close=lambda: made.append("closed"))] * 2

        @staticmethod
        def Process(**given: Any) -> Any:
            made.append(given)
            raise OSError("enough")

    monkeypatch.setattr(forked.multiprocessing, "get_context", lambda kind: Context if kind == "fork" else None)
    with pytest.raises(OSError, match="enough"):
        run_forked(print, processes=1, seconds=5)
    given, *closed = made
    work, _, variables, rank = given["args"]
    assert (given["target"], given["daemon"], work, rank) == (forked._rank, True, print, 0)
    assert variables["WORLD_SIZE"] == "1"
    assert closed == ["closed", "closed"]


def test_a_rank_that_ended_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last wait begins after the end of the time, and takes none."""
    clock, waited, joins = [100.0], list[Any](), list[int]()

    def wait(objects: list[Any], timeout: float) -> list[Any]:
        waited.append((sorted(each for each in objects if isinstance(each, int)), timeout))
        clock[0] += 7.0
        ready = [each for each in objects if isinstance(each, int)][:1]
        return ready if timeout > 0 else []

    ranks: list[Any] = [
        SimpleNamespace(sentinel=number, exitcode=0, join=lambda number=number: joins.append(number))
        for number in (11, 12, 13)
    ]
    monkeypatch.setattr(forked, "wait", wait)
    monkeypatch.setattr(forked, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with pytest.raises(WorkerFailed, match="no result within 10 s"):
        forked._first_result("the pipe of results", ranks, 10.0)  # type: ignore[arg-type]
    assert waited == [([11, 12, 13], 10.0), ([12, 13], 3.0), ([13], 0.0)]
    assert joins == [11, 12]


def test_a_handler_of_another_language_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot restore a handler that it did not set."""
    monkeypatch.setattr(forked.signal, "getsignal", lambda number: None)
    monkeypatch.setattr(forked.signal, "signal", lambda *given: pytest.fail("the handler was replaced"))
    with forked._interrupts_deferred():
        pass


# -- variables and failures --------------------------------------------------------------------------------------------


def test_variables_that_are_given_are_the_only_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"NNODES": "2", "NODE_RANK": "1", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert (environment.hosts({}), environment.rank_info({}), environment.counts_hosts({})) == (
        Hosts(),
        RankInfo(),
        False,
    )
    assert (environment.hosts().nodes, environment.rank_info().rank, environment.counts_hosts()) == (2, 1, True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"SLURM_NTASKS": None}, RankInfo()), ({"SLURM_NTASKS": "1"}, RankInfo()),
     ({"MASTER_ADDR": ""}, RankInfo(1, 0, 2, 1, "gpu03", 10000, 0, "", False)),
     ({"SLURM_STEP_TASKS_PER_NODE": "2,3(x2)"}, RankInfo(1, 0, 2, 2, "gpu03", 10000, 0, "", False))],
)  # fmt: skip
def test_tasks_of_slurm_with_few_variables(changes: dict[str, str | None], expected: RankInfo) -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "gpu[03-04]"} | changes
    assert environment.rank_info({name: value for name, value in slurm.items() if value is not None}) == expected


def test_the_place_of_an_error_is_where_it_was_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where it was caught: the innermost call counts."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    try:
        json.loads("{")
    except ValueError as error:
        failure.record(error)
    found = failure.first_failure(tmp_path, since=0.0)
    assert found is not None
    assert found.location.startswith("decoder.py:")
    assert f"JSONDecodeError ({found.location}): Expecting property name" in str(found)
