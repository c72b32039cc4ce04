"""Sources of plain text: files, the starter corpus, the older folder layout."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from mm_ldlm.corpus.sources.base import Bad, Row
from mm_ldlm.corpus.sources.config import SourceConfig
from mm_ldlm.corpus.sources.files import describe_files, find_files, read_document, read_lines


@dataclasses.dataclass(frozen=True)
class TextSource:
    """.txt, .gz, .zst; one document a line or a file."""

    config: SourceConfig
    max_row_bytes: int

    def rows(self) -> Iterator[Row | Bad]:
        split, encoding, limit = self.config.split, self.config.encoding, self.max_row_bytes
        for path in find_files(self.config):
            name = str(path)
            if self.config.unit == "file":
                found = read_document(path, encoding=encoding, max_bytes=limit)
                yield found if isinstance(found, Bad) else Row(found.text, name, 1, split)
                continue
            for line in read_lines(path, encoding=encoding, max_bytes=limit):
                yield line if isinstance(line, Bad) else Row(line.text, name, line.number, split)

    def describe(self) -> Any:
        return describe_files(find_files(self.config))


@dataclasses.dataclass(frozen=True)
class StarterSource:
    """The corpus that the project generates; it brings its own split."""

    config: SourceConfig
    seed: int

    def rows(self) -> Iterator[Row | Bad]:
        from mm_ldlm.corpus.starter import generate_starter_corpus

        sentences = generate_starter_corpus(
            seed=self.seed,
            num_train=self.config.num_train,
            num_validation=self.config.num_validation,
            num_test=self.config.num_test,
        )
        for number, sentence in enumerate(sentences, start=1):
            yield Row(sentence.text, "starter", number, sentence.split, json.dumps({"shape": sentence.shape}))

    def describe(self) -> Any:
        from importlib import resources

        from mm_ldlm.store.fingerprint import fingerprint

        folder = resources.files("mm_ldlm.corpus.starter")
        code = {item.name: item.read_text("utf-8") for item in folder.iterdir() if item.name.endswith(".py")}
        return {"seed": self.seed, "grammar": fingerprint(code)}
