"""The extraction plan: everything that determines the latent store, fixed before the extraction starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mm_ldlm.core.config import to_dict
from mm_ldlm.data.encoders import EncoderConfig, LocatedEncoder, parse_encoder
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.store import StoredType
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint

FORMAT_VERSION = 1
PROGRESS_FOLDER = ".extract"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The inputs and settings that determine the bytes of the store, and its folders."""

    records: Path
    workspace: Path
    rows: int
    shard_rows: int
    dtype: StoredType
    threads: int
    non_finite: str
    encoder: EncoderConfig
    fingerprints: dict[str, str]

    @property
    def progress_folder(self) -> Path:
        """Folder for plan, finished shards and progress while the store is being filled."""
        return self.workspace / PROGRESS_FOLDER

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.fingerprints)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first row of a shard and the row after its last row."""
        return number * self.shard_rows, min((number + 1) * self.shard_rows, self.rows)

    @property
    def num_shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    def sidecar(self, number: int) -> Path:
        """Return the path of the JSON file that records a finished shard."""
        return self.progress_folder / f"part-{number:06d}.json"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON, which `from_dict` reads."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **plain, "records": str(self.records), "workspace": str(self.workspace), "encoder": to_dict(self.encoder)
        }  # fmt: skip

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Plan:
        """Read a plan from the JSON of `to_dict`."""
        encoder = parse_encoder(plain["encoder"])
        return cls(
            **{**plain, "encoder": encoder, "records": Path(plain["records"]), "workspace": Path(plain["workspace"])}
        )


def make_plan(
    records: ShardStore, located: LocatedEncoder, *, encoder: EncoderConfig, config: ExtractConfig, workspace: Path
) -> Plan:
    """Make the plan of an extraction."""
    shard_rows = config.shard_rows or default_shard_rows(len(records))
    parameters = {
        "format": FORMAT_VERSION, "shard_rows": shard_rows, "dtype": config.dtype, "threads": config.threads,
        **encoder.batching,
    }  # fmt: skip
    return Plan(
        records=records.directory.resolve(),
        workspace=workspace.resolve(),
        rows=len(records),
        shard_rows=shard_rows,
        dtype=config.dtype,
        threads=config.threads,
        non_finite=config.non_finite,
        encoder=encoder,
        fingerprints={
            "records": records.manifest.fingerprint,
            "encoder": located.fingerprint,
            "parameters": fingerprint(parameters),
        },
    )


def default_shard_rows(rows: int) -> int:
    """Choose a power of two near 1/64 of the rows: processes share the work evenly and there are few shards."""
    size = 1024
    while size < 65_536 and size * 2 <= rows / 64:
        size *= 2
    return size
