"""Data sets of the hub, or local copies of them."""

import os
from collections.abc import Iterator
from typing import Annotated, Any

from mm_ldlm.core import SourceError, bounded, config, reason_of, setting
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.data.corpus.sources.base import ColumnsConfig, Opening, Row
from mm_ldlm.data.corpus.sources.table import TableConfig
from mm_ldlm.extras.tables.files import DiskConfig, Splits, held_out_first


@config
class HubConfig(ColumnsConfig):
    """A data set on the hub.

    Attributes:
        dataset: its name.
        path: read instead of the hub: a folder that `Dataset.save_to_disk` wrote, which has the splits, or files with
            the columns, which are divided by the hash split.
        subset: its configuration (`name=` of `load_dataset`).
        revision: commit or tag.
        streaming: read while downloading; false downloads into the Hugging Face cache first.
        splits: the splits to read, each mapped to train, validation, test, or hash (the project's hash split).
    """

    kind: str = "hub"
    dataset: Annotated[str, bounded(min_length=1)]
    path: str | None = None
    subset: str | None = None
    revision: str | None = None
    streaming: bool = True
    splits: Annotated[Splits, bounded(min_length=1)]

    @property
    def _copy(self) -> Any:
        """The source of the local copy"""
        return self.as_kind(DiskConfig if os.path.isdir(str(self.path)) else TableConfig)

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        if self.path is not None:
            yield from self._copy.rows(opening)
            return
        import datasets

        for name, split in held_out_first(self.splits):
            number, place = 0, f"{self.dataset}[{name}]"
            try:
                loaded = datasets.load_dataset(
                    self.dataset, self.subset, split=name, revision=self.revision, streaming=self.streaming
                )
                for number, fields in enumerate(loaded, start=1):
                    yield from self.rows_of(fields, file=place, line=number, split=split)
            except Exception as error:  # the hub, the network, the file format and the library raise many types
                raise SourceError(
                    f"source '{self.label}': {place} could not be read after {number} rows ({reason_of(error)}). "
                    "Offline: save it on another machine with Dataset.save_to_disk, copy the folder here, and name it "
                    f"by {setting('ingestion.path', 'FOLDER')}. An interrupted run continues where it stopped."
                ) from error

    def describe(self, opening: Opening) -> Any:
        if self.path is not None:
            return self._copy.describe(opening)
        return {"dataset": self.dataset, "revision": self.revision}
