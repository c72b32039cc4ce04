"""Catalog entry that reads the metrics of other runs from MLflow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kedro.io import AbstractDataset, DatasetError

from mm_ldlm.core.files import recorded


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
            from mm_ldlm.extras.mlflow.client import MlflowRun

            return MlflowRun(uri, run_id).metrics()

        return metrics_of

    def save(self, data: Any) -> NoReturn:
        raise DatasetError("expected a node that reads tracked metrics, found one that writes them. Correct the graph.")

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}
