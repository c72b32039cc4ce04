"""Every encoder of this machine against its model card: pooling, prompts, padding, truncation, width, batches."""

import dataclasses
import json
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.data.encoders.tiny import folder_of, plain_modules

from mm_ldlm.core import EncoderError
from mm_ldlm.data.encoders import REGISTRY, LocalEncoderConfig, load_encoder, transformer
from mm_ldlm.data.encoders.transformer import TransformerEncoder
from mm_ldlm.distributed import device
from mm_ldlm.models.defaults import plain_defaults

NAMES = [*REGISTRY, "library"]
SENTENCES = ["the cat sat on the mat .", "a", "it is", "the red dog ran in the blue house ! it was green ?", "The Cat",
             "", "a b c d e f a b c d e f a b c d e f"]  # fmt: skip


def encoder_of(name: str, **options: Any) -> Any:
    options.setdefault("path", str(folder_of(name)) if "path" not in options else None)
    return load_encoder(LocalEncoderConfig(name=name, device="cpu", **options))


def reference(name: str, sentence: str, *, truncate: int | None = None, folder: Path | None = None) -> Any:
    """One sentence without padding, written from the model cards rather than from our code."""
    import transformers
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    folder = folder or folder_of(name)
    if name == "library":
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder), device="cpu").encode([sentence])[0]
    extra: dict[str, Any] = {"src_lang": "eng_Latn"} if name == "sonar" else {}
    loader: Any = {
        "minilm": transformers.BertModel, "sonar": M2M100Encoder, "e5": transformers.XLMRobertaModel,
        "bge-m3": transformers.XLMRobertaModel, "qwen3": transformers.Qwen3Model, "t5": transformers.T5EncoderModel,
    }[name]  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **extra)
    ids = tokenizer(f"query: {sentence}" if name == "e5" else sentence, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        hidden = loader.from_pretrained(folder).eval()(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    vector = {"bge-m3": hidden[0], "qwen3": hidden[-1]}.get(name, hidden.mean(0))[:truncate]
    return (vector if name in ("sonar", "t5") else vector / vector.norm()).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_17_vectors_are_those_of_the_model_card_in_any_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.stack([reference(name, sentence) for sentence in SENTENCES])
    for batch_tokens, window in ((8, 4096), (40, 3), (10_000, 4096)):
        monkeypatch.setattr(transformer, "WINDOW", window)
        encoder = encoder_of(name, batch_tokens=batch_tokens, batch_rows=3)
        found = encoder.encode(SENTENCES)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert (found.dtype, found.shape) == (np.float32, (len(SENTENCES), encoder.dim))
    assert name == "library" or max(len(chosen) for chosen, *_ in encoder.prepare(SENTENCES)) == 3
    assert encoder.encode([]).shape == (0, encoder.dim)
    np.testing.assert_array_equal(encoder.run(encoder.prepare(SENTENCES)), encoder.encode(SENTENCES))
    assert encoder.fingerprint == encoder.located.fingerprint


PADDING = {
    "strategy": {"Fixed": 20},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}
"""Of a tokenizer that fills every text"""


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"is_decoder": True}),
        ("config.json", {"layer_norm_eps": None}),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
        ("tokenizer.json", {"padding": PADDING}),
    ],
)
def test_an_unusual_bert_has_the_vectors_of_transformers(file: str, change: dict[str, Any], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of("minilm"), tmp_path / "model")
    changed = {**json.loads((folder / file).read_text()), **change}
    (folder / file).write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
    expected = np.stack([reference("minilm", sentence, folder=folder) for sentence in SENTENCES])
    np.testing.assert_allclose(encoder_of("minilm", path=str(folder)).encode(SENTENCES), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["e5", "library"])
def test_pitfall_17_a_prompt_precedes_every_sentence(name: str) -> None:
    found, expected = encoder_of(name, prompt="one two ").encode(["the cat"]), encoder_of(name, prompt="")
    np.testing.assert_allclose(found, expected.encode(["one two the cat"]), atol=1e-6)
    counts = encoder_of(name, prompt="one two ").count_tokens(["the cat"])
    assert counts == expected.count_tokens(["one two the cat"]) != expected.count_tokens(["the cat"])


@pytest.mark.parametrize(("name", "dim"), [("qwen3", 32), ("library", 5)])
def test_pitfall_17_a_cut_vector_is_normalised_again(name: str, dim: int) -> None:
    found = encoder_of(name, truncate_dim=dim).encode(SENTENCES)
    cut = np.stack([reference(name, sentence) for sentence in SENTENCES])[:, :dim]
    np.testing.assert_allclose(found, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-5)


def test_pitfall_17_the_final_token_is_appended_where_the_tokenizer_does_not() -> None:
    """The two tiny models have the same weights: the same vectors must come out."""
    own, bare = encoder_of("qwen3"), encoder_of("qwen3", path=str(folder_of("qwen3-bare")))
    np.testing.assert_allclose(own.encode(SENTENCES), bare.encode(SENTENCES), atol=1e-6)
    assert bare.tokenise(["a b"])[0][-1] == 0


@pytest.mark.parametrize(("name", "folder"), [("minilm", "minilm"), ("qwen3", "qwen3"), ("qwen3", "qwen3-bare")])
def test_the_maximum_length_keeps_the_special_tokens(name: str, folder: str) -> None:
    encoder = encoder_of(name, path=str(folder_of(folder)), max_length=6)
    whole = encoder_of(name, path=str(folder_of(folder)))
    (cut,), (ids,) = (each.tokenise(["a b c d e f the cat"]) for each in (encoder, whole))
    assert (len(cut), cut[0], cut[-1]) == (6, ids[0], ids[-1])
    assert encoder.count_tokens(["a b c d e f the cat"]) == [len(ids)]
    longest = [encoder_of("library", max_length=most).max_length for most in (6, 10_000)]
    assert longest == [6, encoder_of("library").max_length]


@pytest.mark.parametrize("name", ["minilm", "e5"])
def test_texts_are_cut_while_other_threads_count_their_tokens(name: str) -> None:
    encoder, long = encoder_of(name, max_length=6), ["a b c d e f " * 300]
    before, done = sys.getswitchinterval(), threading.Event()
    counting = threading.Thread(target=lambda: [encoder.count_tokens(long) for _ in iter(done.is_set, True)])
    sys.setswitchinterval(1e-5)
    counting.start()
    try:
        assert {len(encoder.tokenise(long)[0]) for _ in range(200)} == {6}
    finally:
        done.set()
        counting.join()
        sys.setswitchinterval(before)


def test_a_source_language_reaches_the_tokenizer() -> None:
    english, french = encoder_of("sonar"), encoder_of("sonar", language="fra_Latn")
    assert english.tokenise(["a"])[0] != french.tokenise(["a"])[0]
    assert english.fingerprint != french.fingerprint


def test_a_forked_process_encodes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads would wait for ever for those that did not survive the fork."""
    monkeypatch.setattr(device, "SMALL", 0)  # a large model takes all threads
    with plain_defaults(2):
        encoder, used = encoder_of("minilm"), list[int]()
    encoder.lanes, forward = 1, encoder.forward
    monkeypatch.setattr(encoder, "forward", lambda *batch: (used.append(torch.get_num_threads()), forward(*batch))[1])
    encoder.encode(SENTENCES)
    monkeypatch.setattr("os.getpid", lambda: -1)
    encoder.encode(SENTENCES)
    assert used == [2, 1]


@pytest.mark.parametrize("name", ["minilm", "library"])
def test_half_precision_computes_in_it_and_gives_float32(name: str) -> None:
    found, exact = encoder_of(name, dtype="bfloat16"), encoder_of(name)
    assert next(found.model.parameters()).dtype == torch.bfloat16
    difference = np.abs(found.encode(SENTENCES) - exact.encode(SENTENCES)).max()
    assert (found.encode(SENTENCES).dtype, 0 < difference < 0.1) == (np.float32, True)


def test_packed_layers_are_the_layers() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3, bias=False))
    x = torch.randn(11, 5)
    expected = layers(x).detach()
    packed = transformer.pack_linear_layers(layers)
    torch.testing.assert_close(packed(x), expected)
    half = torch.nn.Sequential(torch.nn.Linear(2, 2)).bfloat16()
    assert type(transformer.pack_linear_layers(half)[0]) is torch.nn.Linear


def test_positions_count_from_the_first_token_that_is_no_padding() -> None:
    """Encoders with rotary positions do not show it, because theirs are relative."""
    asked: dict[str, Any] = {}

    def model(**given: Any) -> Any:
        asked.update(given)
        return SimpleNamespace(last_hidden_state=given["input_ids"])

    encoder = encoder_of("qwen3")
    encoder.model = model
    encoder.hidden(torch.zeros(2, 4, dtype=torch.long), np.array([[False, False, True, True], [True] * 4]))
    assert asked["position_ids"].tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("modules", [("Pooling",), ("Pooling", "Normalize")])
def test_a_plain_folder_of_sentence_transformers_runs_as_a_bare_model(
    modules: tuple[str, ...], pooling: str, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    shutil.copytree(folder_of("minilm"), tmp_path / "m")
    keys = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_cls_token": pooling == "cls"}  # fmt: skip
    prompts = {"prompts": {"s": "one two "}, "default_prompt_name": "s"}
    plain_modules(tmp_path / "m", *modules, pooling=keys, settings=prompts)
    encoder = encoder_of("mine", path=str(tmp_path / "m"))
    assert isinstance(encoder, TransformerEncoder)
    expected = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(encoder.encode(SENTENCES), expected, atol=1e-5)


def test_nothing_is_fetched_and_no_code_of_a_model_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may contain code, which transformers runs where it is trusted."""
    import sentence_transformers
    import transformers

    loaders = (transformers.AutoTokenizer, transformers.AutoConfig, transformers.AutoModel)
    spies = []
    for owner, name in (
        (sentence_transformers, "SentenceTransformer"),
        *((each, "from_pretrained") for each in loaders),
    ):
        spies.append(Mock(wraps=getattr(owner, name)))
        monkeypatch.setattr(owner, name, spies[-1])
    before = transformers.utils.logging.get_verbosity()
    encoder_of("minilm")
    encoder_of("library")
    calls = [call.kwargs for spy in spies for call in spy.call_args_list]
    asked = [(options.get("trust_remote_code"), options.get("local_files_only")) for options in calls]
    assert len(asked) >= 4
    assert set(asked) == {(False, True)}
    assert transformers.utils.logging.get_verbosity() == before


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["a lost weight", "no padding", "no final token", "no tokenizer"])
def test_a_model_that_its_spec_does_not_describe_is_refused(wrong: str, tmp_path: Path, refuses: Any) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "m"
    shutil.copytree(folder_of("minilm"), folder)
    spec: dict[str, Any] = {"no final token": {"final_token": "<end>"}}.get(wrong, {})
    if wrong == "a lost weight":
        weights = load_file(folder / "model.safetensors")
        weights.pop(next(name for name in weights if "layer.1" in name))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if wrong == "no padding":
        path = folder / "tokenizer_config.json"
        path.write_text(path.read_text().replace('"pad_token": "[PAD]"', '"pad_token": null'))
    if wrong == "no tokenizer":
        (folder / "tokenizer.json").write_text("{")
    located: Any = LocalEncoderConfig(name="minilm", path=str(folder)).locate()
    located = dataclasses.replace(located, spec=dataclasses.replace(located.spec, **spec))
    with refuses(EncoderError, "'minilm'"):
        TransformerEncoder(located, device="cpu", batch_tokens=99, batch_rows=9)


def test_a_folder_that_the_library_cannot_load_is_refused(tmp_path: Path, refuses: Any) -> None:
    shutil.copytree(folder_of("library"), tmp_path / "m")
    next(tmp_path.rglob("2_Dense/*.safetensors")).write_bytes(b"damaged")
    with refuses(EncoderError, "cannot be loaded"):
        encoder_of("mine", path=str(tmp_path / "m"))
