"""Latents from given vectors: the vectors that the sources contained become the latent store, without an encoder."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from mm_ldlm.core.errors import FingerprintError, StoreError
from mm_ldlm.data.encoders import EncoderConfig
from mm_ldlm.data.encoders.base import side_store
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.plan import default_shard_rows
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.own_vectors.store import COLUMN, KIND

logger = logging.getLogger(__name__)
_ROWS = 8192


def take_over(records: ShardStore, *, encoder: EncoderConfig, config: ExtractConfig, workspace: Path) -> Manifest:
    """Fill `workspace` with the given vectors of `records`, in `config.dtype`; a finished store of them is kept.

    Raises:
        StoreError: there are no vectors, they belong to other records, or float16 cannot represent them.
        FingerprintError: the workspace contains other latents.
    """
    side = side_store(encoder, records.directory)
    assert side is not None
    vectors = ShardStore.open(side.workspace, KIND)
    if vectors.manifest.fingerprints.get("records") != records.manifest.fingerprint or len(vectors) != len(records):
        raise FingerprintError(
            f"{vectors.directory} contains the vectors of other records ({len(vectors)} rows, the records have "
            f"{len(records)}). Run the ingestion pipeline again."
        )
    located = encoder.locate()
    shard_rows = config.shard_rows or default_shard_rows(len(records))
    made_by = {
        "records": records.manifest.fingerprint,
        "encoder": located.fingerprint,
        "parameters": fingerprint(
            {"vectors": vectors.manifest.fingerprint, "dtype": config.dtype, "shard_rows": shard_rows}
        ),
    }
    if Manifest.exists(workspace):
        found = Manifest.read(workspace)
        if found.fingerprints != made_by:
            raise FingerprintError(
                f"{workspace} contains latents of other records, another encoder or other parameters. Nothing was "
                "changed. Restore the earlier settings, or remove the directory to make the latents again."
            )
        if _is_intact(workspace, found):
            return found
        logger.warning("%s: a shard is missing or its checksum differs; the latents are made again", workspace)
    dim = vectors.fixed(COLUMN).dim
    schema = latent_store.schema(dim, config.dtype)
    writer = StoreWriter(workspace, kind=latent_store.KIND, schema=schema, shard_rows=shard_rows)
    beyond, examples = 0, list[str]()
    for start in range(0, len(records), _ROWS):
        window = slice(start, min(start + _ROWS, len(records)))
        ids = records.strings("id").take(window)
        if vectors.strings("id").take(window) != ids:
            raise StoreError(
                f"{vectors.directory}: the ids of rows {window.start} to {window.stop - 1} are not those of the "
                "records. Run the ingestion pipeline again."
            )
        with np.errstate(over="ignore"):
            rows_nd = vectors.fixed(COLUMN).take(window).astype(config.dtype, copy=False)
        bad = np.flatnonzero(~np.isfinite(rows_nd).all(1))
        beyond += len(bad)
        examples += [ids[row] for row in bad[: 10 - len(examples)]]
        writer.append(latent_store.table(ids, rows_nd, dtype=config.dtype))
    if beyond and config.non_finite == "stop":
        raise StoreError(
            f"{beyond} of {len(records)} given vectors have a number beyond {config.dtype} (first record: "
            f"{examples[0]}). Set embedding.dtype to float32, or embedding.non_finite to quarantine."
        )
    logger.info("%d given vectors of '%s', dimension %d, became latents", len(records), located.name, dim)
    return writer.finish(
        fingerprints=made_by,
        meta={
            "dim": dim, "dtype": config.dtype, "shard_rows": shard_rows, "encoder": located.describe(),
            "encoder_config": encoder.portable(), "given": True,
            "non_finite": {"count": beyond, "ids": examples},
        },
    )  # fmt: skip


def _is_intact(workspace: Path, manifest: Manifest) -> bool:
    """Return whether every shard exists and has the recorded checksum."""
    whole = all((workspace / shard.name).is_file() for shard in manifest.shards)
    return whole and not ShardStore(workspace, manifest).damaged_shards()
