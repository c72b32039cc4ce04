"""Parameters of the extraction."""

from typing import Annotated, Any, Literal

from mm_ldlm.core import Rows, Workers, WorkersOrNone, config, refuse_if
from mm_ldlm.data.engines import ENGINES, LocalEngineConfig
from mm_ldlm.distributed.launch import HostsConfig

StoredType = Literal["float32", "float16"]


@config
class ExtractConfig:
    """Parameters of the embedding of records; `EncoderConfig` chooses the encoder.

    Attributes:
        dtype: data type of the stored vectors.
        shard_rows: rows per shard; null chooses a power of two near 1/64 of the rows, between 1,024 and 65,536.
        processes: processes on this host; 0 starts one per GPU, or one for the CPU, which computes one batch per
            `threads` cores at a time.
        threads: threads per batch on a CPU; the number influences the last bits of the vectors.
        non_finite: reaction to NaN or infinity from the encoder: "stop", or "quarantine" (the vector is stored, named
            in the manifest and left out of the index by validation).
        engine: where the latents are computed: `local`, the processes of this host, or `ray`, a Ray cluster.
        launch: hosts that embed together with the engine `local`, from a folder that all of them share. NNODES,
            NODE_RANK, MASTER_ADDR, MASTER_PORT and NPROC_PER_NODE override it and `processes`, as in training.
    """

    dtype: StoredType = "float32"
    shard_rows: Rows | None = None
    processes: WorkersOrNone = 0
    threads: Workers = 1
    non_finite: Literal["stop", "quarantine"] = "stop"
    engine: Annotated[Any, ENGINES] = LocalEngineConfig()
    launch: HostsConfig = HostsConfig()

    def __post_init__(self) -> None:
        refuse_if(
            not self.engine.here and self.processes,
            f"expected 0, because the engine {self.engine.kind} decides how many tasks run at a time, found "
            f"{self.processes}",
            "processes",
        )

    def processes_on(self, device: str | None) -> int:
        """Return the number of processes on this host: as configured, or one for each GPU, or one."""
        if self.processes or device not in ("auto", "cuda"):
            return self.processes or 1
        import torch

        return torch.cuda.device_count() or 1
