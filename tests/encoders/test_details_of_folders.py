"""Local encoders: names of files, keys of their JSON, messages of the hub, batches, and tokens at the end of a text."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.data.encoders.spec import EncoderSpec

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.encoders import LocalEncoderConfig, load_encoder, transformer, weights
from mm_ldlm.data.encoders.sentence_transformers import SentenceTransformersEncoder
from mm_ldlm.data.encoders.transformer import TransformerEncoder
from mm_ldlm.data.encoders.weights import LocatedWeights, locate_weights

Tiny = Callable[[str], Path]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder that is identified and never loaded."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 40}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


# -- the fingerprint and the spec of a folder --------------------------------------------------------------------------


def test_files_of_one_name_in_two_folders_are_two_files(bare: Path) -> None:
    """Two configurations that change places are another encoder."""
    (bare / "1_Pooling").mkdir()
    (bare / "1_Pooling/config.json").write_text('{"hidden_size": 40, "a": 1}')
    before = locate_weights("minilm", path=str(bare)).fingerprint
    first, second = (bare / "config.json").read_text(), (bare / "1_Pooling/config.json").read_text()
    (bare / "config.json").write_text(second)
    (bare / "1_Pooling/config.json").write_text(first)
    assert locate_weights("minilm", path=str(bare)).fingerprint != before


@pytest.mark.parametrize("name", ["openvino/model.safetensors", "onnx/config.json", "a/onnx/config.json"])
def test_other_formats_of_the_weights_decide_nothing(name: str, bare: Path) -> None:
    before = locate_weights("minilm", path=str(bare)).fingerprint
    (bare / name).parent.mkdir(parents=True)
    (bare / name).write_text("{}")
    assert locate_weights("minilm", path=str(bare)).fingerprint == before


@pytest.mark.parametrize(
    ("config", "dim"),
    [({"hidden_size": 24, "d_model": 9}, 24), ({"d_model": 9}, 9), ({"hidden_size": "x", "d_model": 9}, 9),
     ({"hidden_size": None}, 384), ({"hidden_size": 24.5}, 384), ({}, 384)],
)  # fmt: skip
def test_the_dimension_is_a_whole_number_of_the_configuration_or_that_of_the_spec(
    config: dict[str, Any], dim: int, bare: Path
) -> None:
    (bare / "config.json").write_text(json.dumps(config))
    found = locate_weights("minilm", path=str(bare))
    assert (found.dim, found.spec.dim, found.describe()["dim"]) == (dim, dim, dim)


def test_a_file_that_is_missing_or_differs_from_its_digest_is_named_in_full(bare: Path) -> None:
    spec = EncoderSpec(name="e", source="e", digests=(("config.json", "0" * 64), ("vocab.txt", "1" * 64)))
    again = "Install or fetch the weights again, or set encoder.path to use others."
    with pytest.raises(EncoderError) as error:
        weights._check_digests(spec, bare)
    found = weights.file_sha256(bare / "config.json")
    assert str(error.value) == (
        f"encoder 'e': expected {bare / 'config.json'} with sha256 {'0' * 64}, found {found}. {again}"
    )
    with pytest.raises(EncoderError) as error:
        weights._check_digests(
            dataclasses.replace(spec, digests=(("config.json", found), ("vocab.txt", "1" * 64))), bare
        )
    assert str(error.value) == (
        f"encoder 'e': expected {bare / 'vocab.txt'} with sha256 {'1' * 64}, found no such file. {again}"
    )


def folder_of_modules(folder: Path, *kinds: str, pooling: Any = None, settings: Any = None) -> Path:
    listed = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, kind in enumerate(kinds, start=1):
        listed.append({"path": f"{number}_{kind}", "type": f"sentence_transformers.models.{kind}"})
        (folder / f"{number}_{kind}").mkdir()
        given = {"pooling_mode_mean_tokens": True} | (pooling or {}) if kind == "Pooling" else {}
        (folder / f"{number}_{kind}" / "config.json").write_text(json.dumps(given))
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("kinds", "pooling", "settings", "expected"),
    [
        (["Pooling", "Normalize", "Dense"], None, None, ("sentence_transformers", False, "")),
        (["Pooling", "Normalize"], None, None, ("auto", True, "")),
        (["Pooling"], {"pooling_mode_of_another_kind": 1}, None, ("auto", False, "")),
        (["Pooling"], {"pooling_mode_of_another_kind": True}, None, ("sentence_transformers", False, "")),
        (["Pooling"], None, {"prompts": None, "default_prompt_name": None}, ("auto", False, "")),
        (["Pooling"], None, {"prompts": {"a": "x"}, "default_prompt_name": "b"}, ("auto", False, "")),
        (["Pooling"], {"pooling_mode_mean_tokens": False}, None, ("sentence_transformers", False, "")),
    ],
)  # fmt: skip
def test_modules_that_are_not_plain_are_left_to_the_library(
    kinds: list[str], pooling: Any, settings: Any, expected: Any, tmp_path: Path
) -> None:
    found = weights._spec_of_folder(
        "m", "m", None, folder_of_modules(tmp_path, *kinds, pooling=pooling, settings=settings)
    )
    assert (found.architecture, found.normalised, found.prompt) == expected


def test_a_damaged_file_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(EncoderError) as error:
        weights._spec_of_folder("m", "m", None, tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'modules.json'} cannot be read as JSON (")


# -- packages and the hub ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [None, "r1"])
@pytest.mark.parametrize("kind", ["LocalEntryNotFoundError", "HFValidationError", "ValueError", "OSError"])
def test_a_model_that_the_hub_does_not_give_is_one_sentence(
    kind: str, revision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    def fail(*_: Any, **__: Any) -> str:
        raise getattr(errors, kind, {"ValueError": ValueError, "OSError": OSError}.get(kind))("a\nlong story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "the-cache")
    with pytest.raises(EncoderError) as error:
        locate_weights("owner/model", revision=revision)
    at, option = (" at revision r1", " --revision r1") if revision else ("", "")
    assert str(error.value) == (
        f"encoder 'owner/model': the model owner/model{at} is neither in the cache the-cache nor reachable on the hub "
        f"({kind}); on a machine with network run `hf download owner/model{option} --local-dir FOLDER`, copy the "
        "folder here and set encoder.path to it."
    )


def test_weights_may_be_in_a_folder_of_their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def download(source: str, **options: Any) -> str:
        asked.append((source, options))
        return str(tmp_path)

    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "0_Transformer/model.safetensors").touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert weights._hub_folder("m", "owner/model", "r1") == tmp_path
    ((source, options),) = asked
    assert (source, options.pop("revision")) == ("owner/model", "r1")
    assert options == {
        "allow_patterns": ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"],
        "ignore_patterns": ["onnx/*", "openvino/*", "*/onnx/*", "*.msgpack", "*.h5", "*.ot"],
    }  # fmt: skip


def test_a_folder_of_the_name_of_a_package_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights_without_a_file").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(EncoderError) as error:
        weights._package_folder("m", "weights_without_a_file")
    assert str(error.value) == (
        "encoder 'm': the package weights-without-a-file, which contains its weights, is not installed. Run pip "
        "install weights-without-a-file, or set encoder.path to a folder with the model."
    )


# -- the transformer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "side"), [("e5", "right"), ("qwen3", "left")])
@pytest.mark.parametrize(("rows", "tokens"), [(2, 10_000), (100, 24), (3, 16)])
def test_batches_keep_their_limits_and_are_filled_with_the_padding_token(
    rows: int, tokens: int, name: str, side: str, tiny: Tiny
) -> None:
    config = LocalEncoderConfig(name=name, path=str(tiny(name)), device="cpu", batch_rows=rows, batch_tokens=tokens)
    encoder: Any = load_encoder(config)
    texts = ["a", "the cat sat on", "it is", "a b c d e f", "the", "red blue green", "a b"]
    prepared = encoder.prepare(texts)
    assert prepared.rows == len(texts)
    assert sorted(index for chosen, *_ in prepared.batches for index in chosen) == list(range(len(texts)))
    alone = encoder.tokenise(texts)
    for chosen, ids, valid in prepared.batches:
        assert len(chosen) <= rows
        assert ids.size <= tokens or len(chosen) == 1
        valid = np.ones(ids.shape, bool) if valid is None else valid
        for place, index in enumerate(chosen):
            assert ids[place][valid[place]].tolist() == alone[index]
        assert (ids[~valid] == encoder.pad_id).all()
        outer = valid[:, -1 if side == "left" else 0]
        assert outer.all(), "padding is on the other side"


def test_batches_are_computed_in_as_many_lanes_as_asked_for(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder: Any = load_encoder(LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu", batch_rows=2))
    asked: list[Any] = []
    real = transformer.side_by_side

    def watched(function: Any, items: Any, *, lanes: int) -> Any:
        asked.append((len(items), lanes))
        return real(function, items, lanes=lanes)

    monkeypatch.setattr(transformer, "side_by_side", watched)
    prepared = encoder.prepare(["a", "b", "c"])
    encoder.run(prepared)
    encoder.run(prepared, lanes=3)
    assert asked == [(2, 1), (2, 3)]


@pytest.mark.parametrize(
    ("ids", "unknown", "end", "appended"),
    [([5, 9], 0, None, None), ([9, 5], 0, None, 9), ([5], 0, None, 9), ([5, 9, 6], 0, 6, 9), ([9], 9, 9, None)],
)
def test_the_final_token_is_appended_where_a_text_does_not_end_with_it(
    ids: list[int], unknown: int, end: int | None, appended: int | None
) -> None:
    class Tokenizer:
        unk_token_id, eos_token_id = unknown, end

        def convert_tokens_to_ids(self, token: str) -> int | None:
            return {"<end>": 9}.get(token)

        def __call__(self, text: str) -> Any:
            return {"input_ids": ids}

    encoder = object.__new__(TransformerEncoder)
    spec = EncoderSpec(name="e", source="e", final_token="<end>")
    vars(encoder).update(tokenizer=Tokenizer(), located=SimpleNamespace(spec=spec))
    assert encoder._missing_final_token() == appended
    for token, unk in (("<other>", 0), ("<end>", 9)):
        if token == "<end>" and (unknown, end) != (0, None):
            continue
        encoder.tokenizer.unk_token_id = unk
        vars(encoder).update(located=SimpleNamespace(spec=dataclasses.replace(spec, final_token=token)))
        with pytest.raises(EncoderError) as error:
            encoder._missing_final_token()
        assert str(error.value) == (
            f"encoder 'e': its tokenizer has no token {token}, which its spec needs for pooling. Use the tokenizer "
            "that belongs to the weights."
        )


def test_the_first_of_the_missing_weights_is_the_first_by_name(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    located: Any = LocalEncoderConfig(name="minilm", path=str(tiny("minilm"))).locate()
    report = {"missing_keys": ["layer.2", "layer.10", "layer.1"]}
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", lambda *_, **__: (None, report))
    with pytest.raises(EncoderError) as error:
        transformer._load_model(located)
    assert str(error.value) == (
        f"encoder 'minilm': 3 weights are missing from {located.folder} (first: layer.1); they would be random. The "
        "folder contains another architecture or is damaged: fetch the model again."
    )


@pytest.mark.parametrize("dim", [31, 33])
def test_a_model_with_more_or_fewer_dimensions_than_its_spec_is_refused(dim: int, tiny: Tiny) -> None:
    located: Any = LocalEncoderConfig(name="minilm", path=str(tiny("minilm"))).locate()
    located = dataclasses.replace(located, spec=dataclasses.replace(located.spec, dim=dim))
    with pytest.raises(EncoderError, match=rf"expected dimension {dim} \(its spec\), found 32\."):
        TransformerEncoder(located, device="cpu", batch_tokens=99, batch_rows=9)


@pytest.mark.parametrize("gpu", [True, False])
def test_auto_is_the_gpu_for_the_library_too(gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    class Library:
        max_seq_length = 9

        def __init__(self, folder: str, *, device: str, **_: Any) -> None:
            devices.append(device)

        def encode(self, texts: list[str], **options: Any) -> Any:
            return np.ones((len(texts), 5))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Library)
    spec = EncoderSpec(name="m", source="m", architecture="sentence_transformers")
    located = LocatedWeights(spec=spec, folder=tmp_path, truncate_dim=None, dtype="float32", fingerprint="f")
    for wanted in ("auto", "cpu", "cuda:1"):
        SentenceTransformersEncoder(located, device=wanted, max_length=None, batch_rows=2)
    assert devices == ["cuda" if gpu else "cpu", "cpu", "cuda:1"]
