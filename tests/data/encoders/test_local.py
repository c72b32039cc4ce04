"""Weights of encoders: found by name, folder, package or hub; the fingerprint is that of everything that decides vectors."""

import dataclasses
import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.damage import refused_or_harmless
from tests.data.encoders.tiny import plain_modules

from mm_ldlm.core import ConfigurationError, EncoderError
from mm_ldlm.data.encoders import REGISTRY, EncoderSpec, LocalEncoderConfig, load_encoder, parse_encoder

DECIDES: dict[str, Any] = {
    "pooling": "cls", "prompt": "say: ", "padding_side": "left", "max_length": 99, "normalised": False,
    "final_token": "<end>", "language": "deu_Latn", "architecture": "t5_encoder",
}  # fmt: skip
DESCRIBES: dict[str, Any] = {
    "name": "other", "source": "a/b", "revision": "0" * 40, "dim": 7, "truncation": (1, 9), "licence": "MIT",
    "digests": (("x", "y"),),
}  # fmt: skip
"""Fields of a spec with other values: those that decide the vectors, and the others"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder that is identified and never loaded."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 40}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def located(folder: Path, name: str = "minilm", **options: Any) -> Any:
    return LocalEncoderConfig(name=name, path=str(folder), **options).locate()


def test_every_field_of_a_spec_is_in_the_fingerprint_or_decides_nothing(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {field.name for field in dataclasses.fields(EncoderSpec)} == {*DECIDES, *DESCRIBES}
    plain, marks = REGISTRY["minilm"], {located(bare).fingerprint}
    for name, value in (DECIDES | DESCRIBES).items():
        monkeypatch.setitem(REGISTRY, "minilm", dataclasses.replace(plain, **{name: value}))
        marks.add(located(bare).fingerprint)
    assert len(marks) == 1 + len(DECIDES)
    monkeypatch.setitem(REGISTRY, "minilm", dataclasses.replace(plain, truncation=(1, 99), language="x"))
    before = located(bare).fingerprint
    changes: tuple[dict[str, Any], ...] = (
        {"truncate_dim": 5}, {"truncate_dim": 6}, {"dtype": "bfloat16"}, {"language": "fra_Latn"}, {"prompt": "x"},
        {"max_length": 9},
    )  # fmt: skip
    assert len({before, *(located(bare, **change).fingerprint for change in changes)}) == 1 + len(changes)
    same: tuple[dict[str, Any], ...] = (
        {"device": "cuda"},
        {"batch_tokens": 17, "batch_rows": 3},
        {"truncate_dim": 40},
        {"max_length": 999},
    )
    assert {located(bare, **change).fingerprint for change in same} == {before}


@pytest.mark.parametrize(
    ("name", "decides"),
    [*((name, True) for name in (
        "model.safetensors", "weights-2.safetensors", "config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
        "config_sentence_transformers.json", "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model",
        "tokenizer_config.json", "sentencepiece.bpe.model")),
     *((name, False) for name in (
        "README.md", "pytorch_model.bin", "onnx/model.safetensors", ".hidden.json", ".model.safetensors"))],
)  # fmt: skip
def test_every_file_that_decides_the_vectors_is_in_the_fingerprint(name: str, decides: bool, bare: Path) -> None:
    before = located(bare).fingerprint
    (bare / name).parent.mkdir(exist_ok=True)
    (bare / name).write_text('{"hidden_size":  40}')
    assert (located(bare).fingerprint != before) == decides
    if name.endswith(".bin"):
        (bare / "model.safetensors").unlink()
        assert located(bare).fingerprint != before, "without other weights, these are loaded"


def test_options_replace_the_spec_and_the_folder_states_the_dimension(bare: Path, refuses: Any) -> None:
    found = located(bare, "qwen3", truncate_dim=33, max_length=10_000, dtype="bfloat16", revision="ignored")
    assert (found.dim, found.spec.dim, found.spec.max_length, found.spec.revision) == (33, 40, 8192, None)
    about = found.describe()
    assert (about["dim"], about["dtype"], about["fingerprint"]) == (33, "bfloat16", found.fingerprint)
    assert str(bare) not in json.dumps(about)
    assert LocalEncoderConfig(path=str(bare), device="cuda").portable() == LocalEncoderConfig().portable()
    assert located(bare, "e5", prompt="").spec.prompt == ""
    with refuses(EncoderError, "41", "40"):
        located(bare, "qwen3", truncate_dim=41)
    for key, dim in (("d_model", 24), ("other", 1024)):
        (bare / "config.json").write_text(json.dumps({key: 24}))
        assert located(bare, "t5").dim == dim


@pytest.mark.parametrize(
    ("values", "key"),
    [({"name": "minilmm"}, "name"), ({"name": "../folder/x"}, "name"), ({"name": "/a/folder"}, "name"), ({"name": "e5", "truncate_dim": 128}, "truncate_dim"),
     ({"name": "qwen3", "truncate_dim": 16}, "truncate_dim"), ({"name": "t5", "dtype": "float16"}, "dtype"),
     ({"name": "e5", "language": "eng_Latn"}, "language"), ({"trust_remote_code": True}, "trust_remote_code")],
)  # fmt: skip
def test_parameters_that_cannot_be_right_are_refused(values: dict[str, Any], key: str, refuses: Any) -> None:
    with refuses(ConfigurationError, f"encoder.{key}"):
        parse_encoder(values)


# -- package and hub ---------------------------------------------------------------------------------------------------


def test_the_default_is_a_package_with_checked_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = LocalEncoderConfig(device="cpu")
    vectors = load_encoder(config).encode(["A man plays a guitar.", "Someone plays the guitar.", "The market fell."])
    cosine = vectors @ vectors.T
    assert cosine[0, 1] > 0.7 > 0.3 > cosine[0, 2]
    shutil.copytree(config.locate().folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "model/model.safetensors").write_bytes(b"something else")
    (tmp_path / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location("package", tmp_path / "__init__.py")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(EncoderError, match=r"model\.safetensors with sha256 53aa5117"):
        config.locate()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EncoderError, match="pip install"):
        config.locate()


ON_THE_HUB = [name for name, spec in REGISTRY.items() if "/" in spec.source]


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_an_encoder_of_the_hub_is_pinned_and_one_that_cannot_be_had_names_what_to_fetch(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert re.fullmatch("[0-9a-f]{40}", REGISTRY[name].revision or "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EncoderError) as caught:
        LocalEncoderConfig(name=name).locate()
    for part in (REGISTRY[name].source, str(REGISTRY[name].revision), str(tmp_path), "encoder.path", "hf download"):
        assert part in str(caught.value)


def test_weights_of_the_pinned_revision_have_the_pinned_digests(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda *_, allow_patterns, revision, **__: asked.append((allow_patterns[-1], revision)) or str(bare),
    )
    with pytest.raises(EncoderError, match=r"model\.safetensors with sha256 6b9e604e8707.*, found [0-9a-f]{64}"):
        LocalEncoderConfig(name="sonar").locate()
    chosen = LocalEncoderConfig(name="sonar", revision="0" * 40).locate()
    assert chosen.describe()["revision"] == "0" * 40
    (bare / "model.safetensors").unlink()
    LocalEncoderConfig(name="sonar", revision="0" * 40).locate()
    first, *others = asked
    assert first == ("*.safetensors", REGISTRY["sonar"].revision)
    assert others == [(files, "0" * 40) for files in ("*.safetensors", "*.safetensors", "pytorch_model*.bin")]


# -- folders of sentence-transformers ----------------------------------------------------------------------------------

MEAN: dict[str, Any] = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
PROMPT: dict[str, Any] = {"prompts": {"s": "say: ", "t": "x"}, "default_prompt_name": "s"}
LIBRARY = "sentence_transformers"


@pytest.mark.parametrize(
    ("modules", "files", "expected"),
    [
        (["Pooling", "Normalize"], {"pooling": MEAN}, ("auto", "mean", True, 24, "")),
        (["Pooling"], {"pooling": {"pooling_mode": "cls"}}, ("auto", "cls", False, 24, "")),
        (["Pooling"], {"pooling": MEAN, "settings": PROMPT}, ("auto", "mean", False, 24, "say: ")),
        (["Pooling"], {"pooling": MEAN, "settings": {"prompts": {"s": "say: "}}}, ("auto", "mean", False, 24, "")),
        (["Pooling"], {"pooling": MEAN | {"include_prompt": False}, "settings": PROMPT}, (LIBRARY, "mean", False, 24, "say: ")),
        (["Pooling"], {"pooling": {"pooling_mode_lasttoken": True}}, (LIBRARY, "mean", False, 24, "")),
        (["Pooling"], {"pooling": MEAN | {"pooling_mode_max_tokens": True}}, (LIBRARY, "mean", False, 24, "")),
        (["Pooling", "Dense", "Normalize"], {}, (LIBRARY, "mean", True, 24, "")),
        (["Pooling"], {"lower": True}, (LIBRARY, "mean", False, 24, "")),
        (["Pooling"], {"limit": None}, (LIBRARY, "mean", False, 512, "")),
    ],
)  # fmt: skip
def test_the_spec_of_a_folder_is_read_from_its_files(
    modules: list[str], files: dict[str, Any], expected: tuple[Any, ...], bare: Path
) -> None:
    found = located(plain_modules(bare, *modules, **files), "mine").spec
    assert (found.architecture, found.pooling, found.normalised, found.max_length, found.prompt) == expected


def test_a_damaged_description_of_a_folder_is_refused_or_harmless(bare: Path, refuses: Any) -> None:
    with refuses(EncoderError, bare, "modules.json"):
        located(bare, "mine")
    plain_modules(bare, "Pooling", "Normalize", settings=PROMPT)
    for path in [*bare.glob("*.json"), *bare.glob("*/config.json")]:
        refused_or_harmless(path, lambda: located(bare, "mine") and None, bare, "'mine'")
