"""Extraction of latents: resumable, in the order of the records, with the same bytes for any number of processes.

The workspace during the extraction:

    part-000000.arrow …        finished shards
    .extract/plan.json         the fingerprints of the inputs; shards of another plan are refused
    .extract/part-000000.json  name, rows, bytes and checksum of a finished shard, written after the shard
    .extract/rank-0.json       progress of one process
    manifest.json              written last; then `.extract` is removed

Each shard is encoded separately: its sentences are sorted by length and batched among themselves, so that its bytes
depend neither on the other shards nor on the process. On the CPU the number of threads influences the arithmetic, so it
is part of the plan and the same in every process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from mm_ldlm.core.errors import ConfigurationError, FingerprintError, StoreError
from mm_ldlm.core.files import InputFile, recorded, remove_temporaries, write_bytes, write_json
from mm_ldlm.data.batching import lanes_of
from mm_ldlm.data.corpus.record import is_decoded
from mm_ldlm.data.encoders import EncoderConfig, LocatedEncoder
from mm_ldlm.data.latents import hosts, worker
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.plan import PROGRESS_FOLDER, Plan, make_plan
from mm_ldlm.data.store import Manifest, Shard, ShardStore
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.data.store.writer import shard_name
from mm_ldlm.distributed.launch import LaunchConfig, launch

logger = logging.getLogger(__name__)


def extract(records: ShardStore, *, encoder: EncoderConfig, config: ExtractConfig, workspace: Path) -> Manifest:
    """Fill `workspace` with the latents of `records` and commit it, keeping finished shards of the same plan.

    Raises:
        StoreError: Texts were decoded from stored tokens, so that their embeddings would be those of other texts.
        FingerprintError: The workspace contains latents of other records, another encoder or other parameters.
        EncoderError: The encoder cannot be loaded, or returned numbers that are not finite.
        ConfigurationError: The engine cannot be started, or cannot run this encoder.
        WorkerFailed: A process failed; all finished shards are kept.
    """
    _refuse_decoded(records)
    workspace.mkdir(parents=True, exist_ok=True)
    workspace = workspace.resolve()
    several = hosts.launch_config(config, encoder, workspace=workspace)
    located = encoder.locate(expected=_recorded_encoder(workspace))
    plan = make_plan(records, located, encoder=encoder, config=config, workspace=workspace)
    done = _finished_shards(plan)
    missing = [number for number in range(plan.num_shards) if number not in done]
    if missing or several is not None:  # the other hosts wait for this one, also if nothing is missing
        _write_plan(plan, located)
        started = time.monotonic()
        kept = plan.num_shards - len(missing)
        logger.info(
            "embedding %s rows with %s: %d of %d shards to do", plan.rows, located.name, len(missing), plan.num_shards
        )
        rows = sum(stop - start for start, stop in map(plan.bounds, missing))
        with _watch(plan, rows, shown=config.progress):
            if several is not None:
                _write_job(plan, missing)
                hosts.run_ranks(workspace, config=several)
            elif config.engine.here:
                _embed_here(plan, missing, located=located, config=config)
            else:
                with config.engine.started() as engine:
                    worker.encode_by_tasks(engine, plan, missing)
        seconds = time.monotonic() - started
        logger.info("embedded %d rows in %.0f s, %.0f a second (%d shards kept)", rows, seconds, rows / seconds, kept)
    return _commit(plan, located)


def extract_with_first_host(*, encoder: EncoderConfig, config: ExtractConfig, workspace: Path) -> None:
    """Encode a part of the shards that the first host found missing; the first host commits the store.

    Raises:
        ConfigurationError: the hosts are not configured.
        WorkerFailed: a process failed, or some hosts did not join.
    """
    several = hosts.launch_config(config, encoder, workspace=workspace.resolve())
    if several is None:
        raise ConfigurationError(
            "expected several hosts, because this one is not the first (NODE_RANK), found 1. Set NNODES on every host."
        )
    hosts.run_ranks(workspace.resolve(), config=several)


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


# -- finished shards ---------------------------------------------------------------------------------------------------


def _finished_shards(plan: Plan) -> dict[int, Shard]:
    """Return the finished shards of this plan by number. Refuse shards of other inputs; remove unrecorded ones."""
    remove_temporaries(plan.workspace)
    recorded: dict[int, Shard] = {}
    if Manifest.exists(plan.workspace):
        manifest = Manifest.read(plan.workspace)
        _refuse_other_inputs(plan, manifest.fingerprints)
        recorded = dict(enumerate(manifest.shards))
    elif (plan.progress_folder / "plan.json").is_file():
        _refuse_other_inputs(plan, _json(plan.progress_folder / "plan.json")["fingerprints"])
        for path in plan.progress_folder.glob("part-*.json"):
            shard = Shard(**_json(path))
            recorded[int(path.stem.removeprefix("part-"))] = shard
    found = {number: shard for number, shard in recorded.items() if _is_intact(plan, number, shard)}
    if Manifest.exists(plan.workspace) and len(found) < plan.num_shards:
        # From here on the shards are recorded in the sidecar files, so that a kill during the repair loses nothing.
        _write_sidecars(plan, found)
        (plan.workspace / "manifest.json").unlink()
    for path in plan.workspace.glob("part-*.arrow"):
        if path.name not in {shard.name for shard in found.values()}:
            path.unlink()
    return found


def _json(path: Path) -> Any:
    return InputFile(path, remedy="Remove the folder to embed everything again.").json(dict)


def _recorded_encoder(workspace: Path) -> str | None:
    """Return the fingerprint of the encoder that made the shards in the workspace, or None."""
    if Manifest.exists(workspace):
        return Manifest.read(workspace).fingerprints.get("encoder")
    plan = workspace / PROGRESS_FOLDER / "plan.json"
    if not plan.is_file():
        return None
    found: str | None = _json(plan)["fingerprints"].get("encoder")
    return found


def _refuse_other_inputs(plan: Plan, found: dict[str, str]) -> None:
    for name, wanted in plan.fingerprints.items():
        if found.get(name) != wanted:
            what = {
                "records": "other records", "encoder": "another encoder (or other weights, tokenizer, prompt, length, "
                "dtype)",
                "parameters": "other embedding parameters",
            }[name]  # fmt: skip
            raise FingerprintError(
                f"{plan.workspace} contains latents of {what}: expected {name} {wanted}, found {found.get(name)}. "
                "Nothing was changed. Restore the earlier settings, or remove the directory to embed everything again."
            )


def _is_intact(plan: Plan, number: int, shard: Shard) -> bool:
    path = plan.workspace / shard.name
    start, stop = plan.bounds(number)
    if shard.name != shard_name(number) or shard.rows != stop - start:
        return False
    if not path.is_file() or path.stat().st_size != shard.bytes:
        return False
    whole = file_sha256(path) == shard.sha256
    if not whole:
        logger.warning("%s: the checksum differs; this shard is embedded again", path)
    return whole


def _write_sidecars(plan: Plan, found: dict[int, Shard]) -> None:
    for number, shard in found.items():
        write_json(plan.sidecar(number), dataclasses.asdict(shard))
    write_json(plan.progress_folder / "plan.json", {"fingerprints": plan.fingerprints})


def _write_plan(plan: Plan, located: LocatedEncoder) -> None:
    plan.progress_folder.mkdir(exist_ok=True)
    for stale in plan.progress_folder.glob("rank-*.json"):
        stale.unlink()
    write_json(plan.progress_folder / "plan.json", {"fingerprints": plan.fingerprints, "encoder": located.describe()})


def _commit(plan: Plan, located: LocatedEncoder) -> Manifest:
    """Write the manifest and remove the progress folder. A complete store keeps its manifest."""
    if Manifest.exists(plan.workspace):
        shutil.rmtree(plan.progress_folder, ignore_errors=True)
        return Manifest.read(plan.workspace)
    shards, non_finite = [], 0
    examples: list[str] = []
    for number in range(plan.num_shards):
        path = plan.sidecar(number)
        if not path.is_file():
            raise StoreError(
                f"{plan.workspace}: shard {number} was not written although every process succeeded. "
                "Run the embedding pipeline again."
            )
        shards.append(Shard(**_json(path)))
    dim = located.dim
    for shard in shards:
        column = latent_store.LatentStore(plan.workspace, Manifest(kind="latents", rows=shard.rows, shards=(shard,)))
        vectors = column.fixed("latent").shard(0)
        dim = vectors.shape[1]
        bad = np.flatnonzero(~np.isfinite(vectors).all(1))
        non_finite += len(bad)
        examples += column.ids(bad[: 10 - len(examples)]) if len(examples) < 10 else []
    manifest = Manifest(
        kind=latent_store.KIND,
        rows=plan.rows,
        shards=tuple(shards),
        fingerprints=plan.fingerprints,
        meta={
            "columns": ["id", "latent"], "dim": dim, "dtype": plan.dtype, "shard_rows": plan.shard_rows,
            "encoder": located.describe(), "encoder_config": plan.encoder.portable(),
            "non_finite": {"count": non_finite, "ids": examples},
        },
    )  # fmt: skip
    if not shards:
        empty = latent_store.schema(dim or 1, plan.dtype)
        write_bytes(plan.workspace / "schema.arrow", memoryview(empty.serialize()))
    manifest.write(plan.workspace)
    shutil.rmtree(plan.progress_folder, ignore_errors=True)
    return manifest


# -- processes ---------------------------------------------------------------------------------------------------------


def _embed_here(plan: Plan, missing: list[int], *, located: LocatedEncoder, config: ExtractConfig) -> None:
    """Fill in the missing shards on this host: in this process, or in several that the elastic launcher starts."""
    processes, lanes = _processes_and_lanes(plan.encoder, config, shards=len(missing))
    logger.info("%d process(es), %d shard(s) at a time", processes, processes * lanes)
    if processes == 1:
        worker.encode_shards(plan, missing, located=located, rank=0, lanes=lanes)
        return
    launch(
        "mm_ldlm.data.latents.worker", [str(_write_job(plan, missing))],
        config=LaunchConfig(processes=processes), log_directory=plan.progress_folder / "logs",
    )  # fmt: skip


def _write_job(plan: Plan, missing: list[int]) -> Path:
    """Write the work of all ranks: the plan and the missing shards."""
    path = plan.progress_folder / hosts.JOB
    write_json(path, {"plan": plan.to_dict(), "missing": missing})
    return path


def _processes_and_lanes(encoder: EncoderConfig, config: ExtractConfig, *, shards: int) -> tuple[int, int]:
    """Return the number of processes (one per device) and the number of shards that each computes at a time.

    An encoder that computes elsewhere needs no further process; a second shard keeps it busy while one ends.
    """
    import torch

    if encoder.device is None:
        processes = max(1, min(config.processes or 1, shards))
        return processes, min(2, shards) if processes == 1 else 1
    if encoder.device in ("auto", "cuda") and torch.cuda.is_available():
        return max(1, min(config.processes or torch.cuda.device_count(), shards)), 1
    if config.processes or encoder.device not in ("auto", "cpu"):
        return max(1, min(config.processes or 1, shards)), 1
    return 1, max(1, min(lanes_of("cpu", threads=config.threads), shards))


@contextlib.contextmanager
def _watch(plan: Plan, rows: int, *, shown: bool) -> Iterator[None]:
    """Show a progress bar over all processes; each writes its own progress file."""
    stop = threading.Event()
    with tqdm(total=rows, unit="rows", unit_scale=True, desc="embedding", disable=not shown, mininterval=1.0) as bar:

        def loop() -> None:
            while not stop.wait(0.5):
                _advance(bar, plan)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            _advance(bar, plan)


def _advance(bar: Any, plan: Plan) -> None:
    """Advance the bar to the number of rows that all processes together have finished."""
    done = 0
    for path in plan.progress_folder.glob("rank-*.json"):
        done += int((recorded(path) or {}).get("rows", 0))
    if done > bar.n:
        bar.update(done - bar.n)
