"""Parameters of one source of text."""

from __future__ import annotations

import codecs
import dataclasses
from typing import Literal

from mm_ldlm.core.config import InvalidValue, PositiveFloat, PositiveInt, Rows, RowsOrNone, config
from mm_ldlm.data.corpus.splits import SPLITS, Split

Kind = Literal[
    "starter", "starter_pairs", "text", "jsonl", "csv", "parquet", "arrow", "hub", "disk", "layout",
    "digits", "image_folder", "webdataset", "table",
]  # fmt: skip
BY_HASH = "hash"

_ALWAYS = {"kind", "name", "max_samples", "weight"}
_LABELS = {"label_column", "labels", "pair_column"}
_CAPTIONED = {"path", "split", "split_column", "columns", "meta_columns"} | _LABELS
_COLUMNS = {"columns", "meta_columns", "vector_column"} | _LABELS
_TABLE = {"path", "split", "split_column"} | _COLUMNS
_READS: dict[str, set[str]] = {
    "starter": {"num_train", "num_validation", "num_test"},
    "starter_pairs": {"num_train", "num_validation", "num_test"},
    "text": {"path", "unit", "encoding", "split", "vectors"},
    "jsonl": _TABLE | {"encoding"},
    "csv": _TABLE | {"encoding", "delimiter", "header"},
    "parquet": _TABLE,
    "arrow": _TABLE,
    "hub": {"dataset", "subset", "revision", "streaming", "splits"} | _COLUMNS,
    "disk": {"path", "splits"} | _COLUMNS,
    "layout": {"path", "splits", "tokens", "latents"},
    "digits": set(),
    "image_folder": _CAPTIONED | {"encoding", "image_column"},
    "webdataset": _CAPTIONED,
    "table": {"path", "vector_column", "columns", "meta_columns"},
}


@config
class SourceConfig:
    """One source of text. A key that its kind does not read is refused.

    Attributes:
        kind: starter | starter_pairs | text | jsonl | csv | parquet | arrow | hub | disk | layout | digits |
            image_folder | webdataset | table.
        name: the name used in the records and in the report; the kind by default.
        path: a file, a folder (disk, layout), a glob, or a list of files and globs; relative to the working directory.
        dataset: hub only: the data set's name on the hub.
        subset: hub only: its configuration (`name=` of `load_dataset`).
        revision: hub only: commit or tag.
        streaming: hub only: read while downloading; false downloads into the Hugging Face cache first.
        splits: hub and disk: the splits to read, each mapped to train, validation, test, or hash (the project's hash
            split). layout: the split of the rows of train, validation and test, by default the same; held_out divides
            rows between validation and test, if no other rows of the layout are for testing.
        tokens: layout only: compare the stored tokens with those of the tokenizer, and decode texts that are missing.
        latents: layout only: read the stored latents as vectors (`encoder.kind: precomputed`).
        columns: columns that contain a text; each becomes a separate row. Without a header: "0", "1", ...
        meta_columns: columns kept as JSON in `meta`.
        label_column: a column that contains the label of the text, kept in `meta` under "label". A row without a label
            is quarantined.
        labels: the labels that are accepted; a row with another one is quarantined. Without it every label is accepted.
        pair_column: a column that contains the second text of a pair, kept in `meta` under "pair".
        vector_column: a column that contains the vector of the text (`encoder.kind: precomputed`): a list of numbers.
        vectors: text only: the .npy file with a vector for each line, or "beside" for the file of the same name.
        split: the split of every row of this source, instead of the hash split.
        split_column: a column that contains train, validation or test.
        unit: text only: one document per "line" or per "file".
        encoding: any encoding of text in which ASCII characters are single bytes.
        delimiter, header: csv only.
        image_column: image_folder only: the column that contains the path of the image.
        max_samples: maximum number of rows read from this source, bad rows included.
        weight: fraction of this source in the mixture; either all sources have a weight or none.
        num_train, num_validation, num_test: starter and starter_pairs: number of sentences or pairs to generate.
    """

    kind: Kind
    name: str | None = None
    path: str | tuple[str, ...] | None = None
    dataset: str | None = None
    subset: str | None = None
    revision: str | None = None
    streaming: bool = True
    splits: dict[str, Literal["train", "validation", "test", "hash", "held_out"]] | None = None
    tokens: bool = False
    latents: bool = False
    columns: tuple[str, ...] = ("text",)
    meta_columns: tuple[str, ...] = ()
    label_column: str | None = None
    labels: tuple[str, ...] | None = None
    pair_column: str | None = None
    vector_column: str | None = None
    vectors: str | None = None
    split: Split | None = None
    split_column: str | None = None
    unit: Literal["line", "file"] = "line"
    encoding: str = "utf-8"
    delimiter: str = ","
    header: bool = True
    image_column: str = "image"
    max_samples: PositiveInt | None = None
    weight: PositiveFloat | None = None
    num_train: Rows = 20_000
    num_validation: RowsOrNone = 500
    num_test: RowsOrNone = 500

    def __post_init__(self) -> None:
        reads = _READS.get(self.kind)
        if reads is None:  # the literal type refuses it where pydantic is installed
            raise InvalidValue(f"kind '{self.kind}' is unknown; expected one of {', '.join(_READS)}", "kind")
        for field in dataclasses.fields(self):
            unread = field.name not in reads | _ALWAYS
            if unread and getattr(self, field.name) != field.default:
                raise InvalidValue(
                    f"'{field.name}' is not read by kind '{self.kind}', which reads {', '.join(sorted(reads))}",
                    field.name,
                )
        if "path" in reads and not self.path:
            raise InvalidValue(f"kind '{self.kind}' needs 'path'", "path")
        if self.kind == "hub" and not (self.dataset and self.splits):
            raise InvalidValue(
                "kind 'hub' needs 'dataset' and 'splits' (for example {train: hash})", "dataset", "splits"
            )
        if self.kind == "layout" and (unknown := sorted(set(self.splits or ()) - set(SPLITS))):
            raise InvalidValue(f"the layout has the splits {', '.join(SPLITS)}, found {', '.join(unknown)}", "splits")
        if self.kind != "layout" and "held_out" in (self.splits or {}).values():
            raise InvalidValue("'held_out' is a split of kind 'layout'", "splits")
        if not self.columns:
            raise InvalidValue("'columns' must name at least one column", "columns")
        if self.split and self.split_column:
            raise InvalidValue("give 'split' or 'split_column', not both", "split", "split_column")
        if self.labels is not None and self.label_column is None:
            raise InvalidValue("'labels' needs 'label_column'", "labels", "label_column")
        if self.pair_column is not None and len(self.columns) != 1:
            raise InvalidValue(
                f"'pair_column' needs exactly one of 'columns', found {list(self.columns)}", "pair_column", "columns"
            )
        if self.vector_column is not None and (len(self.columns) != 1 or self.pair_column is not None):
            raise InvalidValue(
                f"'vector_column' needs exactly one of 'columns' and no 'pair_column', found {list(self.columns)}: a "
                "vector belongs to one text",
                "vector_column", "columns",
            )  # fmt: skip
        if self.vectors is not None and self.unit != "line":
            raise InvalidValue("'vectors' needs 'unit' line: a row of the .npy file belongs to one line", "vectors")
        if "encoding" in reads:
            self._check_encoding()
        if len(self.delimiter) != 1:
            raise InvalidValue(f"'delimiter' must be one character, found {self.delimiter!r}", "delimiter")

    @property
    def reads_columns(self) -> bool:
        """Whether the source is a table, whose texts are in `columns`."""
        return "columns" in _READS[self.kind]

    def _check_encoding(self) -> None:
        try:
            name = codecs.lookup(self.encoding).name
            line_break, letter = "\n".encode(name), "a".encode(name)
        except (LookupError, ValueError) as error:  # ValueError: NUL, a lone surrogate, an encoding of host names
            raise InvalidValue(
                f"encoding {self.encoding!a} is unknown to Python, or is no encoding of text ({error}). Use utf-8 or "
                "another encoding of text",
                "encoding",
            ) from None
        if line_break != b"\n" or letter != b"a":
            raise InvalidValue(
                f"a line break in '{self.encoding}' is not one byte, or its letters differ from ASCII: "
                "convert the file to UTF-8 first (iconv)",
                "encoding",
            )

    @property
    def read_columns(self) -> tuple[str, ...]:
        """All columns that a tabular source reads, each once."""
        single = (self.split_column, self.label_column, self.pair_column, self.vector_column)
        return tuple(dict.fromkeys([*self.columns, *self.meta_columns, *(name for name in single if name)]))

    @property
    def has_vectors(self) -> bool:
        """Whether the source contains a vector for each text."""
        return self.vector_column is not None or self.vectors is not None or self.latents

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def paths(self) -> tuple[str, ...]:
        return () if self.path is None else (self.path,) if isinstance(self.path, str) else self.path


SPLIT_WORDS: dict[str, str] = {
    **{name: name for name in SPLITS},
    "valid": "validation",
    "dev": "validation",
    "val": "validation",
}
"""Names of splits in sources, mapped to the names used here."""
