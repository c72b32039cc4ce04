"""Nodes of `sampling`: the model is loaded once, and each task returns one table.

A task that does not take place returns a table without rows. If it was not requested, an earlier table of the same
checkpoint is kept (`training.checkpoints.provenance.KEEP`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import to_dict
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.pipelines.sampling import TASKS
from mm_ldlm.pipelines.sampling.tasks import Task, task_of
from mm_ldlm.pipelines.trained import load_trained

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.data import Dataset
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.pipelines.sampling.config import SamplingConfig

log = logging.getLogger(__name__)


def load_model(run: dict[str, Any], runs: Path, dataset: Dataset, sampling: SamplingConfig) -> MMLDLM:
    """Load the run's model, once for all tasks; refuse a run of another vocabulary or encoder than the dataset's."""
    return load_trained(run, runs, dataset, sampling)


def node_of(name: str) -> Callable[..., Any]:
    """Make the function of a task's node; it takes the sections of the parameters that the task reads by name."""

    def sample(model: MMLDLM, dataset: Dataset, seed: int, **sections: Any) -> pd.DataFrame:
        task = task_of(name, sections)
        rows = task.sample(model, dataset, seed=seed) if _takes_place(task, model) else []
        parameters = to_dict(task.sampling) | {key: to_dict(sections[key]) for key in sections if key != "sampling"}
        return _table(rows, task, model, parameters, seed)

    sample.__name__ = sample.__qualname__ = f"sample_{name}"
    sample.__doc__ = TASKS.load(name).__doc__
    return sample


def _takes_place(task: Task, model: MMLDLM) -> bool:
    """Return whether a task takes place.

    Raises:
        SamplingError: the parameters list a task that the run does not support.
    """
    if not task.requested:
        return False
    reason = task.refusal(model.capabilities)
    if reason is not None and task.sampling.tasks is not None:
        raise SamplingError(reason)
    if reason is not None and task.field is None:
        log.info("task '%s' is skipped: %s", task.name, reason)
    return reason is None


def _table(parts: list[pd.DataFrame], task: Task, model: MMLDLM, parameters: dict[str, Any], seed: int) -> pd.DataFrame:
    """Concatenate the parts, with exactly the columns of the task, and the attributes that `SamplesDataset` reads."""
    import pandas as pd

    from mm_ldlm.training.checkpoints.provenance import KEEP, MADE_BY, made_by, weights_of

    columns = list(task.columns)
    empty = pd.DataFrame(columns=columns)
    whole = pd.concat([part.reindex(columns=columns) for part in parts]) if parts else empty
    table = whole.astype(dict(task.columns)).reset_index(drop=True)
    if (checkpoint := model.parts.checkpoint) is not None:
        weights = weights_of(checkpoint, use_ema=task.sampling.use_ema)
        table.attrs = {MADE_BY: made_by(weights, parameters=parameters, seed=seed)}
        table.attrs |= {} if task.requested else {KEEP: weights}
    return table
