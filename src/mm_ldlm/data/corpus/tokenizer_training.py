"""Train a byte-level BPE vocabulary on a corpus, in which no word is unknown and every text is decoded as written."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core.files import InputFile, recorded, write_json

log = logging.getLogger(__name__)

MOST_CHARACTERS = 10_000_000
"""Characters after which training reads no further text; so many take about ten seconds"""
LEAST_COUNT = 5
"""Occurrences from which a pair of tokens becomes a token, so that a small corpus has a small vocabulary"""
FILE = "byte_level.json"
"""File of the vocabulary in the folder of the records, which are limited to a number of its tokens"""


def train(texts: Iterable[str], *, vocab_size: int) -> Any:
    """Train a tokenizer with all bytes and at most `vocab_size` tokens; the same texts give the same tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=LEAST_COUNT, initial_alphabet=alphabet, show_progress=False
    )
    base.train_from_iterator(_first(texts), trainer)
    return base


def _first(texts: Iterable[str]) -> Iterator[str]:
    size = 0
    for text in texts:
        yield text
        size += len(text)
        if size >= MOST_CHARACTERS:
            return


def keep(folder: Path, texts: Iterable[str], *, vocab_size: int, made_by: str) -> None:
    """Train on the texts and keep the vocabulary in a folder, unless it has one with the fingerprint `made_by`."""
    if (recorded(folder / FILE) or {}).get("made_by") != made_by:
        base = train(texts, vocab_size=vocab_size)
        log.info("a byte-level vocabulary of %d tokens was trained on the training texts", base.get_vocab_size())
        write_json(folder / FILE, {"made_by": made_by, "tokenizer": base.to_str()})


def kept(folder: Path) -> Any:
    """Read the tokenizer that was kept in a folder.

    Raises:
        StoreError: there is none.
    """
    from tokenizers import Tokenizer

    remedy = "Run the ingestion pipeline again, from its first node."
    return Tokenizer.from_str(InputFile(folder / FILE, remedy=remedy).json(dict)["tokenizer"])
