"""Ranks and hosts, as the variables of torchrun, SLURM and older scripts give them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import ConfigurationError
from mm_ldlm.distributed.environment import Hosts, RankInfo, counts_hosts, first_host, hosts, rank_info

TORCHRUN = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "head",
    "MASTER_PORT": "29400", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
JOB = {"SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[03-04]"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, RankInfo()),
        ({"RANK": "1", "WORLD_SIZE": "2"}, RankInfo()),  # the numbers of a host
        (TORCHRUN, RankInfo(3, 1, 4, 2, "head", 29400, 2, "x", True)),
    ],
)
def test_a_rank_reads_its_place(variables: dict[str, str], expected: RankInfo) -> None:
    assert rank_info(variables) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Hosts()),
        ({"MASTER_ADDR": "head", "MASTER_PORT": "1", "NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "8"},
         Hosts(2, 1, "head:1", 8)),
        ({"MASTER_ADDR": "head", "WORLD_SIZE": "2", "RANK": "1"}, Hosts(2, 1, "head:29400", None)),
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0"}, Hosts()),  # the numbers of a process
        (JOB, Hosts(2, 1, "gpu03:29400", None)),
        (JOB | {"NNODES": "2"}, Hosts(2, 1, "gpu03:29400", None)),
        (JOB | {"NNODES": "1"}, Hosts(1, None, None, None)),
        ({"NNODES": "1", "NODE_RANK": "3"}, Hosts(1, None, None, None)),  # left over from another job
    ],
)  # fmt: skip
def test_a_launcher_reads_its_hosts(variables: dict[str, str], expected: Hosts) -> None:
    assert hosts(variables) == expected


def test_the_first_host_is_number_0_or_the_only_one() -> None:
    several = [{"NNODES": "2", "NODE_RANK": rank} for rank in "01"]
    found = [hosts(each).is_first for each in ({}, *several, {"NODE_RANK": "1"})]
    assert found == [True, True, False, False], "the number of hosts may be a parameter"


def test_a_job_of_slurm_does_not_count_the_hosts_of_a_command() -> None:
    host = {"WORLD_SIZE": "2", "RANK": "1"}
    found = [counts_hosts(each) for each in (JOB, JOB | {"NNODES": "2"}, host, host | {"LOCAL_RANK": "0"})]
    assert found == [False, True, True, False]


@given(
    name=st.from_regex(r"[a-z][a-z0-9.-]{0,8}[a-z]", fullmatch=True), numbers=st.lists(st.integers(0, 99), min_size=1)
)
def test_the_first_host_of_a_list_is_its_first_name(name: str, numbers: list[int]) -> None:
    texts = [f"{number:02d}" for number in numbers]
    assert first_host(f"{name}[{','.join(texts)}],other") == name + texts[0]
    assert first_host(f"rack[1-3]{name}[{'-'.join(texts)}],other[2]") == f"rack1{name}{texts[0]}"
    assert first_host(",".join(name + text for text in texts)) == name + texts[0]


@pytest.mark.parametrize(
    ("read", "variables", "named"),
    [
        (rank_info, TORCHRUN | {"RANK": "4"}, (4,)),
        (rank_info, TORCHRUN | {"MASTER_PORT": ""}, ("MASTER_PORT",)),
        (hosts, {"NNODES": "two"}, ("NNODES", "two")),
        (hosts, {"NNODES": "0"}, ("NNODES", 0)),
        (hosts, {"NPROC_PER_NODE": "-8"}, ("NPROC_PER_NODE", -8)),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(
    refuses: Callable[..., Any], read: Callable[[Any], Any], variables: Any, named: tuple[Any, ...]
) -> None:
    with refuses(ConfigurationError, *named):
        read(variables)
