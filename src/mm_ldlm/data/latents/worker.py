"""The extraction worker: encode the shards of this rank and write them.

`extract` starts several processes (`python -m mm_ldlm.data.latents.worker JOB`) or calls `encode_shards` in its own. A
process computes as many shards at a time as it has lanes: on a CPU, threads are as fast as processes without starting
further interpreters, because matrix products release Python's lock. One thread more than there are lanes tokenises the
next shard or writes the previous one.
"""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core import ConfigurationError, EncoderError, parse
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.batching import lanes_of
from mm_ldlm.data.encoders import Encoder, EncoderConfig, load_encoder, parse_encoder
from mm_ldlm.data.engines.base import Engine
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.store.parts import Parts
from mm_ldlm.distributed import environment, failure, process

JOB = "job.json"
Vectors = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Job:
    """The inputs that determine the bytes of the store, their fingerprints `made_by`, and the folders."""

    records: str
    workspace: str
    encoder: EncoderConfig
    config: ExtractConfig
    shard_rows: int
    made_by: Mapping[str, str]

    @property
    def parts(self) -> Parts:
        return Parts(Path(self.workspace), self.made_by)

    def rows(self, number: int, count: int) -> tuple[int, int]:
        """Return the first row of a shard and the row after its last row, of `count` rows."""
        return number * self.shard_rows, min((number + 1) * self.shard_rows, count)

    def read(self, records: ShardStore, number: int) -> tuple[list[str], list[str]]:
        """Return the ids and the texts of a shard."""
        table = records.window(*self.rows(number, len(records)), columns=["id", "text"])
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

    def load(self, *, device: str | None) -> Encoder:
        """Load the encoder on this machine.

        Raises:
            EncoderError: it is not the one that the job was made for.
        """
        encoder = load_encoder(self.encoder, device=device, expected=self.made_by["encoder"])
        if encoder.fingerprint != self.made_by["encoder"]:
            raise EncoderError(
                f"encoder {self.encoder.name!r}: expected fingerprint {self.made_by['encoder']}, as when the run "
                f"started, found {encoder.fingerprint}. Its files changed since, or differ between hosts: use one copy."
            )
        return encoder


def encode_shards(job: Job, numbers: Sequence[int], *, encoder: Encoder, processes: int = 1) -> None:
    """Encode and write these shards of the job; `processes` share the cores of this host.

    Raises:
        EncoderError: The encoder returned numbers that are not finite and the job is to stop; names the sentences.
    """
    lanes = 2 if processes == 1 else 1  # of an encoder that computes elsewhere, so that it is busy while a shard ends
    if job.encoder.device is not None:
        device = process.choose_device(job.encoder.device)
        lanes = max(1, lanes_of(device, threads=job.config.threads) // processes)
    computing = threading.Semaphore(lanes)

    def encode(number: int) -> None:
        ids, texts = job.read(ShardStore.open(job.records, "records"), number)
        prepared = encoder.prepare(texts)
        with computing:
            vectors = encoder.run(prepared)
        encoder.verify()
        job.write(number, ids, vectors)

    with (
        fixed_threads(job.config.threads),
        ThreadPoolExecutor(lanes + 1, initializer=torch.set_num_threads, initargs=(job.config.threads,)) as pool,
    ):
        try:
            for task in as_completed([pool.submit(encode, number) for number in numbers]):
                task.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what is under way is finished
            raise


class EncodeTexts:
    """The function of the tasks of an engine: texts of one shard → their vectors.

    A process loads the encoder on its first task. What is sent to a node is the job and not the encoder: the node
    needs the weights, and their fingerprint has to be that of the job.
    """

    def __init__(self, job: Job, *, device: str) -> None:
        self.job, self.device = job, device
        self._encoder: Encoder | None = None

    def __call__(self, texts: list[str]) -> Vectors:
        self._encoder = self._encoder or self.job.load(device=self.device)
        with fixed_threads(self.job.config.threads):
            vectors = self._encoder.run(self._encoder.prepare(texts))
        self._encoder.verify()
        return vectors


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
    for place, vectors in engine.run(function, texts, ordered=False, cpus=job.config.threads, gpus=gpus):
        ids = job.read(records, numbers[place])[0]
        job.write(numbers[place], ids, vectors)


def _device_of_tasks(wanted: str | None, *, gpus: int) -> str:
    """Return the device that every task of an engine uses: a GPU of its own if there are any, else the CPU."""
    if wanted not in ("auto", "cpu", "cuda") or (wanted == "cuda" and not gpus):
        raise ConfigurationError(
            "parameter 'embedding.engine': expected local, unless encoder.device is auto, cpu, or cuda where the nodes "
            f"of the engine have GPUs, found the device {wanted} and {gpus} GPUs. Change encoder.device, start nodes "
            "with GPUs, or remove the engine."
        )
    return "cuda" if gpus and wanted != "cpu" else "cpu"


@contextlib.contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Use a fixed number of threads, which determines how sums are split and thus their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main(file: Path) -> None:
    """Encode this rank's part of the job: every n-th missing shard, without those that an earlier attempt finished."""
    rank, plain = environment.rank_info(), InputFile(file, remedy="Start the embedding again.").json(dict)
    missing = plain.pop("missing")[rank.rank :: rank.world]
    encoder, config = parse_encoder(plain["encoder"]), parse(ExtractConfig, plain["config"], at="embedding")
    job = Job(**{**plain, "encoder": encoder, "config": config})
    device = encoder.device
    if device in ("auto", "cuda"):
        device = str(process.choose_device(device, local_rank=rank.local_rank))
    unfinished = [number for number in missing if not job.parts.record(number).is_file()]
    encode_shards(job, unfinished, encoder=job.load(device=device), processes=rank.local_world)


if __name__ == "__main__":
    with failure.recorded():
        main(Path(sys.argv[1]))
