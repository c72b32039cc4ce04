"""The text tokenizer: any Hugging Face tokenizer, without [CLS] and [SEP], over its whole vocabulary or a part of it.

A saved tokenizer is a folder with `tokenizer.json` (the base tokenizer, with pad, mask and unknown tokens added where
missing) and `vocabulary.json` (the base ids that are kept, and the three special ids). Loading it needs only the
`tokenizers` package.
"""

from __future__ import annotations

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

from mm_ldlm.core.config import InvalidValue, Size, config
from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.core.files import InputFile, new_directory
from mm_ldlm.core.messages import show
from mm_ldlm.data.corpus import pretrained
from mm_ldlm.data.corpus.detokenising import detokenise
from mm_ldlm.data.corpus.sources.base import Unusable
from mm_ldlm.data.store.fingerprint import fingerprint

FORMAT_VERSION = 1
MASKS = ("[MASK]", "<mask>", "<|mask|>")
PADS = ("[PAD]", "<pad>", "<|pad|>")
_THREADS = 16
_ROWS_PER_THREAD = 512
UNKNOWNS = ("[UNK]", "<unk>", "<|unk|>")


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
            stay whole) or "split" (at word boundaries, each piece becomes a record).
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

    def check(self, lengths: Sequence[int], text: str) -> None:
        """Raise `Unusable` for a text, or a pair of texts, with too few or too many tokens."""
        for length in lengths:
            if length < self.min_length:
                reason = "too_few_tokens" if length else "no_tokens"
                raise Unusable(reason, f"{length} tokens, tokenizer.min_length is {self.min_length}", text)
            if length > self.max_length:
                detail = f"{length} tokens, tokenizer.max_length is {self.max_length}"
                raise Unusable("too_many_tokens", detail, text)

    def input_files(self) -> Iterator[tuple[str, str]]:
        if self.path is not None:
            yield "path", self.path


class TextTokenizer:
    """A tokenizer with the part of its vocabulary that is used.

    Attributes:
        vocab_size: ids are 0 .. vocab_size - 1, special ids included.
        pad_id, mask_id: never produced by encoding.
        unk_id: replaces tokens outside the vocabulary.
        max_length: maximum number of tokens in a sequence, as prepared for training.
        kept_V: (V,) int64, the base id of each id, ascending; all base ids unless the vocabulary was reduced.
        fingerprint: digest of everything that decides the ids of a text.
    """

    directory: Path | None = None
    """where it was loaded from"""

    def __init__(self, base: Any, *, max_length: int, kept: npt.NDArray[np.int64] | None = None) -> None:
        self.base = base
        base.no_padding()
        base.no_truncation()
        base.encode_special_tokens = True  # "[MASK]" in a text is ordinary text
        self.max_length = max_length
        specials = [found for names in (PADS, MASKS, UNKNOWNS) if (found := _find(base, names)) is not None]
        if len(specials) < 3:
            raise StoreError(
                "expected a tokenizer with pad, mask and unknown tokens. Add them with `complete_specials`."
            )
        self.base_size = int(base.get_vocab_size(with_added_tokens=True))
        every = np.arange(self.base_size, dtype=np.int64)
        self.kept_V = every if kept is None else np.union1d(kept, np.array(specials, np.int64)).astype(np.int64)
        if len(self.kept_V) and self.kept_V[-1] >= self.base_size:
            raise StoreError(
                f"the vocabulary keeps base id {self.kept_V[-1]}, but the tokenizer has {self.base_size} tokens."
            )
        self._from_base = np.full(self.base_size, -1, np.int64)
        self._from_base[self.kept_V] = np.arange(len(self.kept_V))
        self.pad_id, self.mask_id, self.unk_id = (int(self._from_base[special]) for special in specials)
        self._to_ours = np.where(self._from_base < 0, self.unk_id, self._from_base).astype(np.int32)
        self._to_ours[specials[:2]] = self.unk_id  # a unigram model may find "<pad>" in a text as an ordinary piece

    @property
    def vocab_size(self) -> int:
        return len(self.kept_V)

    @property
    def reduced(self) -> bool:
        return self.vocab_size < self.base_size

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
        values, offsets = self.encode_arrays(texts)
        flat = values.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(offsets.tolist())]

    def encode_arrays(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return (values, offsets): text i is `values[offsets[i]:offsets[i + 1]]`."""
        values, offsets = self.encode_base(texts)
        return self._to_ours[values], offsets

    def encode_base(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the same in ids of the whole vocabulary. Large batches use several threads (Rust releases the GIL)."""
        texts = list(texts)
        pieces = max(1, min(_THREADS, os.cpu_count() or 1, len(texts) // _ROWS_PER_THREAD))
        if pieces == 1:
            found = self._ids(texts)
        else:
            cuts = [len(texts) * i // pieces for i in range(pieces + 1)]
            with ThreadPoolExecutor(pieces) as pool:
                parts = pool.map(self._ids, [texts[a:b] for a, b in itertools.pairwise(cuts)])
                found = list(itertools.chain.from_iterable(parts))
        offsets = np.zeros(len(found) + 1, np.int64)
        np.cumsum([len(ids) for ids in found], out=offsets[1:])
        return np.fromiter(itertools.chain.from_iterable(found), np.int64, count=int(offsets[-1])), offsets

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.base.encode_batch_fast(texts, add_special_tokens=False)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where each token of a text stands in it: the first character, and the one after the last."""
        return list(self.base.encode(text, add_special_tokens=False).offsets)

    def without_special_ends(self, base_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return base ids without the special tokens at their ends ([CLS], [SEP], padding); unknown tokens stay."""
        inner = np.flatnonzero(~np.isin(base_ids, self._frame_ids))
        return base_ids[inner[0] : inner[-1] + 1] if len(inner) else base_ids[:0]

    @functools.cached_property
    def _frame_ids(self) -> list[int]:
        """Base ids of special tokens that other programs put before and after a text."""
        added = {index: token for index, token in self.base.get_added_tokens_decoder().items() if token.special}
        return [index for index, token in added.items() if token.content not in (*UNKNOWNS, *MASKS)]

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
            StoreError: An id is outside the vocabulary.
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
        return TextTokenizer(self.base, max_length=self.max_length, kept=np.unique(base_ids))

    def save(self, directory: str | Path) -> None:
        """Write the folder, replacing an existing one."""
        with new_directory(directory) as temporary:
            (temporary / "tokenizer.json").write_text(self.base.to_str(pretty=True), encoding="utf-8")
            document = {
                "format_version": FORMAT_VERSION,
                "fingerprint": self.fingerprint,
                "max_length": self.max_length,
                "vocab_size": self.vocab_size,
                "base_size": self.base_size,
                "pad_id": self.pad_id,
                "mask_id": self.mask_id,
                "unk_id": self.unk_id,
                "kept": self.kept_V.tolist() if self.reduced else None,
            }
            (temporary / "vocabulary.json").write_text(json.dumps(document), encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> TextTokenizer:
        """Read a folder written by `save`.

        Raises:
            StoreError: Files are missing, damaged, or do not belong together.
        """
        from tokenizers import Tokenizer

        directory = Path(directory)
        document = InputFile(directory / "vocabulary.json", remedy="Run ingestion.").json(dict)
        file = InputFile(directory / "tokenizer.json", remedy="Run ingestion.").check()
        try:
            base = Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust library raises plain Exception
            raise StoreError(
                f"{directory}: the saved tokenizer cannot be read ({error}). Run ingestion again."
            ) from None
        found = document.get("format_version") if isinstance(document, dict) else None
        if found != FORMAT_VERSION:
            raise StoreError(
                f"{directory}: expected tokenizer format {FORMAT_VERSION}, found {found!r}. Run ingestion again."
            )
        try:
            kept = None if document["kept"] is None else np.asarray(document["kept"], np.int64)
            if type(max_length := document["max_length"]) is not int or max_length < 1:
                raise ValueError(f"max_length is {show(max_length, 60)}")
            tokenizer, expected = cls(base, max_length=max_length, kept=kept), document["fingerprint"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StoreError(
                f"{directory}: a field of vocabulary.json is missing or of another type ({error}). Run ingestion again."
            ) from None
        if tokenizer.fingerprint != expected:
            raise StoreError(
                f"{directory}: expected a tokenizer with fingerprint {expected}, found "
                f"{tokenizer.fingerprint}: tokenizer.json or vocabulary.json was changed. Run ingestion again."
            )
        tokenizer.directory = directory
        return tokenizer


def complete_specials(base: Any) -> Any:
    """Add missing pad, mask and unknown tokens. Changes and returns `base`."""
    from tokenizers import AddedToken

    for names in (PADS, MASKS, UNKNOWNS):
        if _find(base, names) is None:
            base.add_special_tokens([AddedToken(names[0], special=True, normalized=False)])
    return base


def load_tokenizer(config: TokenizerConfig) -> TextTokenizer:
    """Load the tokenizer that the parameters name, with its whole vocabulary.

    Raises:
        ConfigurationError: It cannot be found; the message lists the places that were tried.
    """
    if config.path is not None:
        base = pretrained.from_path(Path(config.path), lowercase=config.lowercase)
    elif config.name == pretrained.EMBEDDED_NAME:
        base = pretrained.from_package()
    else:
        base = pretrained.from_hub(config.name, revision=config.revision)
    try:
        return TextTokenizer(complete_specials(base), max_length=config.max_length)
    except StoreError as error:
        raise ConfigurationError(f"parameter 'tokenizer': {error}") from None


def _find(base: Any, names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := base.token_to_id(name)) is not None), None)
