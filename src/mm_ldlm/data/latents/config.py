"""Parameters of the extraction and of the validation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mm_ldlm.core.config import (
    Fraction,
    InvalidValue,
    NonNegativeFloat,
    PositiveFloat,
    Rows,
    RowsOrNone,
    Workers,
    WorkersOrNone,
    config,
)
from mm_ldlm.data.engines.base import ENGINES
from mm_ldlm.data.engines.local import LocalEngineConfig
from mm_ldlm.data.latents.store import StoredType
from mm_ldlm.distributed.launch import HostsConfig


@config
class ExtractConfig:
    """Parameters of the embedding of records; `EncoderConfig` chooses the encoder.

    Attributes:
        dtype: data type of the stored vectors.
        shard_rows: rows per shard; null chooses a power of two near 1/64 of the rows, between 1,024 and 65,536.
        processes: processes on this host; 0 starts one per GPU, or one for the CPU, which computes as many shards at a
            time as there are groups of `threads` cores.
        threads: threads per shard on a CPU; the number influences the last bits of the vectors.
        non_finite: reaction to NaN or infinity from the encoder: "stop", or "quarantine" (the vector is stored, named
            in the manifest and left out of the index by validation).
        engine: where the latents are computed: `local`, the processes of this host, or `ray`, a Ray cluster.
        launch: hosts that embed together with the engine `local`, from a folder that all of them share. NNODES,
            NODE_RANK, MASTER_ADDR, MASTER_PORT and NPROC_PER_NODE override it and `processes`, as in a training.
        progress: show a progress bar over all processes.
    """

    dtype: StoredType = "float32"
    shard_rows: Rows | None = None
    processes: WorkersOrNone = 0
    threads: Workers = 1
    non_finite: Literal["stop", "quarantine"] = "stop"
    engine: Annotated[Any, ENGINES] = LocalEngineConfig()
    launch: HostsConfig = HostsConfig()
    progress: bool = True

    def __post_init__(self) -> None:
        if not self.engine.here and self.processes:
            raise InvalidValue(
                f"expected 0, because the engine {self.engine.kind} decides how many tasks run at a time, found "
                f"{self.processes}",
                "processes",
            )
        if not self.engine.here and self.launch.nodes > 1:
            raise InvalidValue(
                f"expected 1, because the engine {self.engine.kind} has nodes of its own, found {self.launch.nodes}",
                "launch.nodes",
            )


@config
class ValidationConfig:
    """Limits of the validation checks.

    Attributes:
        verify_checksums: read every byte of records, tokens and latents and compare sha256.
        norm_tolerance: allowed difference from norm 1 if the encoder normalises; other rows go to quarantine.
        norm_outlier_iqrs: for other encoders, norms this many interquartile ranges outside the middle half are
            outliers.
        on_norm_outlier: "warn" or "quarantine".
        on_duplicate_vector: reaction to different texts with the same vector: "warn", or "quarantine" for all but the
            first.
        max_duplicate_fraction: the contract fails when a larger fraction of rows shares its vector with another row.
        collapsed_std: a dimension with at most this standard deviation counts as collapsed.
        max_collapsed_fraction: the contract fails when a larger fraction of the dimensions is collapsed.
        max_drift: a larger distance of a shard's mean from the shards' median, in total standard deviations, is a
            warning.
        spot_rows: number of rows, drawn over all shards, that are encoded again and compared; 0 skips the check.
        spot_tolerance: largest relative distance of a vector to its re-encoding; null chooses 1e-4 for float32, 3e-3
            for float16 storage, and 5e-2 for encoders that compute in half precision.
        on_leakage: training texts that occur in an evaluation set: "remove" (to quarantine) or "report".
        max_quarantine_fraction: the contract fails when a larger fraction of the rows is in quarantine.
        plot_rows: number of sampled rows for the spectrum and nearest-neighbour plots.
    """

    verify_checksums: bool = True
    norm_tolerance: PositiveFloat = 1e-3
    norm_outlier_iqrs: PositiveFloat = 8.0
    on_norm_outlier: Literal["warn", "quarantine"] = "warn"
    on_duplicate_vector: Literal["warn", "quarantine"] = "warn"
    max_duplicate_fraction: Fraction = 0.05
    collapsed_std: NonNegativeFloat = 1e-6
    max_collapsed_fraction: Fraction = 0.05
    max_drift: PositiveFloat = 0.5
    spot_rows: RowsOrNone = 256
    spot_tolerance: PositiveFloat | None = None
    on_leakage: Literal["remove", "report"] = "remove"
    max_quarantine_fraction: Fraction = 0.01
    plot_rows: Rows = 20_000
