"""The launcher: start workers with PyTorch's elastic launcher (as torchrun does) and raise their first error here.

The workers are started by `entry`, so that they import nothing of the launching process
(neither Kedro nor MLflow).
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from mm_ldlm.core import ConfigurationError, NonNegativeInt, PositiveInt, WorkerFailed, Workers, config
from mm_ldlm.distributed import entry, environment, failure

MONITOR_SECONDS = 0.2
"""Between two checks of the workers"""
_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@config
class HostsConfig:
    """Parameters of the launcher that do not depend on the workers: the hosts of a launch, and its logs.

    Attributes:
        nodes: number of hosts. With more than one, every host runs the same command; `rendezvous` names the first.
        rendezvous: "host:port" of the first host; null uses a free port of this machine. MASTER_ADDR and MASTER_PORT
            override it.
        address: address of this host as other hosts reach it; null uses the one on the route to the first host. gloo
            uses its network interface, unless GLOO_SOCKET_IFNAME names another.
        job: name that the hosts of one run share; null for a single host.
        max_restarts: number of restarts of all workers after one was lost; they continue from what was saved.
        join_timeout: seconds to wait for the other hosts.
        keep_logs: number of launches whose logs are kept on each host.
    """

    nodes: Workers = 1
    rendezvous: str | None = None
    address: str | None = None
    job: str | None = None
    max_restarts: NonNegativeInt = 0
    join_timeout: PositiveInt = 300
    keep_logs: PositiveInt = 3


@config
class RanksConfig(HostsConfig):
    """Parameters of the launcher: number of workers and hosts.

    Attributes:
        processes: worker processes per host.
    """

    processes: Workers = 1


@config
class LaunchConfig(RanksConfig):
    """A launch on this host. Its number is not a parameter, because all hosts have the same parameters.

    Attributes:
        node_rank: number of this host, 0 for the first of several.
    """

    node_rank: NonNegativeInt | None = None


def with_environment(config: RanksConfig) -> LaunchConfig:
    """Replace settings by the values of MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK and NPROC_PER_NODE."""
    found = environment.hosts()
    changes = {
        "node_rank": found.node_rank,
        "nodes": found.nodes or config.nodes,
        "rendezvous": found.endpoint or config.rendezvous,
        "processes": found.processes or config.processes,
    }
    return LaunchConfig(**{**vars(config), **changes})


def check_number(config: LaunchConfig) -> None:
    """Check that it is known which host is the first, before the hosts write anything.

    Raises:
        ConfigurationError: one of several hosts has no number, or the only one is not the first.
    """
    number = config.node_rank
    if not (number in (None, 0) if config.nodes == 1 else number is not None and 0 <= number < config.nodes):
        raise ConfigurationError(
            f"expected the number of this host among {config.nodes} in NODE_RANK, from 0, found "
            f"{'none' if number is None else number}. Set NNODES and NODE_RANK on every host, or unset both to use one "
            "host."
        )


def check_hosts(config: LaunchConfig) -> None:
    """Check that the hosts of a launch can meet.

    Raises:
        ConfigurationError: one of several hosts has no number, or no address of the first.
    """
    check_number(config)
    if config.nodes > 1 and config.rendezvous is None:
        raise ConfigurationError(
            f"expected the address of the first of {config.nodes} hosts, found none. Set MASTER_ADDR and MASTER_PORT "
            "on every host, or launch.rendezvous of training or embedding."
        )


def launch(module: str, arguments: Sequence[str], *, config: LaunchConfig, log_directory: Path) -> None:
    """Run `python -m module arguments…` as `processes` ranks on this host (of `nodes`) and wait for all of them.

    The output of each rank goes to files under `log_directory`.

    Raises:
        ConfigurationError: one of several hosts has no number, or no address of the first.
        WorkerFailed: a rank failed, or some hosts did not join. The message names rank, step, cause and log of the rank
            that failed first; `error_class` is the class of its exception.
        KeyboardInterrupt: the user pressed Ctrl-C; the workers have ended.
        SystemExit: the process received another signal (SIGTERM: 143); the workers have ended.
    """
    from torch.distributed import DistError, TCPStore
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher import api

    for name in ("torch.distributed.elastic", "torch.distributed.launcher"):  # errors are reported below
        logging.getLogger(name).setLevel(logging.CRITICAL)
    check_hosts(config)
    log_directory.mkdir(parents=True, exist_ok=True)
    _remove_old_logs(log_directory, keep=config.keep_logs - 1)
    started = time.time()
    # torch's own socket would listen on all interfaces
    listener = socket.create_server(("127.0.0.1", 0)) if config.nodes == 1 else None
    store = None if listener is None else TCPStore(
        "127.0.0.1", listener.getsockname()[1], None, True, multi_tenant=True, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    endpoint = str(config.rendezvous) if store is None else f"127.0.0.1:{store.port}"
    address = "127.0.0.1" if store is not None else config.address or environment.address_towards(endpoint)
    interface = environment.interface_of(address) if address else None
    program = ("-u", entry.__file__, str(os.getpid()), interface or "")
    elastic = api.LaunchConfig(
        min_nodes=config.nodes,
        max_nodes=config.nodes,
        nproc_per_node=config.processes,
        run_id=config.job or uuid.uuid4().hex[:12],
        rdzv_backend="c10d" if store is None else "static",  # c10d reads the stack for its records: seconds
        rdzv_endpoint=endpoint,
        rdzv_configs={
            "join_timeout": config.join_timeout,
            "read_timeout": config.join_timeout,  # of the connection to the first host
            "is_host": not config.node_rank,
            "rank": 0,  # of a static rendezvous, which shares the server of `store`
        },
        max_restarts=config.max_restarts,
        monitor_interval=MONITOR_SECONDS,
        local_addr=address,
        logs_specs=DefaultLogsSpecs(log_dir=str(log_directory), redirects=Std.ALL, tee=Std.NONE),
    )
    try:
        with contextlib.ExitStack() as restored:  # the elastic agent replaces the handlers of this process
            if threading.current_thread() is threading.main_thread():
                for number in _HANDLED_SIGNALS:
                    restored.callback(signal.signal, number, signal.getsignal(number))
            api.elastic_launch(elastic, sys.executable)(*program, module, *arguments)
    except ChildFailedError as error:
        text, error_class = failure.explain(error.failures, log_directory, since=started)
        again = f" (after {config.max_restarts} restarts)" if config.max_restarts else ""
        raise WorkerFailed(text + again, error_class=error_class) from None
    except SignalException as error:
        if error.sigval.name == "SIGINT":
            raise KeyboardInterrupt from None
        raise SystemExit(128 + error.sigval) from None  # the exit code that a shell gives for this signal
    except (RendezvousError, DistError, TimeoutError, ValueError) as error:  # ValueError: not an address
        raise WorkerFailed(
            f"expected {config.nodes} hosts to join at {config.rendezvous or 'this machine'} within "
            f"{config.join_timeout} s, but they did not ({type(error).__name__}: "
            f"{str(error).strip() or 'no details'}). "
            "Start the same command on every host, and check MASTER_ADDR, MASTER_PORT and that the port is open."
        ) from None


def _remove_old_logs(directory: Path, *, keep: int) -> None:
    """Remove the folders of all but the newest `keep` launches."""
    launches = {path.parent for path in directory.glob("*/attempt_*")}
    for folder in sorted(launches, key=lambda path: path.stat().st_mtime_ns, reverse=True)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)
