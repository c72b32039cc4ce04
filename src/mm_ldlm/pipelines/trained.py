"""The trained model that the nodes of `sampling` and of `evaluation` use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.training.checkpoints.reference import weights_folder

if TYPE_CHECKING:
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.inference.api import MMLDLM


def load_trained(run: dict[str, Any], runs: Path, dataset: Dataset, config: Any) -> MMLDLM:
    """Load the run's model; refuse a run of another vocabulary or encoder than the dataset's.

    Args:
        config: has `checkpoint`, `use_ema`, `device`, `precision` and `batch_tokens`.
    """
    from mm_ldlm.inference.api import MMLDLM
    from mm_ldlm.inference.loading import refuse_other_data

    model = MMLDLM.from_run(
        weights_folder(runs, run),
        checkpoint=config.checkpoint,
        use_ema=config.use_ema,
        device=config.device,
        precision=config.precision,
        batch_tokens=config.batch_tokens,
    )
    refuse_other_data(model.parts, dataset.fingerprints)
    return model
