"""The starter corpus as a source."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.starter.corpus import generate_starter_corpus


@dataclasses.dataclass(frozen=True)
class StarterSource:
    """The generated starter corpus, which has its own splits."""

    config: SourceConfig
    seed: int

    def rows(self) -> Iterator[Row | BadRow]:
        sentences = generate_starter_corpus(
            seed=self.seed,
            num_train=self.config.num_train,
            num_validation=self.config.num_validation,
            num_test=self.config.num_test,
        )
        for number, sentence in enumerate(sentences, start=1):
            yield Row(sentence.text, "starter", number, sentence.split, json.dumps({"shape": sentence.shape}))

    def describe(self) -> Any:
        return describe_grammar(self.seed)


def describe_grammar(seed: int) -> dict[str, Any]:
    """Describe the generated sentences by the seed and the source of the grammar."""
    folder = resources.files("mm_ldlm.extras.starter.corpus")
    code = {item.name: item.read_text("utf-8") for item in folder.iterdir() if item.name.endswith(".py")}
    return {"seed": seed, "grammar": fingerprint(code)}
