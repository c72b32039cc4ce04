"""Extraction on several hosts that share the data folder: the launch of the ranks, on the first host and on the others.

The first host decides which shards are missing and writes them to `job.json` before it launches its ranks, and commits
the store after all ranks have ended. The other hosts only launch ranks. The launcher starts no rank before all hosts
have joined, so every rank finds the job.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.batching import lanes_of
from mm_ldlm.data.encoders import EncoderConfig
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.plan import PROGRESS_FOLDER
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.distributed import environment
from mm_ldlm.distributed.launch import LaunchConfig, RanksConfig, check_hosts, launch, with_environment

logger = logging.getLogger(__name__)
JOB = "job.json"
_WORKER = "mm_ldlm.data.latents.worker"


def launch_config(config: ExtractConfig, encoder: EncoderConfig, *, workspace: Path) -> LaunchConfig | None:
    """Return the launch of this host's ranks, or None for a single host.

    The number of hosts of a SLURM job alone does not count: the commands of its script run on one of them.

    Raises:
        ConfigurationError: several hosts are to embed, and this one does not know its number or the first host; or an
            engine distributes the work.
    """
    if config.launch.nodes == 1 and not environment.counts_hosts():
        return None
    config_of_hosts = {field.name: getattr(config.launch, field.name) for field in dataclasses.fields(config.launch)}
    found = with_environment(RanksConfig(**config_of_hosts, processes=processes_of(encoder, config)))
    if found.nodes == 1:
        return None
    if not config.engine.here:
        raise ConfigurationError(
            f"parameter 'embedding.engine': expected local on {found.nodes} hosts (NNODES), found "
            f"{config.engine.kind}, which has nodes of its own. Run the command on one host: `NNODES=1 kedro run`."
        )
    check_hosts(found)
    # The hosts of one store use one name, whatever path they see it under.
    name = config.launch.job or f"embedding-{fingerprint([workspace.name, found.rendezvous])[:12]}"
    return dataclasses.replace(found, job=name)


def processes_of(encoder: EncoderConfig, config: ExtractConfig) -> int:
    """Return the number of ranks on this host: one for each GPU, or for each group of `threads` cores."""
    import torch

    if config.processes:
        return config.processes
    if encoder.device in ("auto", "cuda") and torch.cuda.is_available():
        return torch.cuda.device_count()
    return lanes_of("cpu", threads=config.threads) if encoder.device in ("auto", "cpu") else 1


def run_ranks(workspace: Path, *, config: LaunchConfig) -> None:
    """Launch this host's ranks, which encode their parts of the job in the workspace, and wait for those of all hosts.

    Raises:
        WorkerFailed: a rank failed, or some hosts did not join.
    """
    logger.info("embedding on %d hosts: this is host %s, with %d process(es)", config.nodes, config.node_rank,
                config.processes)  # fmt: skip
    progress = workspace / PROGRESS_FOLDER
    logs = progress / "logs" / f"{environment.host_name()}-{config.node_rank}"
    launch(_WORKER, [str(progress / JOB)], config=config, log_directory=logs)
