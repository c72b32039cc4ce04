"""Catalog datasets of JSON files, which are read through the door of `core.files`, and of what a file refers to."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets.json import JSONDataset

from mm_ldlm.core.files import InputFile, recorded, write_text
from mm_ldlm.training.checkpoints.reference import chosen_run

HOLDS = {"mapping": dict, "list": list, "numbers": dict[str, float]}
"""What a JSON file of the catalog may hold"""


class JsonDataset(JSONDataset):
    """JSON dataset of a value of one form, which refuses a file that was edited or replaced by another one.

    Args:
        holds: a key of `HOLDS`.
    """

    def __init__(self, *, filepath: str, holds: str = "mapping", **options: Any) -> None:
        super().__init__(filepath=filepath, **options)
        self._path, self._holds = Path(filepath), HOLDS[holds]

    def load(self) -> Any:
        if not os.path.lexists(self._path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
        return InputFile(self._path, remedy="Remove it, and run the pipeline that writes it again.").json(self._holds)

    def save(self, data: Any) -> None:
        write_text(self._path, json.dumps(data, **self._save_args))
        self._invalidate_cache()


class RunDataset(JsonDataset):
    """JSON dataset of the reference {name, path, fingerprint, step, checkpoint, metrics} that the training saves.

    `chosen`, the path of a run or of one of its checkpoints (`--params run=PATH`), replaces the file. Such a reference
    is not saved.
    """

    def __init__(self, *, filepath: str, chosen: str | None = None, **options: Any) -> None:
        super().__init__(filepath=filepath, **options)
        self._chosen = chosen

    def load(self) -> Any:
        return super().load() if self._chosen is None else chosen_run(self._chosen)

    def save(self, data: Any) -> None:
        if self._chosen is not None:
            raise DatasetError("a run that is chosen by its path is not trained. Remove `run` from --params.")
        super().save(data)

    def _exists(self) -> bool:
        return self._chosen is not None or bool(super()._exists())

    def _describe(self) -> dict[str, Any]:
        return {**super()._describe(), "chosen": self._chosen}


class TrackedMetricsDataset(AbstractDataset):
    """Function from an MLflow run id to the last metrics of that run; None for an unknown run, or without tracking.

    `filepath` is the reference to the tracking store that the hook writes.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath, self.metadata = Path(filepath), metadata

    def load(self) -> Callable[[str], dict[str, float] | None]:
        uri = (recorded(self._filepath) or {}).get("tracking_uri")

        def metrics_of(run_id: str) -> dict[str, float] | None:
            if uri is None:
                return None
            from mm_ldlm.app.tracking.mlflow import MlflowRun

            return MlflowRun(uri, run_id).metrics()

        return metrics_of

    def save(self, data: Any) -> NoReturn:
        raise DatasetError("expected a node that reads tracked metrics, found one that writes them. Correct the graph.")

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}
