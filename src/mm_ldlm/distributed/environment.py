"""Ranks, hosts and addresses, as the variables of torchrun, SLURM and older shell scripts give them."""

import contextlib
import dataclasses
import os
import re
import socket
from collections.abc import Iterable, Mapping

from mm_ldlm.core import ConfigurationError


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """One process of the group: global rank, rank on its host, number of processes, and the address of rank 0."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    local_world: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0
    attempt: int = 0
    run_id: str = ""
    agent_store: bool = False
    """True when the launcher already hosts the TCP store at the master's port (torchrun, elastic_launch)."""


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Settings of a launcher: number of hosts, number of this host, address of the first, and processes per host.

    The number of this host is None if nothing sets one, and for the only host of a command.
    """

    nodes: int | None = None
    node_rank: int | None = None
    endpoint: str | None = None
    processes: int | None = None

    @property
    def is_first(self) -> bool:
        """Whether this host records the run, locks its folders and commits its stores: the only host, or number 0."""
        return not self.node_rank


_COUNTS = ("NNODES", "NPROC_PER_NODE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NNODES")
"""Variables that are at least 1"""
_NUMBERS = (*_COUNTS, "NODE_RANK", "RANK", "SLURM_NODEID")
"""Variables of a launcher that are whole numbers"""


def rank_info(env: Mapping[str, str] = os.environ) -> RankInfo:
    """Read this process's rank from torchrun's variables; without them this process is the only one.

    Raises:
        ConfigurationError: a variable is not a number, or rank and world size contradict each other.
    """
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= env.keys():
        return RankInfo()
    found = RankInfo(
        rank=_int(env, "RANK"),
        local_rank=_int(env, "LOCAL_RANK"),
        world=_int(env, "WORLD_SIZE"),
        local_world=_int(env, "LOCAL_WORLD_SIZE", 1),
        master_address=env.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_int(env, "MASTER_PORT", 29500),
        attempt=_int(env, "TORCHELASTIC_RESTART_COUNT", 0),
        run_id=env.get("TORCHELASTIC_RUN_ID", ""),
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True",
    )
    if found.rank >= found.world:
        raise ConfigurationError(
            f"expected RANK in 0..{found.world - 1} with WORLD_SIZE={found.world}, found {found.rank}. "
            "Unset both, or start the worker with torchrun, which sets them."
        )
    return found


def hosts(env: Mapping[str, str] = os.environ) -> Hosts:
    """Read MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK and NPROC_PER_NODE for a launcher, else SLURM's variables.

    On platforms that set RANK and WORLD_SIZE per *host* (without LOCAL_RANK), these count hosts.

    Raises:
        ConfigurationError: a variable is not a number, or not one that a host can have.
    """
    number = {name: _int(env, name) for name in _NUMBERS if env.get(name)}
    per_host = "LOCAL_RANK" not in env  # else WORLD_SIZE and RANK count processes
    nodes = number.get("NNODES", number.get("WORLD_SIZE") if per_host else None)
    rank = number.get("NODE_RANK", number.get("RANK") if per_host else None)
    if nodes is None or (nodes > 1 and rank is None):
        rank = number.get("SLURM_NODEID") if rank is None else rank
    nodes = number.get("SLURM_NNODES") if nodes is None else nodes
    address = env.get("MASTER_ADDR")
    if address is None and nodes is not None and nodes > 1 and "SLURM_JOB_NODELIST" in env:
        address = first_host(env["SLURM_JOB_NODELIST"])
    endpoint = f"{address}:{env.get('MASTER_PORT', '29400')}" if address else None
    processes = number.get("NPROC_PER_NODE")
    if nodes == 1:  # a number may be left over from another job
        rank = None
    return Hosts(nodes=nodes, node_rank=rank, endpoint=endpoint, processes=processes)


def counts_hosts(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether a number of hosts was set for this command, and not only for the SLURM job that it runs in."""
    return bool(env.get("NNODES")) or (bool(env.get("WORLD_SIZE")) and "LOCAL_RANK" not in env)


def first_host(nodelist: str) -> str:
    """Return the first name of a SLURM node list: `rack[1-2]gpu[03-05,9],x` gives `rack1gpu03`."""
    return re.sub(r"\[([^],-]+)[^]]*\]|,.*", r"\1", nodelist)


def address_towards(endpoint: str) -> str | None:
    """Return this machine's address on the route to "host:port", or None for unknown hosts. Nothing is sent."""
    host, _, port = endpoint.rpartition(":")
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(
            host.strip("[]"), int(port or 0) or 1, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(there)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this address (or the address of this host name), or None."""
    import psutil

    try:
        wanted = {str(there[0]) for *_, there in socket.getaddrinfo(address, None)}
    except OSError:
        return None
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, held in interfaces if wanted & {one.address.split("%")[0] for one in held}), None)


def _int(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = env.get(name)
    if value is None and default is not None:
        return default
    least = 1 if name in _COUNTS else 0
    with contextlib.suppress(ValueError):
        if (number := int(value or "")) >= least:
            return number
    raise ConfigurationError(
        f"expected a whole number of at least {least} in the environment variable {name}, found {value!r}. Correct or "
        "unset it."
    )


def given(names: Iterable[str]) -> list[str]:
    """List the names of the variables that the environment has."""
    return [name for name in names if name in os.environ]
