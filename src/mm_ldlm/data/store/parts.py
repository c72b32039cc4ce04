"""A store that is written in numbered shards, in any order and by several processes, and can be continued.

part-000000.arrow …        finished shards
.extract/plan.json         fingerprints of the inputs; a store of other inputs is refused
.extract/part-000000.json  record of a finished shard, written after the shard
manifest.json              written last; then `.extract` is removed
"""

import dataclasses
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_ldlm.core import FingerprintError
from mm_ldlm.core.files import InputFile, recorded, remove_temporaries, write_json
from mm_ldlm.data.store.manifest import NAME, Manifest, Shard
from mm_ldlm.data.store.writer import shard_name, write_shard

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The shards of a store in `workspace` that is made from inputs with the fingerprints `made_by`."""

    workspace: Path
    made_by: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """Folder of the records, while the store is being written."""
        return self.workspace / ".extract"

    def record(self, number: int) -> Path:
        """Return the path of the record of a shard; it exists if the shard is finished."""
        return self.folder / f"part-{number:06d}.json"

    @property
    def earlier(self) -> Mapping[str, str]:
        """Fingerprints of the inputs of the store that is in the workspace, finished or not; empty if there is none."""
        if Manifest.exists(self.workspace):
            return Manifest.read(self.workspace).fingerprints
        return recorded(self.folder / "plan.json") or {}

    def begin(self) -> set[int]:
        """Return the numbers of the shards that are finished and intact, and remove all others.

        A finished store of which a shard is missing or damaged loses its manifest, and its other shards are kept.

        Raises:
            FingerprintError: the workspace contains a store of other inputs; nothing was changed.
        """
        self.workspace.mkdir(parents=True, exist_ok=True)
        remove_temporaries(self.workspace)
        manifest = Manifest.read(self.workspace) if Manifest.exists(self.workspace) else None
        found = self.earlier
        if found and found != self.made_by:
            other = [name for name in self.made_by if found.get(name) != self.made_by[name]]
            raise FingerprintError(
                f"{self.workspace}: expected a store made with {other[0]} {self.made_by[other[0]]}, found one made "
                f"with other {', '.join(other)} ({found.get(other[0])}). Nothing was changed. Restore the earlier "
                "settings, or remove the folder to compute everything again."
            )
        shards = list(manifest.shards) if manifest is not None else []
        if manifest is None:
            records = [recorded(path, Shard) for path in sorted(self.folder.glob("part-*.json"))]
            shards = [shard for shard in records if shard is not None]
        kept = [shard for shard in shards if shard.is_intact(self.workspace)]
        if lost := [shard.name for shard in shards if shard not in kept]:
            logger.warning("%s: %s are missing or damaged, and are computed again", self.workspace, ", ".join(lost))
        numbers = {int(Path(shard.name).stem.removeprefix("part-")): shard for shard in kept}
        if manifest is not None and not lost:
            shutil.rmtree(self.folder, ignore_errors=True)  # of a writer that was killed after it committed
            return set(numbers)
        # From here on the shards are recorded one by one, so that a kill during the repair loses nothing.
        write_json(self.folder / "plan.json", dict(self.made_by))
        for number, shard in numbers.items():
            write_json(self.record(number), dataclasses.asdict(shard))
        (self.workspace / NAME).unlink(missing_ok=True)
        stems = {Path(shard.name).stem for shard in kept}
        for path in [*self.workspace.glob("part-*.arrow"), *self.folder.glob("part-*.json")]:
            if path.stem not in stems:
                path.unlink()
        return set(numbers)

    def write(self, number: int, table: pa.Table) -> Shard:
        """Write a shard, then its record."""
        shard = write_shard(self.workspace, shard_name(number), table)
        write_json(self.record(number), dataclasses.asdict(shard))
        return shard

    def shards(self, count: int) -> tuple[Shard, ...]:
        """Return the records of `count` finished shards; an empty store has one as well, without rows.

        Raises:
            StoreError: one was not written.
        """
        remedy = "Run the embedding pipeline again, which writes only what is missing."
        return tuple(InputFile(self.record(number), remedy=remedy).json(Shard) for number in range(count))

    def commit(self, shards: tuple[Shard, ...], *, kind: str, schema: pa.Schema, meta: dict[str, Any]) -> Manifest:
        """Write the manifest, and remove the records."""
        manifest = Manifest(
            kind=kind, rows=sum(shard.rows for shard in shards), shards=shards, fingerprints=dict(self.made_by),
            meta={"columns": schema.names, **meta},
        )  # fmt: skip
        manifest.write(self.workspace)
        shutil.rmtree(self.folder, ignore_errors=True)
        return manifest
