"""Make the latent store of the vectors that the sources contained, without an encoder."""

import logging
from pathlib import Path

from mm_ldlm.data.encoders import EncoderConfig
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import Job, commit, default_shard_rows
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.own_vectors.store import COLUMN, KIND

logger = logging.getLogger(__name__)


def take_over(
    records: ShardStore, vectors: Path, *, encoder: EncoderConfig, config: ExtractConfig, workspace: Path
) -> Manifest:
    """Fill `workspace` with the vectors of `records` in the folder `vectors`, keeping finished shards.

    Raises:
        StoreError: there are no vectors, or they belong to other records.
        EncoderError: `config.dtype` cannot represent them.
        FingerprintError: the workspace contains other latents.
    """
    store = ShardStore.open(vectors, KIND)
    store.manifest.require(directory=vectors, records=records.manifest.fingerprint)
    located = encoder.locate()
    shard_rows = config.shard_rows or default_shard_rows(len(records))
    made_by = {
        "records": records.manifest.fingerprint,
        "encoder": located.fingerprint,
        "parameters": fingerprint(
            {"vectors": store.manifest.fingerprint, "dtype": config.dtype, "shard_rows": shard_rows}
        ),
    }
    job = Job(str(records.directory), str(workspace), encoder, config, shard_rows, made_by)
    done = job.parts.begin()
    for number in job.numbers(len(records)):
        if number not in done:
            rows = slice(number * shard_rows, (number + 1) * shard_rows)
            job.write(number, records.gather("id", rows).to_pylist(), store.fixed(COLUMN).take(rows))
    logger.info("%d vectors of '%s' from the sources became latents", len(records), located.name)
    return commit(job, located, rows=len(records))
