"""Read JSONL files, plain or compressed, and parse JSON from outside."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core import config
from mm_ldlm.data.corpus.quarantine import BadRow, Unusable
from mm_ldlm.data.corpus.sources.base import Opening, Row, TableFilesConfig
from mm_ldlm.data.corpus.sources.lines import SNIFFED_LINES, Encoding, read_lines


@config
class JsonlConfig(TableFilesConfig):
    """JSONL files with one JSON object per line; a column that a line lacks, but other lines have, is null.

    Attributes:
        encoding: any text encoding in which ASCII characters are single bytes.
    """

    kind: str = "jsonl"
    encoding: Encoding = "utf-8"

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        required = {*self.required}
        known = {
            name
            for found in itertools.islice(self._objects(path, opening), SNIFFED_LINES)
            if isinstance(found, dict)
            for name in (*required & found.keys(), *list(found)[:12])  # the other columns are for the message
        }
        for number, found in enumerate(self._objects(path, opening), start=1):
            if isinstance(found, dict):
                known |= required & found.keys()
                found |= dict.fromkeys(sorted(known - found.keys()))
                yield from self.rows_of(found, file=str(path), line=number)
            else:
                yield found

    def _objects(self, path: Path, opening: Opening) -> Iterator[dict[str, Any] | Row | BadRow]:
        """Yield the object of each line, a `BadRow` if it is damaged, or a `Row` without text if it is blank."""
        for line in read_lines(path, encoding=self.encoding, max_bytes=opening.max_row_bytes):
            try:
                yield line.bad or (json_object(line.text) if line.text.strip() else Row("", str(path), line.number))
            except Unusable as error:
                yield error.at(str(path), line.number)


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; raise `Unusable` like `parse_json`, and for any other JSON value."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise Unusable("wrong_type", f"a JSON {type(value).__name__}, expected an object", text)
    return value


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from outside.

    Raises:
        Unusable: the text is not JSON, it is nested too deeply, or a key occurs twice in an object.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text)))
    except (ValueError, RecursionError) as error:
        raise Unusable("broken_json", str(error)[:200], text) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Made once: `json.loads` with a hook makes a decoder for every text."""
