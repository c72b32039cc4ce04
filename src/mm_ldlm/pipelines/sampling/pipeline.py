"""`sampling`: the model is loaded once, and the node of each task of the registry returns one table.

A task that does not take place returns a table without rows. If it was not requested, an earlier table of the same
checkpoint is kept (`training.checkpoints.provenance.KEEP`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from mm_ldlm.core import SamplingError, to_dict
from mm_ldlm.pipelines.sampling import TASKS
from mm_ldlm.pipelines.sampling.tasks import Task, task_of
from mm_ldlm.pipelines.trained import load_trained
from mm_ldlm.training.checkpoints.provenance import KEEP, MADE_BY, made_by

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.inference.api import MMLDLM

log = logging.getLogger(__name__)


def create_pipeline() -> Pipeline:
    load = node(
        load_trained,
        inputs=["run", "runs", "dataset", "params:sampling"],
        outputs="sampling_model",
        name="load_model",
    )
    tasks = []
    for name in TASKS:
        sections = {section: f"params:{section}" for section in TASKS.load(name).sections}
        inputs = {"model": "sampling_model", "dataset": "dataset", "seed": "params:seed", **sections}
        tasks.append(node(node_of(name), inputs=inputs, outputs=f"samples_{name}", name=f"sample_{name}"))
    return Pipeline([load, *tasks], tags="sampling", namespace="sampling", prefix_datasets_with_namespace=False)


def node_of(name: str) -> Callable[..., Any]:
    """Make the function of a task's node; it takes the sections of the parameters that the task reads by name."""

    def sample(model: MMLDLM, dataset: Dataset, seed: int, **sections: Any) -> pd.DataFrame:
        task = task_of(name, sections)
        parts = []
        if _takes_place(task, model):
            log.info("sampling · %s", name)
            parts = task.sample(model, dataset, seed=seed)
        own = {key: to_dict(section) for key, section in sections.items() if key != "sampling"}
        used = to_dict(task.sampling) | {"precision": model.parts.precision}
        return _table(parts, task, model, {"parameters": used | own, "seed": seed})

    sample.__name__ = sample.__qualname__ = f"sample_{name}"
    sample.__doc__ = TASKS.load(name).__doc__
    return sample


def _takes_place(task: Task, model: MMLDLM) -> bool:
    """Return whether a task takes place.

    Raises:
        SamplingError: the parameters list a task that the run does not support.
    """
    reason = task.refusal(model.capabilities) if task.requested else None
    if reason is not None and task.sampling.tasks is not None:
        raise SamplingError(reason)
    return task.requested and reason is None


def _table(parts: list[pd.DataFrame], task: Task, model: MMLDLM, settings: dict[str, Any]) -> pd.DataFrame:
    """Concatenate the parts, with exactly the columns of the task, and the attributes that `SamplesDataset` reads."""
    import pandas as pd

    empty = pd.DataFrame(columns=list(task.columns))
    table = pd.concat([part.reindex(columns=empty.columns) for part in parts] or [empty], ignore_index=True)
    table = table.astype(dict(task.columns))
    weights = model.parts.weights
    table.attrs = {MADE_BY: made_by(weights, **settings), **({} if task.requested else {KEEP: weights})}
    return table
