"""Location of encoders by name, folder and hub cache, and the errors for those that are not available."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.encoders.spec import EncoderSpec

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, EncoderError
from mm_ldlm.data.encoders import REGISTRY, LocalEncoderConfig, load_encoder, locate_encoder
from mm_ldlm.data.encoders.weights import LocatedWeights, _hub_folder, _spec_of_folder, locate_weights

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
    monkeypatch.setattr("mm_ldlm.data.encoders.weights._package_folder", lambda name, package: tmp_path / "model")
    with pytest.raises(EncoderError, match=r"model\.safetensors with sha256 53aa5117"):
        locate_encoder(LocalEncoderConfig())


def test_weights_of_a_pinned_revision_have_the_pinned_digest(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.data.encoders.weights._hub_folder", lambda name, source, revision: tiny("sonar"))
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


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder that is identified and never loaded."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 40}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


LIBRARY = "sentence_transformers"
DECIDES: dict[str, Any] = {
    "pooling": "cls", "prompt": "say: ", "padding_side": "left", "max_length": 99, "normalised": False,
    "final_token": "<end>", "language": "deu_Latn", "architecture": "t5_encoder",
}  # fmt: skip
DESCRIBES: dict[str, Any] = {
    "name": "other", "source": "a/b", "revision": "0" * 40, "dim": 7, "truncation": (1, 9), "licence": "MIT",
    "digests": (("x", "y"),),
}  # fmt: skip
"""Fields of a spec, with other values: those that decide the vectors, and the others"""


def test_every_field_of_a_spec_is_in_the_fingerprint_or_decides_nothing(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {field.name for field in dataclasses.fields(EncoderSpec)} == {*DECIDES, *DESCRIBES}
    plain, marks = REGISTRY["minilm"], {locate_weights("minilm", path=str(bare)).fingerprint}
    for name, value in (DECIDES | DESCRIBES).items():
        monkeypatch.setitem(REGISTRY, "minilm", dataclasses.replace(plain, **{name: value}))
        marks.add(locate_weights("minilm", path=str(bare)).fingerprint)
    assert len(marks) == 1 + len(DECIDES)
    monkeypatch.setitem(REGISTRY, "minilm", plain)
    marks |= {locate_weights("minilm", path=str(bare), **changed).fingerprint for changed in (
        {"truncate_dim": 5}, {"truncate_dim": 6}, {"dtype": "bfloat16"}, {"language": "fra_Latn"}, {"prompt": "x"},
        {"max_length": 9}, {"truncate_dim": 40}, {"max_length": 999},
    )}  # fmt: skip
    assert len(marks) == 7 + len(DECIDES), "40 is the whole vector, and 256 tokens are the most of this encoder"


@pytest.mark.parametrize(
    ("name", "decides"),
    [
        ("model.safetensors", True), ("config.json", True), ("modules.json", True), ("1_Pooling/config.json", True),
        ("sentence_bert_config.json", True), ("config_sentence_transformers.json", True), ("tokenizer.json", True),
        ("vocab.txt", True), ("vocab.json", True), ("merges.txt", True), ("spiece.model", True),
        ("tokenizer_config.json", True), ("sentencepiece.bpe.model", True), ("README.md", False),
        ("pytorch_model.bin", False), ("onnx/model.safetensors", False), (".hidden.json", False),
        (".model.safetensors", False),
    ],
)  # fmt: skip
def test_every_file_that_decides_the_vectors_is_in_the_fingerprint(name: str, decides: bool, bare: Path) -> None:
    before = locate_weights("minilm", path=str(bare)).fingerprint
    path = bare / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"hidden_size":  40}')
    assert (locate_weights("minilm", path=str(bare)).fingerprint != before) == decides
    if path.suffix == ".bin":
        (bare / "model.safetensors").unlink()
        assert locate_weights("minilm", path=str(bare)).fingerprint != before


def test_options_replace_the_spec_and_the_dimension_is_that_of_the_folder(bare: Path) -> None:
    plain = locate_weights("e5", path=str(bare))
    assert (plain.spec.prompt, plain.spec.max_length, plain.dim, plain.dtype) == ("query: ", 512, 40, "float32")
    found = locate_weights("sonar", path=str(bare), prompt="", language="fra_Latn", max_length=9, dtype="bfloat16")
    assert (found.spec.prompt, found.spec.language, found.spec.max_length, found.dtype) == (
        "",
        "fra_Latn",
        9,
        "bfloat16",
    )
    assert locate_weights("sonar", path=str(bare)).spec.language == "eng_Latn"
    assert locate_weights("e5", path=str(bare), prompt="").spec.prompt == ""
    assert locate_weights("e5", path=str(bare), max_length=10_000).spec.max_length == 512
    cut = locate_weights("qwen3", path=str(bare), truncate_dim=33)
    assert (cut.dim, cut.spec.dim, cut.truncate_dim, cut.describe()["dim"]) == (33, 40, 33, 33)
    for key in ("d_model", "hidden_size"):
        (bare / "config.json").write_text(json.dumps({key: 24, "vocab_size": 9}))
        assert locate_weights("t5", path=str(bare)).dim == 24
    (bare / "config.json").write_text("{}")
    assert locate_weights("t5", path=str(bare)).dim == 1024
    (bare / "config.json").write_text('{"hidden_size": 24}')
    with pytest.raises(EncoderError, match="truncate_dim=25, but its vectors have 24 dimensions"):
        locate_weights("qwen3", path=str(bare), truncate_dim=25)


def test_every_option_reaches_the_search_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "name": "owner/model", "path": "/folder", "revision": "r1", "truncate_dim": 5, "prompt": "say: ",
        "language": "fra_Latn", "max_length": 30, "dtype": "bfloat16",
    }  # fmt: skip
    elsewhere = {"kind", "device", "batch_tokens", "batch_rows"}
    assert {field.name for field in dataclasses.fields(LocalEncoderConfig)} == {*given, *elsewhere}
    monkeypatch.setattr("mm_ldlm.data.encoders.local.locate_weights", lambda name, **options: {"name": name, **options})
    found: Any = LocalEncoderConfig(**given).locate(expected="f")
    assert found == given


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("device", [None, "cuda:3"])
def test_every_option_reaches_the_library_that_computes(
    normalised: bool, device: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    made: list[Any] = []

    class Library:
        max_seq_length: int | None = 100

        def __init__(self, folder: str, **options: Any) -> None:
            made.append((folder, options))

        def encode(self, texts: list[str], **options: Any) -> Any:
            made.append((texts, options))
            return np.ones((len(texts), 5), np.float64)

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Library)
    spec = EncoderSpec(
        name="m", source="m", architecture="sentence_transformers", prompt="say: ", normalised=normalised
    )
    located = LocatedWeights(spec=spec, folder=tmp_path, truncate_dim=5, dtype="bfloat16", fingerprint="f")
    config = LocalEncoderConfig(name="a/b", device="cuda:1", batch_rows=7, batch_tokens=11, max_length=30)
    encoder: Any = config.load(located, device=device)
    options = made[0][1]
    assert (made[0][0], options["device"], options["truncate_dim"]) == (str(tmp_path), device or "cuda:1", 5)
    assert options["model_kwargs"] == {"dtype": torch.bfloat16}
    assert (options["trust_remote_code"], options["local_files_only"]) == (False, True)
    assert (encoder.model.max_seq_length, encoder.dim, encoder.fingerprint) == (30, 5, "f")
    assert encoder.encode(["a", "b"]).dtype == np.float32
    texts, options = made[-1]
    assert (texts, options["batch_size"], options["prompt"]) == (["a", "b"], 7, "say: ")
    assert options["normalize_embeddings"] is normalised
    Library.max_seq_length = 20
    assert config.load(located).model.max_seq_length == 20, "at most that of the model"  # type: ignore[attr-defined]
    monkeypatch.setattr("mm_ldlm.data.encoders.transformer.TransformerEncoder", lambda *args, **named: (args, named))
    located = dataclasses.replace(located, spec=dataclasses.replace(spec, architecture="auto"))
    found: Any = config.load(located, device=device)
    assert found == ((located,), {"device": device or "cuda:1", "batch_rows": 7, "batch_tokens": 11})


def test_loading_is_quiet_and_leaves_the_library_as_it_was() -> None:
    from transformers.utils import logging

    from mm_ldlm.data.encoders.transformer import quiet_loading

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        for verbosity, bar in ((logging.INFO, True), (logging.WARNING, False)):
            logging.set_verbosity(verbosity)
            (logging.enable_progress_bar if bar else logging.disable_progress_bar)()
            with quiet_loading():
                assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.ERROR, False)
            assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (verbosity, bar)
    finally:
        logging.set_verbosity(before[0])
        (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()


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


MEAN: dict[str, Any] = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
PROMPT: dict[str, Any] = {"prompts": {"s": "say: ", "t": "x"}, "default_prompt_name": "s"}


@pytest.mark.parametrize(
    ("modules", "pooling", "settings", "limit", "expected"),
    [
        (["Pooling", "Normalize"], MEAN, None, 24, ("auto", "mean", True, 24, "")),
        (["Pooling"], MEAN, None, 24, ("auto", "mean", False, 24, "")),
        (["Pooling"], {"pooling_mode_cls_token": True}, None, 24, ("auto", "cls", False, 24, "")),
        (["Pooling"], {"pooling_mode": "cls"}, None, 24, ("auto", "cls", False, 24, "")),
        (["Pooling"], {"pooling_mode": "mean"}, PROMPT, 24, ("auto", "mean", False, 24, "say: ")),
        (["Pooling"], MEAN | {"include_prompt": True}, PROMPT, 24, ("auto", "mean", False, 24, "say: ")),
        (["Pooling"], MEAN | {"include_prompt": False}, None, 24, ("auto", "mean", False, 24, "")),
        (["Pooling"], MEAN | {"include_prompt": False}, PROMPT, 24, (LIBRARY, "mean", False, 24, "say: ")),
        (["Pooling"], MEAN, {"prompts": {"s": "say: "}}, 24, ("auto", "mean", False, 24, "")),
        (["Pooling"], {"pooling_mode": "lasttoken"}, None, 24, (LIBRARY, "mean", False, 24, "")),
        (["Pooling"], {"pooling_mode_lasttoken": True}, None, 24, (LIBRARY, "mean", False, 24, "")),
        (["Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None, 24,
         (LIBRARY, "mean", False, 24, "")),
        (["Pooling"], MEAN | {"pooling_mode_max_tokens": True}, None, 24, (LIBRARY, "mean", False, 24, "")),
        (["Pooling", "Dense"], MEAN, None, 24, (LIBRARY, "mean", False, 24, "")),
        (["Pooling", "Dense", "Normalize"], MEAN, PROMPT, 24, (LIBRARY, "mean", True, 24, "say: ")),
        (["Pooling"], MEAN, None, None, (LIBRARY, "mean", False, 512, "")),
    ],
)  # fmt: skip
def test_the_spec_of_a_folder_is_what_its_files_say(
    modules: list[str], pooling: dict[str, Any], settings: Any, limit: int | None, expected: Any, tmp_path: Path
) -> None:
    listed = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, module in enumerate(modules, start=1):
        listed.append({"path": f"{number}_{module}", "type": f"sentence_transformers.models.{module}"})
        (tmp_path / f"{number}_{module}").mkdir()
        (tmp_path / f"{number}_{module}" / "config.json").write_text(json.dumps(pooling if module == "Pooling" else {}))
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    if limit is not None:
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    if settings is not None:
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    found = _spec_of_folder("mine", "a/b", "r", tmp_path)
    assert (found.architecture, found.pooling, found.normalised, found.max_length, found.prompt) == expected
    assert (found.name, found.source, found.revision, found.truncation) == ("mine", "a/b", "r", (1, 1_000_000))


def test_a_folder_without_pooling_is_refused(tiny: Tiny) -> None:
    with pytest.raises(EncoderError, match=r"no modules\.json"):
        locate_encoder(LocalEncoderConfig(name="mine", path=str(tiny("minilm"))))


def test_other_pooling_uses_sentence_transformers(sentence_folder: Folder) -> None:
    folder = sentence_folder("Pooling", pooling={"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False})
    assert _spec_of_folder("mine", "mine", None, folder).architecture == "sentence_transformers"
    assert json.loads((folder / "modules.json").read_text())[1]["path"] == "1_Pooling"
    encoder = load_encoder(LocalEncoderConfig(name="mine", path=str(folder), device="cpu"))
    np.testing.assert_allclose(encoder.encode(SENTENCES), _theirs(folder, SENTENCES), atol=1e-5)


@pytest.mark.parametrize("name", ["../folder", "/a/folder"])
def test_a_path_in_place_of_a_name_is_no_model_to_download(name: str) -> None:
    with pytest.raises(EncoderError, match=r"expected the name of a model .* Set encoder\.path for a folder"):
        _hub_folder(name, name, None)
