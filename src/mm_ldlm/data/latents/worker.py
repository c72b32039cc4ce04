"""The extraction worker: encode the shards of this rank and write them.

`extract` starts several processes (`python -m mm_ldlm.data.latents.worker JOB`) or calls `encode_shards` for one. A
process computes as many shards at a time as it has lanes. In each lane, the next shard is tokenised and the previous
one is written while the current one is computed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core.errors import ConfigurationError, EncoderError
from mm_ldlm.core.files import InputFile, write_json
from mm_ldlm.data.encoders import Encoder, LocatedEncoder, load_encoder
from mm_ldlm.data.engines.base import Engine
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.plan import Plan
from mm_ldlm.data.store import ShardStore, write_shard
from mm_ldlm.data.store.writer import shard_name
from mm_ldlm.distributed import environment, failure, process


def encode_shards(
    plan: Plan,
    numbers: list[int],
    *,
    located: LocatedEncoder | None,
    rank: int,
    device: str | None = None,
    lanes: int = 1,
    encoder: Encoder | None = None,
) -> None:
    """Encode and write these shards of the plan, distributed over `lanes` threads.

    `encoder` is a loaded encoder; None loads that of the plan.

    On a CPU, threads are as fast as processes without starting further interpreters, because matrix products release
    Python's lock.

    Raises:
        EncoderError: The encoder returned numbers that are not finite and the plan is to stop; names the sentences.
    """
    if encoder is None:
        located = located or plan.encoder.locate(expected=plan.fingerprints["encoder"])
        encoder = plan.encoder.load(located, device=device)
    _refuse_other_encoder(plan, encoder)
    stop = threading.Event()
    with ThreadPoolExecutor(lanes) as pool:
        jobs = [pool.submit(_lane, plan, numbers[lane::lanes], encoder, rank + lane, stop) for lane in range(lanes)]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            stop.set()  # the other lanes stop after their current shard
            raise


class EncodeTexts:
    """The function of the tasks of an engine: texts of one shard → their vectors.

    A process loads the encoder on its first task. What is sent to a node is the plan and not the encoder: the node
    needs the weights, and their fingerprint has to be that of the plan.
    """

    def __init__(self, plan: Plan, *, device: str) -> None:
        self.plan, self.device = plan, device
        self._encoder: Encoder | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _encode_texts, (self.plan.to_dict(), self.device)

    def __call__(self, texts: list[str]) -> npt.NDArray[np.float32]:
        if self._encoder is None:
            encoder = load_encoder(self.plan.encoder, device=self.device, expected=self.plan.fingerprints["encoder"])
            _refuse_other_encoder(self.plan, encoder)
            self._encoder = encoder
        with fixed_threads(self.plan.threads):
            vectors = self._encoder.run(self._encoder.prepare(texts))
        self._encoder.verify()
        return vectors


def _encode_texts(plan: dict[str, Any], device: str) -> EncodeTexts:
    return EncodeTexts(Plan.from_dict(plan), device=device)


def encode_by_tasks(engine: Engine, plan: Plan, numbers: list[int]) -> None:
    """Encode these shards of the plan as tasks of an engine, one shard each, and write them here as they end.

    Raises:
        ConfigurationError: the encoder does not compute on the nodes, or needs a device that they do not have.
        EncoderError: as in `encode_shards`; or a node has other weights.
        WorkerFailed: a task failed or was lost; all shards that were written are kept.
    """
    device = _device_of_tasks(plan.encoder.device, gpus=engine.gpus)
    records, done = ShardStore.open(plan.records, "records"), 0
    texts = (records.table(slice(*plan.bounds(number)))["text"].to_pylist() for number in numbers)
    results = engine.run(
        EncodeTexts(plan, device=device), texts, ordered=False, cpus=plan.threads, gpus=int(device == "cuda")
    )
    for position, vectors in results:
        number = numbers[position]
        ids = records.table(slice(*plan.bounds(number)))["id"].to_pylist()
        _check(plan, number, ids, vectors)
        done += len(ids)
        _write(plan, number, ids, vectors, 0, done)


def _device_of_tasks(wanted: str | None, *, gpus: int) -> str:
    """Return the device that every task of an engine uses: a GPU of its own if there are any, else the CPU."""
    if wanted is None:
        raise ConfigurationError(
            "parameter 'embedding.engine': expected local, because this encoder computes elsewhere and several "
            "requests are under way already, found an engine that sends tasks to other hosts. Remove the engine."
        )
    if wanted not in ("auto", "cpu", "cuda"):
        raise ConfigurationError(
            "parameter 'encoder.device': expected auto, cpu or cuda, because the engine assigns the GPUs, found "
            f"{wanted}."
        )
    if wanted == "cuda" and not gpus:
        raise ConfigurationError(
            "parameter 'encoder.device': expected auto or cpu, because the nodes of the engine have no GPU, found "
            "cuda. Start nodes with GPUs, or change the device."
        )
    return "cuda" if gpus and wanted != "cpu" else "cpu"


def _lane(plan: Plan, numbers: list[int], encoder: Encoder, rank: int, stop: threading.Event) -> None:
    """Encode and write these shards in order."""
    records = ShardStore.open(plan.records, "records")
    with fixed_threads(plan.threads):
        done = 0
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
            coming = reader.submit(_read, records, encoder, plan, numbers[0]) if numbers else None
            writing: Future[None] | None = None
            for position, number in enumerate(numbers):
                if stop.is_set():
                    break
                assert coming is not None
                ids, prepared = coming.result()
                if position + 1 < len(numbers):
                    coming = reader.submit(_read, records, encoder, plan, numbers[position + 1])
                vectors = encoder.run(prepared)
                _check(plan, number, ids, vectors)
                encoder.verify()
                if writing is not None:
                    writing.result()
                done += len(ids)
                writing = writer.submit(_write, plan, number, ids, vectors, rank, done)
            if writing is not None:
                writing.result()


def _read(records: ShardStore, encoder: Encoder, plan: Plan, number: int) -> tuple[list[str], Any]:
    table = records.table(slice(*plan.bounds(number)))
    return table["id"].to_pylist(), encoder.prepare(table["text"].to_pylist())


def _write(plan: Plan, number: int, ids: list[str], vectors: npt.NDArray[np.float32], rank: int, done: int) -> None:
    table = latent_store.table(ids, vectors, dtype=plan.dtype)
    shard = write_shard(plan.workspace, shard_name(number), table)
    write_json(plan.sidecar(number), dataclasses.asdict(shard))
    write_json(plan.progress_folder / f"rank-{rank}.json", {"rows": done})


def _check(plan: Plan, number: int, ids: list[str], vectors: npt.NDArray[np.float32]) -> None:
    """Refuse NaN and infinity, including overflows that only the conversion to float16 produces."""
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.dtype(plan.dtype), copy=False)
    bad = np.flatnonzero(~np.isfinite(stored).all(1))
    if len(bad) and plan.non_finite == "stop":
        first = ", ".join(ids[row] for row in bad[:5])
        raise EncoderError(
            f"encoder {plan.encoder.name!r} returned numbers that are not finite for {len(bad)} of {len(ids)} "
            f"sentences of shard {number} (ids {first}{', …' if len(bad) > 5 else ''}). This shard was not written. "
            "Check these sentences and encoder.dtype, or set embedding.non_finite to quarantine to leave them out of "
            "the index and continue."
        )


def _refuse_other_encoder(plan: Plan, encoder: Encoder) -> None:
    if encoder.fingerprint != plan.fingerprints["encoder"]:
        raise EncoderError(
            f"encoder {plan.encoder.name!r}: expected fingerprint {plan.fingerprints['encoder']} (the plan), found "
            f"{encoder.fingerprint}. Its files changed since the run started, or differ between hosts: use one copy."
        )


@contextlib.contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Use a fixed number of threads, which determines how sums are split and thus their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main(job: Path) -> None:
    """Encode this rank's part of the job: every n-th missing shard, without those that an earlier attempt finished."""
    rank_info = environment.rank_info()
    plain = InputFile(job, remedy="Start the embedding again.").json(dict)
    plan = Plan.from_dict(plain["plan"])
    device = None
    if plan.encoder.device in ("auto", "cuda"):
        device = str(process.choose_device(plan.encoder.device, local_rank=rank_info.local_rank))
    mine = plain["missing"][rank_info.rank :: rank_info.world]
    unfinished = [number for number in mine if not plan.sidecar(number).is_file()]
    encode_shards(plan, unfinished, located=None, rank=rank_info.rank, device=device)


if __name__ == "__main__":
    with failure.recorded():
        main(Path(sys.argv[1]))
