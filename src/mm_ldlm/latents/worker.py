"""One embedding process: encode the shards that are this rank's, each written before it is vouched for.

Started by `extract` for more than one process (`python -m mm_ldlm.latents.worker JOB`), called directly for one. While
a shard is computed the next one is tokenised and the last one is written, each on a thread of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.encoders import Encoder, Located, load_encoder
from mm_ldlm.errors import EncoderError
from mm_ldlm.latents import store as latent_store
from mm_ldlm.latents.plan import Plan
from mm_ldlm.store import ShardStore, atomic, write_shard
from mm_ldlm.store.shards import shard_name


def encode_shards(
    plan: Plan, numbers: list[int], *, located: Located | None, rank: int, device: str | None = None
) -> None:
    """Encode and write these shards of the plan, in order.

    Raises:
        EncoderError: the encoder gave numbers that are not finite and the plan says to stop; names the sentences.
    """
    records = ShardStore.open(plan.records, "records")
    with _threads(plan.threads):
        encoder = load_encoder(plan.encoder, device=device, located=located)
        _refuse_another(plan, encoder)
        done = 0
        with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind:
            coming = ahead.submit(_read, records, encoder, plan, numbers[0]) if numbers else None
            writing: Future[None] | None = None
            for position, number in enumerate(numbers):
                assert coming is not None
                ids, prepared = coming.result()
                if position + 1 < len(numbers):
                    coming = ahead.submit(_read, records, encoder, plan, numbers[position + 1])
                vectors = encoder.run(prepared)
                _check(plan, number, ids, vectors)
                if writing is not None:
                    writing.result()
                done += len(ids)
                writing = behind.submit(_write, plan, number, ids, vectors, rank, done)
            if writing is not None:
                writing.result()


def _read(records: ShardStore, encoder: Encoder, plan: Plan, number: int) -> tuple[list[str], Any]:
    table = records.table(slice(*plan.bounds(number)))
    return table["id"].to_pylist(), encoder.prepare(table["text"].to_pylist())


def _write(plan: Plan, number: int, ids: list[str], vectors: npt.NDArray[np.float32], rank: int, done: int) -> None:
    table = latent_store.table(ids, vectors, dtype=plan.dtype)
    shard = write_shard(plan.workspace, shard_name(number), table)
    atomic.write_json(plan.sidecar(number), dataclasses.asdict(shard))
    atomic.write_json(plan.side / f"rank-{rank}.json", {"rows": done})


def _check(plan: Plan, number: int, ids: list[str], vectors: npt.NDArray[np.float32]) -> None:
    """NaN and infinity, also those that only storing as float16 would make."""
    stored = vectors.astype(np.dtype(plan.dtype), copy=False)
    bad = np.flatnonzero(~np.isfinite(stored).all(1))
    if len(bad) and plan.non_finite == "stop":
        first = ", ".join(ids[row] for row in bad[:5])
        raise EncoderError(
            f"encoder {plan.encoder.name!r} gave numbers that are not finite for {len(bad)} of {len(ids)} sentences "
            f"of shard {number} (ids {first}{', …' if len(bad) > 5 else ''}). Nothing of this shard was written. "
            "Look at these sentences and at encoder.dtype, or set embedding.non_finite to quarantine to keep them "
            "out of the index and go on."
        )


def _refuse_another(plan: Plan, encoder: Encoder) -> None:
    if encoder.fingerprint != plan.fingerprints["encoder"]:
        raise EncoderError(
            f"encoder {plan.encoder.name!r} has fingerprint {encoder.fingerprint} in this process, the plan says "
            f"{plan.fingerprints['encoder']}: its files changed since the run began, or differ between hosts."
        )


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """A fixed number of threads: it decides how sums are split, and so the last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main(job: Path) -> None:
    """This rank's share of the job: every n-th missing shard."""
    from mm_ldlm.distributed import environment, process

    process.die_with_parent()
    place = environment.place()
    plain = json.loads(job.read_text(encoding="utf-8"))
    plan = Plan.parse(plain["plan"])
    device = None
    if plan.encoder.device in ("auto", "cuda"):
        device = str(process.choose_device(plan.encoder.device, local_rank=place.local_rank))
    encode_shards(plan, plain["missing"][place.rank :: place.world], located=None, rank=place.rank, device=device)


if __name__ == "__main__":
    from mm_ldlm.distributed import failure

    try:
        main(Path(sys.argv[1]))
    except BaseException as error:  # the launcher tells it as one readable error
        failure.record(error, step=None)
        raise
