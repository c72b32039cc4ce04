"""Extraction of latents: resumable, in the order of the records, with the same bytes for any number of processes.

Each shard is encoded separately: its sentences are sorted by length and batched among themselves, so that its bytes
depend neither on the other shards nor on the process. On the CPU the number of threads influences the arithmetic, so it
is part of the inputs and the same in every process.

Several hosts that share the data folder embed together. The first host decides which shards are missing and writes
them to `job.json` before it launches its ranks, and commits the store after all ranks have ended. The other hosts only
launch ranks. The launcher starts no rank before all hosts have joined, so every rank finds the job.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from mm_ldlm.core import ConfigurationError, StoreError, to_dict
from mm_ldlm.core.files import write_json
from mm_ldlm.data.corpus.record import is_decoded
from mm_ldlm.data.encoders import EncoderConfig, LocatedEncoder
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents import worker
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.worker import Job
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.parts import Parts
from mm_ldlm.distributed import environment
from mm_ldlm.distributed.launch import LaunchConfig, RanksConfig, check_hosts, launch, with_environment

logger = logging.getLogger(__name__)
FORMAT_VERSION = 1


def extract(records: ShardStore, *, encoder: EncoderConfig, config: ExtractConfig, workspace: Path) -> Manifest:
    """Fill `workspace` with the latents of `records` and commit it, keeping finished shards of the same inputs.

    Raises:
        StoreError: Texts were decoded from stored tokens, so that their embeddings would be those of other texts.
        FingerprintError: The workspace contains latents of other records, another encoder or other parameters.
        EncoderError: The encoder cannot be loaded, or returned numbers that are not finite.
        ConfigurationError: The engine cannot be started, or cannot run this encoder.
        WorkerFailed: A process failed; all finished shards are kept.
    """
    _refuse_decoded(records)
    workspace = workspace.resolve()
    ranks = ranks_of_hosts(config, encoder.device, workspace=workspace)
    located = encoder.locate(expected=Parts(workspace, {}).earlier.get("encoder"))
    shard_rows = config.shard_rows or default_shard_rows(len(records))
    parameters = {
        "format": FORMAT_VERSION, "shard_rows": shard_rows, "dtype": config.dtype, "threads": config.threads,
        **encoder.batching,
    }  # fmt: skip
    made_by = {
        "records": records.manifest.fingerprint, "encoder": located.fingerprint, "parameters": fingerprint(parameters),
    }  # fmt: skip
    job = Job(str(records.directory.resolve()), str(workspace), encoder, config, shard_rows, made_by)
    done, numbers = job.parts.begin(), job.numbers(len(records))
    missing = [number for number in numbers if number not in done]
    if missing or ranks is not None:  # the other hosts wait for this one, also if nothing is missing
        logger.info(
            "embedding %d rows with %s: %d of %d shards to do", len(records), located.name, len(missing), len(numbers)
        )
        started = time.monotonic()
        with _watch(job, missing, rows=sum(len(range(*job.rows(number, len(records)))) for number in missing)):
            _run(job, missing, located=located, ranks=ranks)
        logger.info("embedded in %.0f s", time.monotonic() - started)
    return commit(job, located, rows=len(records))


def commit(job: Job, located: LocatedEncoder, *, rows: int) -> Manifest:
    """Write the manifest of a store of which all shards are finished; a complete store keeps its manifest."""
    workspace = Path(job.workspace)
    if Manifest.exists(workspace):
        return Manifest.read(workspace)
    shards = job.parts.shards(len(job.numbers(rows)))
    store = latent_store.LatentStore(workspace, Manifest(kind=latent_store.KIND, rows=rows, shards=shards))
    column = store.fixed("latent")
    bad = [
        store.bounds(number)[0] + np.flatnonzero(~np.isfinite(column.shard(number)).all(1))
        for number in range(len(shards))
    ]
    non_finite = np.concatenate(bad)
    return job.parts.commit(
        shards, kind=latent_store.KIND, schema=store.schema,
        meta={
            "dim": column.dim, "dtype": job.config.dtype, "shard_rows": job.shard_rows, "encoder": located.describe(),
            "encoder_config": job.encoder.portable(),
            "non_finite": {"count": len(non_finite), "ids": store.ids(non_finite[:10])},
        },
    )  # fmt: skip


def extract_with_first_host(*, encoder: EncoderConfig, config: ExtractConfig, workspace: Path) -> None:
    """Encode a part of the shards that the first host found missing; the first host commits the store.

    Raises:
        ConfigurationError: the hosts are not configured.
        WorkerFailed: a process failed, or some hosts did not join.
    """
    ranks = ranks_of_hosts(config, encoder.device, workspace=workspace.resolve())
    if ranks is None:
        raise ConfigurationError(
            "expected several hosts, because this one is not the first (NODE_RANK), found 1. Set NNODES on every host."
        )
    _launch(workspace.resolve(), ranks)


def default_shard_rows(rows: int) -> int:
    """Choose a power of two near 1/64 of the rows: processes share the work evenly and there are few shards."""
    below = 1 << max((rows // 64).bit_length() - 1, 0)
    return min(max(below, 1024), 65_536)


def ranks_of_hosts(config: ExtractConfig, device: str | None, *, workspace: Path) -> LaunchConfig | None:
    """Return the launch of this host's ranks, which encode on `device`, or None for a single host.

    The number of hosts of a SLURM job alone does not count: the commands of its script run on one of them.

    Raises:
        ConfigurationError: several hosts are to embed, and this one does not know its number or the first host; or an
            engine distributes the work.
    """
    if config.launch.nodes == 1 and not environment.counts_hosts():
        return None
    own = {field.name: getattr(config.launch, field.name) for field in dataclasses.fields(config.launch)}
    found = with_environment(RanksConfig(**own, processes=config.processes_on(device)))
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


def _refuse_decoded(records: ShardStore) -> None:
    count = sum(
        is_decoded(meta) for table in records.iter_tables(columns=["meta"]) for meta in table["meta"].to_pylist()
    )
    if count:
        raise StoreError(
            f"expected texts to embed, found {count} of {len(records)} that were decoded from stored tokens: spaces "
            "and capitals of the original texts are unknown, and so are their embeddings. Use the stored latents (the "
            "source's 'latents', and encoder.kind: precomputed), or an objective without latents."
        )


def _run(job: Job, missing: list[int], *, located: LocatedEncoder, ranks: LaunchConfig | None) -> None:
    """Encode the missing shards by an engine, in this process, or in processes that the elastic launcher starts."""
    processes = min(job.config.processes_on(job.encoder.device), max(1, len(missing)))
    if not job.config.engine.here:
        with job.config.engine.started() as engine:
            worker.encode_by_tasks(engine, job, missing)
    elif ranks is None and processes == 1:
        worker.encode_shards(job, missing, encoder=job.encoder.load(located))
    else:
        write_json(job.parts.folder / worker.JOB, {**to_dict(job), "missing": missing})
        _launch(Path(job.workspace), ranks or LaunchConfig(processes=processes))


def _launch(workspace: Path, ranks: LaunchConfig) -> None:
    """Launch this host's ranks, which encode their parts of the job in the workspace, and wait for those of all hosts.

    Raises:
        WorkerFailed: a rank failed, or some hosts did not join.
    """
    folder = Parts(workspace, {}).folder
    logs = folder / "logs" / (f"{environment.host_name()}-{ranks.node_rank}" if ranks.nodes > 1 else "")
    logger.info("embedding with %d process(es) on each of %d host(s)", ranks.processes, ranks.nodes)
    launch(worker.__name__, [str(folder / worker.JOB)], config=ranks, log_directory=logs)


@contextlib.contextmanager
def _watch(job: Job, missing: Sequence[int], *, rows: int) -> Iterator[None]:
    """Show a progress bar over all processes, by the records of the shards that they finish."""
    stop, hidden = threading.Event(), not job.config.progress
    with tqdm(total=rows, unit="rows", unit_scale=True, desc="embedding", disable=hidden, mininterval=1.0) as bar:

        def advance() -> None:
            ended = False
            while not ended:
                ended = stop.wait(0.5)
                done = sum(job.parts.record(number).is_file() for number in missing)
                bar.update(min(done * job.shard_rows, rows) - bar.n)

        thread = threading.Thread(target=advance, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
