"""Catalog dataset of the reference of a run: that of the results folder, or of a run that is chosen by its path."""

from __future__ import annotations

from typing import Any

from kedro.io import DatasetError
from kedro_datasets.json import JSONDataset

from mm_ldlm.training.checkpoints.reference import chosen_run


class RunDataset(JSONDataset):
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
