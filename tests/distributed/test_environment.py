from __future__ import annotations

import pytest

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.distributed.environment import Hosts, RankInfo, counts_hosts, first_host, hosts, rank_info


def test_torchruns_variables() -> None:
    found = rank_info(
        {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
         "MASTER_ADDR": "head", "MASTER_PORT": "29400",
         "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    )  # fmt: skip
    assert found == RankInfo(3, 1, 4, 2, "head", 29400, 2, "x", True)
    alone = rank_info({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
    assert alone == RankInfo(1, 1, 2, 1, "127.0.0.1", 29500, 0, "", False)


def test_without_variables_there_is_one_process() -> None:
    assert rank_info({}) == RankInfo()
    assert (
        rank_info({"RANK": "1", "WORLD_SIZE": "2"}) == RankInfo()
    )  # a host's numbers, not a process's: for the launcher


def test_slurm_with_a_task_per_process() -> None:
    env = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "gpu[03-04]",
           "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_ID": "20077", "SLURM_RESTART_COUNT": "3"}  # fmt: skip
    assert rank_info(env) == RankInfo(5, 1, 8, 4, "gpu03", 10077, 3, "20077", False)
    assert rank_info({**env, "SLURM_NTASKS": "1"}) == RankInfo(), "a task that starts the ranks itself"
    chosen = rank_info({**env, "MASTER_ADDR": "here", "MASTER_PORT": "1234"})
    assert chosen == RankInfo(5, 1, 8, 4, "here", 1234, 3, "20077", False)
    less = {name: env[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST")}
    assert rank_info(less) == RankInfo(5, 0, 8, 1, "gpu03", 10000, 0, "", False)


@pytest.mark.parametrize(
    ("nodelist", "name"),
    [("gpu[03-05,9]", "gpu03"), ("gpu[7,9]", "gpu7"), ("alone", "alone"), ("a1,b2", "a1")],
)
def test_first_host_of_a_slurm_list(nodelist: str, name: str) -> None:
    assert first_host(nodelist) == name


def test_the_launchers_variables_old_and_new() -> None:
    new = {"MASTER_ADDR": "head", "MASTER_PORT": "1", "NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "8"}
    assert hosts(new) == Hosts(2, 1, "head:1", 8)
    old = {"MASTER_ADDR": "head", "WORLD_SIZE": "2", "RANK": "1"}  # platforms that number hosts by RANK
    assert hosts(old) == Hosts(2, 1, "head:29400", None)
    assert hosts({}) == Hosts()


def test_a_slurm_job_numbers_its_hosts_and_counts_them_only_for_a_training() -> None:
    job = {"SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[03-04]"}
    assert hosts(job) == Hosts(2, 1, "gpu03:29400", None)
    assert hosts({**job, "NNODES": "2"}) == Hosts(2, 1, "gpu03:29400", None)
    assert hosts({**job, "NNODES": "1"}) == Hosts(1, None, None, None)
    assert not counts_hosts(job)
    assert counts_hosts({**job, "NNODES": "2"})
    assert counts_hosts({"WORLD_SIZE": "2", "RANK": "1"})
    assert not counts_hosts({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0"})


def test_the_first_host_has_the_number_0_or_no_other_beside_it() -> None:
    assert [hosts({"NNODES": "2", "NODE_RANK": str(rank)}).is_first for rank in (0, 1)] == [True, False]
    assert hosts({}).is_first
    alone = {"NNODES": "1", "NODE_RANK": "3"}  # a number that is left over from another job
    assert hosts(alone) == Hosts(1, None, None, None)
    assert hosts({"SLURM_NNODES": "1", "SLURM_NODEID": "0"}).is_first
    assert not hosts({"NODE_RANK": "1"}).is_first  # the number of hosts may be a parameter


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NNODES": "2", "NODE_RANK": "2"}, r"a number from 0 to 1 of this host among 2 .*, found 2\. Set"),
        ({"NODE_RANK": "-1"}, r"from 0 of this host in NODE_RANK, found -1"),
        ({"NNODES": "0"}, "expected at least 1 in NNODES, found 0"),
        ({"NPROC_PER_NODE": "-8"}, "expected at least 1 in NPROC_PER_NODE, found -8"),
    ],
)
def test_numbers_that_no_host_can_have_are_refused(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        hosts(env)


def test_contradictory_and_non_numeric_variables_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected RANK in 0\.\.1"):
        rank_info({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(ConfigurationError, match="NNODES, found 'two'"):
        hosts({"NNODES": "two"})


TORCHRUN = {
    "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "7",
    "TORCHELASTIC_RESTART_COUNT": "1",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "5", "SLURM_RESTART_COUNT": "1", "MASTER_PORT": "7",
}  # fmt: skip


@pytest.mark.parametrize("value", ["", "two", "1.5", "0x1"])
@pytest.mark.parametrize(
    ("given", "name"),
    [*((TORCHRUN, name) for name in TORCHRUN), *((SLURM, name) for name in SLURM if name != "SLURM_STEP_NODELIST")],
)  # fmt: skip
def test_a_variable_of_a_rank_that_is_no_whole_number_is_named(given: dict[str, str], name: str, value: str) -> None:
    words = rf"^expected a whole number in the environment variable {name}, found '{value}'\. Correct or unset it\.$"
    with pytest.raises(ConfigurationError, match=words):
        rank_info({**given, name: value})
