"""What an extraction makes, fixed before it begins: parameters, plan, fingerprints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from mm_ldlm.config import NonNegativeInt, PositiveInt, config, parse, to_dict
from mm_ldlm.encoders import EncoderConfig, Located
from mm_ldlm.latents import store as latent_store
from mm_ldlm.store import ShardStore
from mm_ldlm.store.fingerprint import fingerprint

FORMAT_VERSION = 1
SIDE = ".extract"


@config
class ExtractConfig:
    """How records are embedded; what encodes them is `EncoderConfig`.

    Attributes:
        dtype: of the stored numbers.
        shard_rows: rows in a shard; null: a power of two near 1/64 of the rows, between 1,024 and 65,536.
        processes: on this host; 0: one per GPU, or one for the CPU, which computes as many shards at a time as the
            cores give `threads` each.
        threads: of each process on a CPU. Part of what decides the last bits of the vectors.
        non_finite: when the encoder gives NaN or infinity: "stop", or "quarantine" (stored as it is, named in the
            manifest, kept out of the index by validation).
        progress: show a bar with rate and remaining time over all processes.
    """

    dtype: latent_store.StoredType = "float32"
    shard_rows: PositiveInt | None = None
    processes: NonNegativeInt = 0
    threads: PositiveInt = 1
    non_finite: Literal["stop", "quarantine"] = "stop"
    progress: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides the store's bytes, and where things are."""

    records: Path
    workspace: Path
    rows: int
    shard_rows: int
    dtype: latent_store.StoredType
    threads: int
    non_finite: str
    encoder: EncoderConfig
    fingerprints: dict[str, str]

    @property
    def side(self) -> Path:
        return self.workspace / SIDE

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.fingerprints)

    def bounds(self, number: int) -> tuple[int, int]:
        """First row of a shard and the row after its last."""
        return number * self.shard_rows, min((number + 1) * self.shard_rows, self.rows)

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    def sidecar(self, number: int) -> Path:
        """Vouches for a finished shard."""
        return self.side / f"part-{number:06d}.json"

    def plain(self) -> dict[str, Any]:
        """Ready for JSON; `Plan.parse` reads it."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **plain, "records": str(self.records), "workspace": str(self.workspace), "encoder": to_dict(self.encoder)
        }  # fmt: skip

    @classmethod
    def parse(cls, plain: dict[str, Any]) -> Plan:
        """The plan that `plain` described."""
        encoder = parse(EncoderConfig, plain["encoder"], at="encoder")
        return cls(
            **{**plain, "encoder": encoder, "records": Path(plain["records"]), "workspace": Path(plain["workspace"])}
        )


def make_plan(
    records: ShardStore, located: Located, *, encoder: EncoderConfig, config: ExtractConfig, workspace: Path
) -> Plan:
    """Fix everything that decides the bytes."""
    shard_rows = config.shard_rows or default_shard_rows(len(records))
    decides = {
        "format": FORMAT_VERSION, "shard_rows": shard_rows, "dtype": config.dtype, "threads": config.threads,
        "batch_tokens": encoder.batch_tokens, "batch_rows": encoder.batch_rows,
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
            "parameters": fingerprint(decides),
        },
    )


def default_shard_rows(rows: int) -> int:
    """A power of two near a 64th of the rows, so that many processes share the work evenly and shards stay few."""
    size = 1024
    while size < 65_536 and size * 2 <= rows / 64:
        size *= 2
    return size
