"""Parameters of the `ingestion` pipeline."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

from mm_ldlm.core import Bytes, Fraction, PositiveInt, Rows, bounded, config, refuse_if
from mm_ldlm.data.corpus.detokenising import Published, detokenise_published
from mm_ldlm.data.corpus.duplicates import NearDuplicateConfig
from mm_ldlm.data.corpus.filters import LengthConfig
from mm_ldlm.data.corpus.record import UnicodeForm, normalise
from mm_ldlm.data.corpus.sources import SOURCES
from mm_ldlm.data.corpus.sources.base import Delimiter, Header
from mm_ldlm.data.corpus.splits import SplitConfig
from mm_ldlm.data.engines import ENGINES, LocalEngineConfig

SHORT_FORMS = {
    "path": "path", "text_column": "columns", "label_column": "label_column", "vector_column": "vector_column",
    "group_column": "group_column", "header": "header", "delimiter": "delimiter", "limit": "max_samples",
}  # fmt: skip
"""Keys of the section → keys of the only source with a path, because the command line cannot address list items"""


@config
class IngestionConfig:
    """Parameters of `ingestion`.

    Attributes:
        sources: read one after another, or in proportion to their weights until one of them is exhausted; with `path`
            and `text_column` in the source that they change.
        path: replaces the path of the one source that has a path, or the hub.
        text_column, label_column, vector_column, group_column: replace the columns and the keys of that source, which
            must be a table; the number of a column, from 0, in a file without a header.
        header, delimiter: replace those keys of that source, which must be a CSV file.
        limit: replaces its `max_samples`: only its first rows are read.
        detokeniser: name of a corpus that was published as tokens, whose texts become text as in publications.
        unicode_form: NFC, NFKC or none.
        collapse_whitespace: replace each run of white space by one space.
        length: bounds in characters and words; bounds in tokens belong to the tokenizer.
        near_duplicates: also remove near duplicates (slow: a few thousand rows per second); None removes exact
            duplicates only.
        language_filter: "package.module:function", which receives a text and returns True to keep it.
        splits: used for sources that set none.
        max_bad_fraction: the run stops when a larger fraction of the rows is damaged.
        max_row_bytes: longer lines, documents and cells count as damaged.
        shard_rows: rows per shard of the store.
        replace: replace the finished records of other sources in the data folder, which is refused otherwise.
        engine: where the rows are prepared: `local`, this host, or `ray`, a Ray cluster. Sources are read and
            duplicates are found in this process, in the order of the sources.
    """

    sources: Annotated[tuple[Annotated[Any, SOURCES], ...], bounded(min_length=1)]
    path: str | None = None
    text_column: str | int | None = None
    label_column: str | int | None = None
    vector_column: str | int | None = None
    group_column: str | int | None = None
    header: Header | None = None
    delimiter: Delimiter | None = None
    limit: PositiveInt | None = None
    detokeniser: Published | None = None
    unicode_form: UnicodeForm = "NFC"
    collapse_whitespace: bool = True
    length: LengthConfig = LengthConfig()
    near_duplicates: NearDuplicateConfig | None = None
    language_filter: str | None = None
    splits: SplitConfig = SplitConfig()
    max_bad_fraction: Fraction = 0.01
    max_row_bytes: Bytes = 1_000_000
    shard_rows: Rows = 65_536
    replace: bool = False
    engine: Annotated[Any, ENGINES] = LocalEngineConfig()

    def __post_init__(self) -> None:
        labels = [source.label for source in self.sources]
        refuse_if(
            twice := {label for label in labels if labels.count(label) > 1},
            f"several sources are called {sorted(twice)}: give each source a different 'name'",
            "sources",
        )
        refuse_if(
            len({source.weight is None for source in self.sources}) > 1,
            "some sources have a weight and others none: give one to every source or to none",
            "sources",
        )
        for key, named in SHORT_FORMS.items():
            if (value := getattr(self, key)) is None:
                continue
            if key.endswith("_column"):
                value = str(value)
            fitting = [source for source in self.sources if hasattr(source, named) and (source.paths or key == "path")]
            refuse_if(
                len(fitting) != 1,
                f"expected one source with a path, whose '{named}' the key '{key}' replaces, found {len(fitting)}. "
                f"Choose an environment for your own data (`--env=own_text --params ingestion.path=FILE`, or "
                "own_csv), or set ingestion.sources",
                key,
            )
            changed = dataclasses.replace(fitting[0], **{named: (value,) if named == "columns" else value})
            sources = tuple(changed if source is fitting[0] else source for source in self.sources)
            object.__setattr__(self, "sources", sources)

    def input_files(self) -> Iterator[tuple[str, str]]:
        for place, source in enumerate(self.sources):
            at = "" if self.path is not None and source.paths else f"sources[{place}]."
            yield from ((f"{at}{key}", path) for key, path in source.files)

    def normalise(self, text: str) -> str:
        """Return a text in the form in which it is stored."""
        text = detokenise_published(text, self.detokeniser)
        return normalise(text, self.unicode_form, collapse_whitespace=self.collapse_whitespace)
