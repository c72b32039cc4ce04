"""Arrow shard stores: directories of memory-mapped IPC shards with `manifest.json` written last.

This room contains fingerprints, manifests, the shard reader with its numpy columns and the shard writer.
Nothing here depends on the meaning of a column: records, tokens, latents and the index are stores of a `kind`, which
other rooms define.
"""

import enum

from mm_ldlm.data.store.manifest import Manifest, Shard
from mm_ldlm.data.store.shards import ShardStore
from mm_ldlm.data.store.writer import fixed_lists, write_shard, write_store

__all__ = ["NOT_NEEDED", "Manifest", "NotNeeded", "Shard", "ShardStore", "fixed_lists", "write_shard", "write_store"]


class NotNeeded(enum.Enum):
    """Return value of a pipeline step instead of an artifact that this objective and model do not use."""

    NOT_NEEDED = enum.auto()


NOT_NEEDED = NotNeeded.NOT_NEEDED
