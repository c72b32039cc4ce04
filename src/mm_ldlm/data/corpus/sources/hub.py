"""Data sets of the hub."""

from collections.abc import Iterator
from typing import Annotated, Any

from mm_ldlm.core import SourceError, bounded, config, reason_of
from mm_ldlm.data.corpus.sources.base import BadRow, ColumnsConfig, Opening, Row, Splits, held_out_first


@config
class HubConfig(ColumnsConfig):
    """A data set on the hub.

    Attributes:
        dataset: its name.
        subset: its configuration (`name=` of `load_dataset`).
        revision: commit or tag.
        streaming: read while downloading; false downloads into the Hugging Face cache first.
        splits: the splits to read, each mapped to train, validation, test, or hash (the project's hash split).
    """

    kind: str = "hub"
    dataset: Annotated[str, bounded(min_length=1)]
    subset: str | None = None
    revision: str | None = None
    streaming: bool = True
    splits: Annotated[Splits, bounded(min_length=1)]

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
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
                    "Offline: save it on another machine with Dataset.save_to_disk, copy the folder here and use kind "
                    "'disk'. An interrupted run continues where it stopped."
                ) from error

    def describe(self, opening: Opening) -> Any:
        return {"dataset": self.dataset, "revision": self.revision}
