"""Location of encoders by name, folder and hub cache, and the errors for those that are not available."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mm_ldlm.config import parse
from mm_ldlm.encoders import REGISTRY, LocalEncoderConfig, load_encoder, locate_encoder
from mm_ldlm.encoders.weights import _spec_of_folder
from mm_ldlm.errors import ConfigurationError, EncoderError

Tiny = Callable[[str], Path]
Folder = Callable[..., Path]


def test_the_default_is_the_checked_package_with_real_weights() -> None:
    encoder = load_encoder(LocalEncoderConfig(device="cpu"))
    vectors = encoder.encode(["A man is playing a guitar.", "Someone plays the guitar.", "The stock market fell."])
    assert vectors.shape == (3, 384)
    cosine = vectors @ vectors.T
    assert cosine[0, 1] > 0.7 > 0.3 > cosine[0, 2]


def test_the_default_equals_sentence_transformers_on_the_same_weights() -> None:
    from sentence_transformers import SentenceTransformer

    located = locate_encoder(LocalEncoderConfig())
    sentences = ["Hello there.", "A much longer sentence with quite a few more words in it.", "Yes!"]
    expected = SentenceTransformer(str(located.folder), device="cpu").encode(sentences)
    np.testing.assert_allclose(load_encoder(LocalEncoderConfig(device="cpu")).encode(sentences), expected, atol=1e-5)


def test_a_package_with_other_weights_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = locate_encoder(LocalEncoderConfig()).folder
    (tmp_path / "model").mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer.json"):
        shutil.copy(real / name, tmp_path / "model" / name)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"something else")
    monkeypatch.setattr("mm_ldlm.encoders.weights._package_folder", lambda name, package: tmp_path / "model")
    with pytest.raises(EncoderError, match=r"model\.safetensors with sha256 53aa5117"):
        locate_encoder(LocalEncoderConfig())


def test_weights_of_a_pinned_revision_have_the_pinned_digest(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.encoders.weights._hub_folder", lambda name, source, revision: tiny("sonar"))
    with pytest.raises(
        EncoderError, match=r"expected .*model\.safetensors with sha256 6b9e604e8707.*, found [0-9a-f]{64}"
    ):
        locate_encoder(LocalEncoderConfig(name="sonar"))
    other = locate_encoder(LocalEncoderConfig(name="sonar", revision="0" * 40))  # chosen by the user
    assert other.describe()["revision"] == "0" * 40


@pytest.mark.parametrize("name", [name for name, spec in REGISTRY.items() if "/" in spec.source])
def test_every_encoder_of_the_hub_is_pinned(name: str) -> None:
    assert re.fullmatch("[0-9a-f]{40}", REGISTRY[name].revision or "")


@pytest.mark.parametrize("name", [name for name, spec in REGISTRY.items() if "/" in spec.source])
def test_an_unreachable_hub_is_one_clear_sentence(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    def offline(*_: object, **__: object) -> str:
        from huggingface_hub.errors import LocalEntryNotFoundError

        raise LocalEntryNotFoundError("no network\nand a long story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(EncoderError) as caught:
        locate_encoder(LocalEncoderConfig(name=name))
    text = str(caught.value)
    assert "\n" not in text
    spec = REGISTRY[name]
    for part in (spec.source, constants.HF_HUB_CACHE, "encoder.path", f"hf download {spec.source}"):
        assert part in text
    assert str(spec.revision) in text


def test_the_hub_client_raises_the_same_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EncoderError, match="neither in the cache"):
        locate_encoder(LocalEncoderConfig(name="e5"))


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'minilmm' is neither in the registry \(minilm, sonar"):
        parse(LocalEncoderConfig, {"name": "minilmm"}, at="encoder")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "e5", "truncate_dim": 128}, "was not trained for truncation"),
        ({"name": "qwen3", "truncate_dim": 16}, r"can be truncated to 32\.\.1024"),
        ({"name": "t5", "dtype": "float16"}, "overflows in float16"),
        ({"name": "e5", "language": "eng_Latn"}, "has no language setting"),
        ({"trust_remote_code": True}, r"'encoder\.trust_remote_code' is not known"),
    ],
)
def test_parameters_that_cannot_be_right_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(LocalEncoderConfig, values, at="encoder")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"contains no config\.json"):
        locate_encoder(LocalEncoderConfig(name="e5", path=str(tmp_path)))


def test_the_fingerprint_is_of_what_decides_the_vectors(tiny: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny("minilm"), folder)

    def fingerprint(**values: object) -> str:
        return locate_encoder(parse(LocalEncoderConfig, {"path": str(folder), **values}, at="encoder")).fingerprint

    before = fingerprint()
    assert before == locate_encoder(LocalEncoderConfig(path=str(tiny("minilm")))).fingerprint
    assert before == fingerprint(device="cuda", batch_tokens=17, batch_rows=3)
    assert len({before, fingerprint(dtype="bfloat16"), fingerprint(max_length=8), fingerprint(prompt="x")}) == 4
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fingerprint() != before


# -- sentence-transformers folders
# ---------------------------------------------------------------------------------------


def _theirs(folder: Path, sentences: list[str], **options: object) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return np.asarray(SentenceTransformer(str(folder), device="cpu", **options).encode(sentences))  # type: ignore[arg-type]


SENTENCES = ["the cat sat on the mat", "a dog", "it is red ! it is blue ."]


@pytest.mark.parametrize("pooling", [{}, {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}])
@pytest.mark.parametrize("modules", [("Pooling",), ("Pooling", "Normalize")])
def test_a_plain_sentence_transformers_folder_runs_as_a_bare_model(
    modules: tuple[str, ...], pooling: dict[str, object], sentence_folder: Folder
) -> None:
    folder = sentence_folder(*modules, pooling=pooling)
    encoder = load_encoder(LocalEncoderConfig(name="mine", path=str(folder), device="cpu"))
    assert type(encoder).__name__ == "TransformerEncoder"
    assert encoder.spec.max_length == 24
    np.testing.assert_allclose(encoder.encode(SENTENCES), _theirs(folder, SENTENCES), atol=1e-5)


def test_a_prompt_that_is_pooled_is_kept(sentence_folder: Folder) -> None:
    prompts = {"prompts": {"s": "one two "}, "default_prompt_name": "s"}
    folder = sentence_folder("Pooling", "Normalize", prompts=prompts)
    encoder = load_encoder(LocalEncoderConfig(name="mine", path=str(folder), device="cpu"))
    assert encoder.spec.prompt == "one two "
    np.testing.assert_allclose(encoder.encode(SENTENCES), _theirs(folder, SENTENCES), atol=1e-5)


def test_modules_of_its_own_are_run_by_sentence_transformers(tmp_path: Path, tiny: Tiny) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    try:
        from sentence_transformers.base.modules import Dense, Transformer
    except ImportError:
        from sentence_transformers.models import Dense, Transformer  # type: ignore[attr-defined,no-redef]

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = SentenceTransformer(
            modules=[Transformer(str(tiny("minilm"))), Pooling(32, "mean"), Dense(32, 12)], device="cpu"
        )
    model.save(str(tmp_path / "st"))
    config = LocalEncoderConfig(name="mine", path=str(tmp_path / "st"), device="cpu")
    encoder = load_encoder(config)
    assert type(encoder).__name__ == "SentenceTransformersEncoder"
    assert encoder.dim == 12
    np.testing.assert_allclose(encoder.encode(SENTENCES), model.encode(SENTENCES), atol=1e-5)
    cut = load_encoder(LocalEncoderConfig(name="mine", path=str(tmp_path / "st"), device="cpu", truncate_dim=5))
    assert cut.dim == 5
    assert cut.encode([]).shape == (0, 5)


def test_a_folder_without_pooling_is_refused(tiny: Tiny) -> None:
    with pytest.raises(EncoderError, match=r"no modules\.json"):
        locate_encoder(LocalEncoderConfig(name="mine", path=str(tiny("minilm"))))


def test_other_pooling_uses_sentence_transformers(sentence_folder: Folder) -> None:
    folder = sentence_folder("Pooling", pooling={"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False})
    assert _spec_of_folder("mine", "mine", None, folder).architecture == "sentence_transformers"
    assert json.loads((folder / "modules.json").read_text())[1]["path"] == "1_Pooling"
    encoder = load_encoder(LocalEncoderConfig(name="mine", path=str(folder), device="cpu"))
    np.testing.assert_allclose(encoder.encode(SENTENCES), _theirs(folder, SENTENCES), atol=1e-5)
