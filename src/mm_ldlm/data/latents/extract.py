"""Extraction of latents: resumable, in the order of the records, with the same bytes for any number of processes.

Each shard is encoded separately: its sentences are sorted by length and batched among themselves, so that its bytes
depend neither on the other shards nor on the process. On the CPU the number of threads influences the arithmetic, so it
is part of the inputs and the same in every process.

Several hosts that share the data folder embed together. The first host decides which shards are missing and writes
them to `job.json` before it launches its ranks, and commits the store after all ranks have ended. The other hosts only
launch ranks. The launcher starts no rank before all hosts have joined, so every rank finds the job. A rank is this
module as a program (`python -m mm_ldlm.data.latents.extract JOB`).

A process computes as many batches of a shard at a time as it has lanes: on a CPU, threads are as fast as processes
without starting further interpreters, because matrix products release Python's lock.
"""

import contextlib
import dataclasses
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import ConfigurationError, EncoderError, parse, to_dict
from mm_ldlm.core.files import InputFile, write_json
from mm_ldlm.core.progress import shown
from mm_ldlm.data.encoders import ENCODERS, Encoder, EncoderConfig, LocatedEncoder, load_encoder
from mm_ldlm.data.engines import Engine
from mm_ldlm.data.inference_batches import lanes_of
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.writer import Parts
from mm_ldlm.distributed import environment, failure
from mm_ldlm.distributed.device import choose_device
from mm_ldlm.distributed.launch import LaunchConfig, RanksConfig, check_hosts, launch, with_environment
from mm_ldlm.models.defaults import plain_defaults

logger = logging.getLogger(__name__)
FORMAT_VERSION = 1
JOB = "job.json"
Vectors = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Job:
    """The inputs that determine the bytes of the store, their fingerprints `made_by`, and the folders."""

    records: str
    workspace: str
    encoder: Annotated[Any, ENCODERS]
    config: ExtractConfig
    shard_rows: int
    made_by: Mapping[str, str]

    @property
    def parts(self) -> Parts:
        return Parts(Path(self.workspace), self.made_by)

    def read(self, records: ShardStore, number: int) -> tuple[list[str], list[str]]:
        """Return the ids and the texts of a shard."""
        table = records.window(number * self.shard_rows, (number + 1) * self.shard_rows, columns=["id", "text"])
        return table["id"].to_pylist(), table["text"].to_pylist()

    def numbers(self, count: int) -> range:
        """List the shards of `count` rows."""
        return range(max(1, -(-count // self.shard_rows)))

    def write(self, number: int, ids: list[str], vectors: Vectors) -> None:
        """Write a shard.

        Raises:
            EncoderError: it has NaN or infinity, which only the conversion to float16 may produce, and the job is to
                stop.
        """
        with np.errstate(over="ignore"):
            stored = vectors.astype(np.dtype(self.config.dtype), copy=False)
        bad = np.flatnonzero(~np.isfinite(stored).all(1))
        if len(bad) and self.config.non_finite == "stop":
            first = ", ".join(ids[row] for row in bad[:5])
            raise EncoderError(
                f"expected finite vectors of the encoder {self.encoder.name!r} in {self.config.dtype}, found others "
                f"for {len(bad)} of {len(ids)} sentences of shard {number} (first ids {first}). "
                "This shard was not written. Check these sentences, encoder.dtype and embedding.dtype, or set "
                "embedding.non_finite to quarantine to leave them out of the index and continue."
            )
        self.parts.write(number, latent_store.table(ids, stored))

    def encode(self, texts: Sequence[str], encoder: Encoder) -> Vectors:
        """Compute the vectors of the texts of a shard."""
        if encoder.max_length is not None:
            _warn_of_long_texts(texts, encoder, most=encoder.max_length)
        with plain_defaults(self.config.threads):
            vectors = encoder.run(encoder.prepare(texts))
        encoder.verify()
        return vectors

    def load(self, *, device: str | None) -> Encoder:
        """Load the encoder on this machine.

        Raises:
            FingerprintError: it is not the one that the job was made for.
        """
        return load_encoder(self.encoder, device=device, expected=self.made_by["encoder"])


def extract(records: ShardStore, *, encoder: EncoderConfig, config: ExtractConfig, workspace: Path) -> Manifest:
    """Fill `workspace` with the latents of `records` and commit it, keeping finished shards of the same inputs.

    Raises:
        FingerprintError: The workspace contains latents of other records, another encoder or other parameters.
        EncoderError: The encoder cannot be loaded, or returned numbers that are not finite.
        ConfigurationError: The engine cannot be started, or cannot run this encoder.
        WorkerFailed: A process failed; all finished shards are kept.
    """
    workspace = workspace.resolve()
    ranks = ranks_of_hosts(config, encoder.device, workspace=workspace)
    located = encoder.locate(expected=Parts(workspace, {}).earlier.get("encoder"))
    shard_rows = config.shard_rows or default_shard_rows(len(records))
    made_by = {
        "records": records.manifest.fingerprint,
        "encoder": located.fingerprint,
        "parameters": fingerprint({
            "format": FORMAT_VERSION, "shard_rows": shard_rows, "dtype": config.dtype, "threads": config.threads,
            **encoder.batching,
        }),
    }  # fmt: skip
    job = Job(str(records.directory.resolve()), str(workspace), encoder, config, shard_rows, made_by)
    done, numbers = job.parts.begin(), job.numbers(len(records))
    missing = [number for number in numbers if number not in done]
    if missing or ranks is not None:  # the other hosts wait for this one, also if nothing is missing
        logger.info(
            "embedding %d rows with %s: %d of %d shards to do", len(records), located.name, len(missing), len(numbers)
        )
        started = time.monotonic()
        with _watch(job, missing, rows=min(len(missing) * shard_rows, len(records))):
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
    non_finite = np.concatenate([
        store.bounds(number)[0] + np.flatnonzero(~np.isfinite(column.shard(number)).all(1))
        for number in range(len(shards))
    ])  # fmt: skip
    return job.parts.commit(
        shards, kind=latent_store.KIND, schema=store.schema,
        meta={
            "dim": column.dim, "dtype": job.config.dtype, "shard_rows": job.shard_rows, "encoder": located.describe(),
            "encoder_config": job.encoder.portable(),
            "non_finite": {"count": len(non_finite), "ids": store.gather("id", non_finite[:10]).to_pylist()},
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

    The number of hosts of a SLURM job is not enough: the commands of its script run on one of them.

    Raises:
        ConfigurationError: several hosts are to embed, and this one does not know its number or the first host; or an
            engine distributes the work.
    """
    if config.launch.nodes == 1 and not environment.counts_hosts():
        return None
    found = with_environment(RanksConfig(**vars(config.launch), processes=config.processes_on(device)))
    if found.nodes == 1:
        return None
    if not config.engine.here:
        raise ConfigurationError(
            f"parameter 'embedding.engine': expected local on {found.nodes} hosts (NNODES), found "
            f"{config.engine.kind}, which has its own nodes. Run the command on one host: `NNODES=1 kedro run`."
        )
    check_hosts(found)
    # The hosts of one store use one name, whatever path they see it under.
    name = config.launch.job or f"embedding-{fingerprint([workspace.name, found.rendezvous])[:12]}"
    return dataclasses.replace(found, job=name)


def _run(job: Job, missing: list[int], *, located: LocatedEncoder, ranks: LaunchConfig | None) -> None:
    """Encode the missing shards by an engine, in this process, or in processes that the elastic launcher starts."""
    processes = min(job.config.processes_on(job.encoder.device), max(1, len(missing)))
    if not job.config.engine.here:
        with job.config.engine.started() as engine:
            encode_by_tasks(engine, job, missing)
    elif ranks is None and processes == 1:
        encode_shards(job, missing, encoder=job.encoder.load(located))
    else:
        write_json(job.parts.folder / JOB, {**to_dict(job), "missing": missing})
        _launch(Path(job.workspace), ranks or LaunchConfig(processes=processes))


def _launch(workspace: Path, ranks: LaunchConfig) -> None:
    """Launch this host's ranks, which encode their parts of the job in the workspace, and wait for all hosts.

    Raises:
        WorkerFailed: a rank failed, or some hosts did not join.
    """
    folder = Parts(workspace, {}).folder
    logs = folder / "logs" / (f"{socket.gethostname()}-{ranks.node_rank}" if ranks.nodes > 1 else "")
    logger.info("embedding with %d process(es) on each of %d host(s)", ranks.processes, ranks.nodes)
    launch(__name__, [str(folder / JOB)], config=ranks, log_directory=logs)


@contextlib.contextmanager
def _watch(job: Job, missing: Sequence[int], *, rows: int) -> Iterator[None]:
    """Show the progress of all processes, by the records of the shards that they finish."""
    stop = threading.Event()
    with shown(total=rows, unit="rows", unit_scale=True, desc="embedding") as bar:

        def advance() -> None:
            while not stop.wait(0.5):
                done = sum(job.parts.record(number).is_file() for number in missing)
                bar.update(min(done * job.shard_rows, rows) - bar.n)

        thread = threading.Thread(target=advance, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


# -- encoding shards, in this process, in ranks of a launch or as tasks of an engine -----------------------------------


def encode_shards(job: Job, numbers: Sequence[int], *, encoder: Encoder, processes: int = 1) -> None:
    """Encode and write these shards of the job; `processes` share the cores of this host.

    Raises:
        EncoderError: The encoder returned numbers that are not finite and the job is to stop; names the sentences.
    """
    if job.encoder.device is not None:
        device = choose_device(job.encoder.device)
        encoder.threads = job.config.threads
        encoder.lanes = max(1, lanes_of(device, threads=encoder.threads) // processes)
    records = ShardStore.open(job.records, "records")
    for number in numbers:
        ids, texts = job.read(records, number)
        job.write(number, ids, job.encode(texts, encoder))


def _warn_of_long_texts(texts: Sequence[str], encoder: Encoder, *, most: int) -> None:
    """Warn about texts of more tokens than `most`, whose end the encoder does not read; short ones are not counted."""
    lengthy = [text for text in texts if len(text.encode()) > most // 2]
    long = sum(count > most for count in encoder.count_tokens(lengthy)) if lengthy else 0
    if long:
        logger.warning(
            "%d of %d texts have more than the %d tokens that the encoder reads: their vectors describe only their "
            "beginnings. Split texts (tokenizer.too_long: split, with a smaller tokenizer.max_length) or choose "
            "another encoder.", long, len(texts), most,
        )  # fmt: skip


class EncodeTexts:
    """The function of the tasks of an engine: texts of one shard → their vectors.

    A process loads the encoder on its first task. What is sent to a node is the job and not the encoder: the node
    needs the weights, and their fingerprint has to equal the job's.
    """

    def __init__(self, job: Job, *, device: str) -> None:
        self.job, self.device = job, device
        self._encoder: Encoder | None = None

    def __call__(self, texts: list[str]) -> Vectors:
        if self._encoder is None:
            self._encoder = self.job.load(device=self.device)
            self._encoder.lanes, self._encoder.threads = 1, self.job.config.threads
        return self.job.encode(texts, self._encoder)


def encode_by_tasks(engine: Engine, job: Job, numbers: Sequence[int]) -> None:
    """Encode these shards of the job as tasks of an engine, one shard each, and write them here as they end.

    Raises:
        ConfigurationError: the encoder does not compute on the nodes, or needs a device that they do not have.
        EncoderError: as in `encode_shards`; or a node has other weights.
        WorkerFailed: a task failed or was lost; all shards that were written are kept.
    """
    device = _device_of_tasks(job.encoder.device, gpus=engine.gpus)
    records = ShardStore.open(job.records, "records")
    texts = (job.read(records, number)[1] for number in numbers)
    function, gpus = EncodeTexts(job, device=device), int(device == "cuda")
    done = engine.run(function, texts, ordered=False, cpus=job.config.threads, gpus=gpus)
    with contextlib.closing(done):
        for place, vectors in done:
            ids = job.read(records, numbers[place])[0]
            job.write(numbers[place], ids, vectors)


def _device_of_tasks(wanted: str | None, *, gpus: int) -> str:
    """Return the device that every task of an engine uses: a separate GPU if there are any, else the CPU."""
    if wanted not in ("auto", "cpu", "cuda") or (wanted == "cuda" and not gpus):
        raise ConfigurationError(
            "parameter 'embedding.engine': expected local, unless encoder.device is auto, cpu, or cuda where the nodes "
            f"of the engine have GPUs, found the device {wanted} and {gpus} GPUs. Change encoder.device, start nodes "
            "with GPUs, or remove the engine."
        )
    return "cuda" if gpus and wanted != "cpu" else "cpu"


def main(file: Path) -> None:
    """Encode this rank's part of the job: every n-th missing shard, without those that an earlier attempt finished."""
    rank, plain = environment.rank_info(), InputFile(file, remedy="Start the embedding again.").json(dict)
    missing = plain.pop("missing")[rank.rank :: rank.world]
    job = parse(Job, plain, at="job")
    device = job.encoder.device
    if device in ("auto", "cuda"):
        device = str(choose_device(device, local_rank=rank.local_rank))
    unfinished = [number for number in missing if not job.parts.record(number).is_file()]
    encode_shards(job, unfinished, encoder=job.load(device=device), processes=rank.local_world)


if __name__ == "__main__":
    with failure.recorded():
        main(Path(sys.argv[1]))
