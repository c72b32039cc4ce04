"""The text tokenizer: any Hugging Face tokenizer, without [CLS] and [SEP], over its entire vocabulary or a part of it.

A saved tokenizer is a folder with `tokenizer.json` (the base tokenizer, with pad, mask and unknown tokens added where
missing) and `vocabulary.json` (the base ids that are kept, and the three special ids). Loading it needs the
`tokenizers` package, but neither `transformers` nor `datasets`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import InvalidValue, Size, StoreError, config, reason_of
from mm_ldlm.core.files import InputFile, json_document, new_directory
from mm_ldlm.data.corpus import pretrained
from mm_ldlm.data.corpus.detokenising import detokenise
from mm_ldlm.data.store.fingerprint import fingerprint

FORMAT_VERSION = 1
PADS = ("[PAD]", "<pad>", "<|pad|>")
MASKS = ("[MASK]", "<mask>", "<|mask|>")
UNKNOWNS = ("[UNK]", "<unk>", "<|unk|>")
_THREADS = 16
_ROWS_PER_THREAD = 512
_FILES = ("tokenizer.json", "vocabulary.json")


@config
class TokenizerConfig:
    """Which tokenizer, how long a sequence may be, and which part of the vocabulary is kept.

    Attributes:
        name: "bert-base-uncased" comes from an installed package; any other name is looked up on the hub.
        path: a folder, a tokenizer.json or a vocab.txt, used instead of `name`.
        revision: commit or tag on the hub.
        lowercase: for a vocab.txt, which does not record it.
        max_length: maximum number of tokens in a sequence.
        min_length: minimum number of tokens; shorter rows go to quarantine.
        too_long: treatment of longer rows: "drop" (quarantine), "truncate" (only the tokens; text and embedding
            stay as they are) or "split" (at word boundaries, each piece becomes a record).
        reduce_vocabulary: keep only tokens that occur in the training split.
    """

    name: str = "bert-base-uncased"
    path: str | None = None
    revision: str | None = None
    lowercase: bool = True
    max_length: Size
    min_length: Size = 1
    too_long: Literal["drop", "truncate", "split"] = "drop"
    reduce_vocabulary: bool = False

    def __post_init__(self) -> None:
        if self.min_length > self.max_length:
            raise InvalidValue(
                f"min_length {self.min_length} is above max_length {self.max_length}", "min_length", "max_length"
            )

    def input_files(self) -> Iterator[tuple[str, str]]:
        if self.path is not None:
            yield "path", self.path


@json_document
class _Vocabulary:
    """Contents of vocabulary.json."""

    format_version: int
    fingerprint: str
    max_length: int
    vocab_size: int
    base_size: int
    pad_id: int
    mask_id: int
    unk_id: int
    kept: list[int] | None


class TextTokenizer:
    """A tokenizer with the part of its vocabulary that is used. It adds missing pad, mask and unknown tokens to `base`.

    Attributes:
        vocab_size: ids are 0 .. vocab_size - 1, special ids included.
        pad_id, mask_id: never produced by encoding.
        unk_id: replaces tokens outside the vocabulary.
        max_length: maximum number of tokens in a sequence, as prepared for training.
        kept_V: (V,) int64, the base id of each id, ascending; all base ids unless the vocabulary was reduced.
        fingerprint: digest of everything that decides the ids of a text.
        directory: where it was loaded from, if it was.
    """

    directory: Path | None = None

    def __init__(self, base: Any, *, max_length: int, kept: npt.NDArray[np.int64] | None = None) -> None:
        self.base, self.max_length = complete_specials(base), max_length
        base.no_padding()
        base.no_truncation()
        base.encode_special_tokens = True  # "[MASK]" in a text is ordinary text
        specials = np.array([_find(base, names) for names in (PADS, MASKS, UNKNOWNS)], np.int64)
        self.base_size = int(base.get_vocab_size(with_added_tokens=True))
        self.kept_V = np.union1d(np.arange(self.base_size) if kept is None else kept, specials).astype(np.int64)
        self.vocab_size = len(self.kept_V)
        self.reduced = self.vocab_size < self.base_size
        self._from_base = np.full(self.base_size, -1, np.int64)
        self._from_base[self.kept_V] = np.arange(self.vocab_size)
        self.pad_id, self.mask_id, self.unk_id = (int(self._from_base[special]) for special in specials)
        self._to_ours = np.where(self._from_base < 0, self.unk_id, self._from_base).astype(np.int32)
        self._to_ours[specials[:2]] = self.unk_id  # a unigram model may find "<pad>" in a text as an ordinary piece

    @functools.cached_property
    def base_fingerprint(self) -> str:
        """Fingerprint of the base tokenizer, whichever part of its vocabulary is kept."""
        return fingerprint(json.loads(self.base.to_str()))

    @functools.cached_property
    def fingerprint(self) -> str:
        return fingerprint(
            {
                "base": self.base_fingerprint,
                "kept": self.kept_V.tolist() if self.reduced else None,
                "special": [self.pad_id, self.mask_id, self.unk_id],
                "format": FORMAT_VERSION,
            }
        )

    # -- text to ids --------------------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text without special tokens; `max_length` is not applied here."""
        values, offsets = self.encode_base(texts)
        flat = self._to_ours[values].tolist()
        return [flat[a:b] for a, b in itertools.pairwise(offsets.tolist())]

    def encode_base(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return (values, offsets) in ids of the entire vocabulary: text i is `values[offsets[i]:offsets[i + 1]]`.

        Large batches use several threads (Rust releases the GIL).
        """
        texts = list(texts)
        if len(texts) < 2 * _ROWS_PER_THREAD:
            found = self._ids(texts)
        else:
            threads = min(_THREADS, os.cpu_count() or 1, len(texts) // _ROWS_PER_THREAD)
            parts = [texts[len(texts) * i // threads : len(texts) * (i + 1) // threads] for i in range(threads)]
            with ThreadPoolExecutor(threads) as pool:
                found = list(itertools.chain.from_iterable(pool.map(self._ids, parts)))
        offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
        return np.fromiter(itertools.chain.from_iterable(found), np.int64, count=int(offsets[-1])), offsets

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.base.encode_batch_fast(texts, add_special_tokens=False)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where each token of a text stands in it: the first character, and the one after the last."""
        return list(self.base.encode(text, add_special_tokens=False).offsets)

    def from_base(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Map base ids to ids of the kept vocabulary; others become `unk_id`."""
        return self._to_ours[values]

    def is_kept(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which base ids are in the kept vocabulary."""
        return self._from_base[values] >= 0

    # -- ids to text --------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Decode ids to text. Pads are left out; mask and unknown tokens stay visible unless `skip_special`.

        Where the vocabulary does not record spaces, they are written as in English (`detokenising`).

        Raises:
            StoreError: an id is outside the vocabulary.
        """
        return self.decode_batch([ids], skip_special=skip_special)[0]

    def decode_batch(self, batch: Iterable[Iterable[int]], *, skip_special: bool = False) -> list[str]:
        """Decode several sequences in one call."""
        hidden = {self.pad_id} | ({self.mask_id, self.unk_id} if skip_special else set())
        rows = []
        for ids in batch:
            ours = np.asarray([int(i) for i in ids if int(i) not in hidden], np.int64)
            if len(ours) and (ours.min() < 0 or ours.max() >= self.vocab_size):
                raise StoreError(f"expected ids 0..{self.vocab_size - 1} to decode, found {ours.min()}..{ours.max()}.")
            rows.append(self.kept_V[ours].tolist())
        texts = list(self.base.decode_batch(rows, skip_special_tokens=False))
        return [detokenise(text) for text in texts] if self._loses_spaces else texts

    @functools.cached_property
    def _loses_spaces(self) -> bool:
        """Whether the vocabulary is WordPiece, which does not record where the spaces of a text were."""
        decoder = json.loads(self.base.to_str()).get("decoder")
        return decoder is not None and decoder["type"] == "WordPiece"

    def token(self, index: int) -> str:
        """Return the token with this id as the vocabulary spells it."""
        return str(self.base.id_to_token(int(self.kept_V[index])))

    # -- folders ------------------------------------------------------------------------------------------------------

    def with_vocabulary(self, base_ids: npt.NDArray[np.int64]) -> TextTokenizer:
        """Return the same tokenizer restricted to these base ids and the special ones."""
        return TextTokenizer(self.base, max_length=self.max_length, kept=base_ids)

    def save(self, directory: str | Path) -> None:
        """Write the folder, replacing an existing one."""
        names = [field.name for field in dataclasses.fields(_Vocabulary)]
        kept = self.kept_V.tolist() if self.reduced else None
        document = {"format_version": FORMAT_VERSION, "kept": kept}
        document |= {name: getattr(self, name) for name in names if name not in document}
        with new_directory(directory) as temporary:
            for name, text in zip(_FILES, (self.base.to_str(pretty=True), json.dumps(document)), strict=True):
                (temporary / name).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> TextTokenizer:
        """Read a folder written by `save`.

        Raises:
            StoreError: files are missing, damaged, or do not belong together.
        """
        from tokenizers import Tokenizer

        base_file, file = (InputFile(Path(directory) / name, remedy="Run ingestion again.") for name in _FILES)
        base_file.check()
        document = file.json(_Vocabulary)
        if document.format_version != FORMAT_VERSION or not 0 < document.max_length < 2**31:
            found = f"{document.format_version} and {document.max_length}"
            file.refuse(f"the format version {FORMAT_VERSION} and a maximum length", found)
        try:
            base = Tokenizer.from_file(str(base_file.path))
            kept = None if document.kept is None else np.asarray(document.kept, np.int64)
        except Exception as error:  # the Rust library raises plain Exception
            base_file.refuse("a saved tokenizer", f"an error ({reason_of(error)})")
        if kept is not None and not 0 <= kept.min(initial=0) <= kept.max(initial=0) < document.base_size:
            file.refuse(f"ids below {document.base_size} under 'kept'", f"{kept.min()} to {kept.max()}")
        tokenizer = cls(base, max_length=document.max_length, kept=kept)
        if tokenizer.fingerprint != document.fingerprint:
            base_file.refuse(f"a tokenizer with fingerprint {document.fingerprint}", tokenizer.fingerprint)
        tokenizer.directory = Path(directory)
        return tokenizer


def load_tokenizer(config: TokenizerConfig) -> TextTokenizer:
    """Load the tokenizer that the parameters name, with its entire vocabulary.

    Raises:
        ConfigurationError: it cannot be found or read.
    """
    if config.path is None:
        base = pretrained.from_name(config.name, revision=config.revision)
    else:
        base = pretrained.from_path(Path(config.path), lowercase=config.lowercase)
    return TextTokenizer(base, max_length=config.max_length)


def complete_specials(base: Any) -> Any:
    """Add missing pad, mask and unknown tokens. Changes and returns `base`."""
    from tokenizers import AddedToken

    missing = [names[0] for names in (PADS, MASKS, UNKNOWNS) if _find(base, names) is None]
    base.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
    return base


def split_text(text: str, tokenizer: TextTokenizer, *, max_length: int) -> list[tuple[str, int]]:
    """Split a text into (piece, length in tokens), in order; joined by spaces, the pieces give the words of the text.

    Each piece is tokenised by itself. A piece that is still longer than `max_length` could not be split (a single
    character with more tokens); the caller refuses it.
    """
    text = " ".join(text.split())
    spans = tokenizer.spans(text)
    if len(spans) <= max_length:
        return [(text, len(spans))]
    pieces: list[tuple[str, int]] = []
    start = 0  # first token of the piece
    while start < len(spans):
        first, stop, last = spans[start][0], start + max_length, len(text)
        if stop < len(spans):
            starts = ((token, spans[token][0]) for token in range(stop, start, -1))
            stop = next((token for token, at in starts if at > first and " " in text[at - 1 : at + 1]), stop)
        while stop < len(spans) and spans[stop][0] == first:  # one character has several tokens
            stop += 1
        if stop < len(spans):
            last = spans[stop][0]
        piece, start = text[first:last].strip(), stop
        if piece == text:
            return [(text, len(spans))]
        if piece:  # alone it may have more tokens than inside the text
            pieces += split_text(piece, tokenizer, max_length=max_length)
    return pieces


def _find(base: Any, names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := base.token_to_id(name)) is not None), None)
