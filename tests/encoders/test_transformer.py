"""The transformer backend on every architecture, against the reference computation for single sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.core.batching import batches_by_length

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.encoders import REGISTRY, LocalEncoderConfig, load_encoder, transformer
from mm_ldlm.data.encoders.transformer import TransformerEncoder

Tiny = Callable[[str], Path]
NAMES = sorted(REGISTRY)
SENTENCES = [
    "the cat sat on the mat .", "a", "it is", "the red dog ran in the blue house ! it was green ?", "one two three "
    "four",
    "The Cat", "", "a b c d e f a b c d e f a b c d e f",
]  # fmt: skip


def reference(name: str, folder: Path, sentence: str, *, truncate: int | None = None) -> np.ndarray:
    """One sentence, no padding, written out from the model card rather than from our code."""
    from transformers import AutoTokenizer, BertModel, Qwen3Model, T5EncoderModel, XLMRobertaModel
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    extra: dict[str, Any] = {"src_lang": "eng_Latn"} if name == "sonar" else {}
    tokenizer = AutoTokenizer.from_pretrained(folder, **extra)
    loader: Any = {
        "minilm": BertModel,
        "sonar": M2M100Encoder,
        "e5": XLMRobertaModel,
        "bge-m3": XLMRobertaModel,
        "qwen3": Qwen3Model,
        "t5": T5EncoderModel,
    }[name]
    model = loader.from_pretrained(folder).eval()
    text = f"query: {sentence}" if name == "e5" else sentence
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    vector = {"bge-m3": hidden[0], "qwen3": hidden[-1]}.get(name, hidden.mean(0))
    vector = vector[:truncate]
    return (vector if name in ("sonar", "t5") else vector / vector.norm()).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_every_registered_encoder_gives_its_architectures_own_vectors(name: str, tiny: Tiny) -> None:
    encoder = load_encoder(LocalEncoderConfig(name=name, path=str(tiny(name)), device="cpu"))
    found = encoder.encode(SENTENCES)
    expected = np.stack([reference(name, tiny(name), sentence) for sentence in SENTENCES])
    assert found.dtype == np.float32
    assert found.shape == (len(SENTENCES), encoder.dim)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [8, 40, 10_000])
def test_pitfall_17_batched_equals_one_by_one_whatever_the_padding(name: str, budget: int, tiny: Tiny) -> None:
    config = LocalEncoderConfig(name=name, path=str(tiny(name)), device="cpu", batch_tokens=budget)
    encoder = load_encoder(config)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(encoder.encode(SENTENCES), alone, atol=1e-5)


def test_pitfall_17_e5_gets_its_prefix(tiny: Tiny) -> None:
    folder = str(tiny("e5"))
    with_prefix = load_encoder(LocalEncoderConfig(name="e5", path=folder, device="cpu"))
    without = load_encoder(LocalEncoderConfig(name="e5", path=folder, device="cpu", prompt=""))
    assert with_prefix.fingerprint != without.fingerprint
    np.testing.assert_allclose(with_prefix.encode(["the cat"]), without.encode(["query: the cat"]), atol=1e-6)
    assert np.abs(with_prefix.encode(["the cat"]) - without.encode(["the cat"])).max() > 1e-3


def test_pitfall_17_a_cut_vector_is_normalised_again(tiny: Tiny) -> None:
    folder = tiny("qwen3")
    encoder = load_encoder(LocalEncoderConfig(name="qwen3", path=str(folder), device="cpu", truncate_dim=32))
    found = encoder.encode(SENTENCES)
    assert found.shape[1] == encoder.dim == 32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    expected = np.stack([reference("qwen3", folder, sentence, truncate=32) for sentence in SENTENCES])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_pitfall_17_qwen3_pools_at_its_final_token_even_where_the_tokenizer_adds_none(tiny: Tiny) -> None:
    """The tiny model with and without the template has the same weights: the same vectors must come out."""
    own = load_encoder(LocalEncoderConfig(name="qwen3", path=str(tiny("qwen3")), device="cpu"))
    bare = load_encoder(LocalEncoderConfig(name="qwen3", path=str(tiny("qwen3-bare")), device="cpu"))
    np.testing.assert_allclose(own.encode(SENTENCES), bare.encode(SENTENCES), atol=1e-6)
    assert bare.tokenise(["a b"])[0][-1] == 0  # type: ignore[attr-defined]


def test_maximum_length_cuts_and_keeps_special_tokens(tiny: Tiny) -> None:
    encoder: Any = load_encoder(LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu", max_length=6))
    ids = encoder.tokenise(["a b c d e f the cat"])[0]
    assert len(ids) == 6
    assert (ids[0], ids[-1]) == (2, 3)
    bare: Any = load_encoder(LocalEncoderConfig(name="qwen3", path=str(tiny("qwen3-bare")), device="cpu", max_length=4))
    assert len(bare.tokenise(["a b c d e f"])[0]) == 4


def test_sonar_takes_a_source_language(tiny: Tiny) -> None:
    english: Any = load_encoder(LocalEncoderConfig(name="sonar", path=str(tiny("sonar")), device="cpu"))
    french: Any = load_encoder(
        LocalEncoderConfig(name="sonar", path=str(tiny("sonar")), device="cpu", language="fra_Latn")
    )
    assert english.tokenise(["a"])[0] != french.tokenise(["a"])[0]
    assert english.fingerprint != french.fingerprint


@pytest.mark.parametrize(("name", "cut"), [*((name, None) for name in NAMES), ("qwen3", 33)])
def test_the_states_of_a_text_do_not_depend_on_its_batch(name: str, cut: int | None, tiny: Tiny) -> None:
    folder = str(tiny(name))
    encoder: Any = load_encoder(
        LocalEncoderConfig(name=name, path=folder, device="cpu", batch_tokens=40, truncate_dim=cut)
    )
    found = encoder.token_states(SENTENCES)
    special = {*encoder.tokenizer.all_special_ids} - {encoder.tokenizer.unk_token_id}
    for sentence, its in zip(SENTENCES, found, strict=True):
        (alone,) = encoder.token_states([sentence])
        inner = [i for i in encoder.tokenise([sentence])[0] if i not in special]
        assert its.ids_n.tolist() == alone.ids_n.tolist() == inner
        assert its.states_nd.shape == (len(inner), encoder.dim)
        np.testing.assert_allclose(its.states_nd, alone.states_nd, atol=1e-5)
    whole: Any = load_encoder(LocalEncoderConfig(name=name, path=folder, device="cpu"))
    states = whole.token_states([SENTENCES[0]])[0].states_nd
    np.testing.assert_allclose(found[0].states_nd, states[:, : encoder.dim], atol=1e-5)
    assert encoder.token_states([]) == []


def test_windows_are_tokenised_ahead_without_changing_order(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.data.encoders.transformer.WINDOW", 3)
    encoder = load_encoder(LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu"))
    many = SENTENCES * 3
    alone = np.concatenate([encoder.encode([sentence]) for sentence in many])
    np.testing.assert_allclose(encoder.encode(many), alone, atol=1e-5)
    assert encoder.encode([]).shape == (0, 32)


def test_the_number_of_lanes_changes_no_bit(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder: Any = load_encoder(LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu", batch_rows=2))
    monkeypatch.setattr("mm_ldlm.data.encoders.transformer.lanes_of", lambda device: 3)
    np.testing.assert_array_equal(encoder.encode(SENTENCES * 3), encoder.run(encoder.prepare(SENTENCES * 3)))


def test_long_lists_of_texts_have_lanes_as_well(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder: Any = load_encoder(LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu"))
    used: list[int] = []
    monkeypatch.setattr(transformer, "lanes_of", lambda device: 3 if device == encoder.device else 0)
    monkeypatch.setattr(transformer, "WINDOW", 4)
    monkeypatch.setattr(encoder, "run", lambda prepared, *, lanes=1: used.append(lanes) or np.ones((prepared.rows, 32)))
    for count in (3, 9):
        assert encoder.encode(["a"] * count).shape == (count, 32)
    assert used == [3] * 4


def test_nothing_is_fetched_and_no_code_of_a_model_is_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may contain code, which transformers runs where it is trusted."""
    import transformers

    asked: dict[str, Any] = {}
    for name in ("AutoTokenizer", "AutoConfig", "AutoModel"):
        loader = getattr(transformers, name)

        def recorded(*given: Any, _name: str = name, _load: Any = loader.from_pretrained, **options: Any) -> Any:
            asked[_name] = {key: options.get(key) for key in ("trust_remote_code", "local_files_only")}
            return _load(*given, **options)

        monkeypatch.setattr(loader, "from_pretrained", recorded)
    load_encoder(LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu"))
    safe = {"trust_remote_code": False, "local_files_only": True}
    assert asked == dict.fromkeys(("AutoTokenizer", "AutoConfig", "AutoModel"), safe)


def test_half_precision_computes_in_it_and_gives_float32(tiny: Tiny) -> None:
    config = LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu", dtype="bfloat16")
    encoder: Any = load_encoder(config)
    assert next(encoder.model.parameters()).dtype == torch.bfloat16
    found = encoder.encode(SENTENCES)
    assert found.dtype == np.float32
    exact = load_encoder(LocalEncoderConfig(name="minilm", path=str(tiny("minilm")), device="cpu")).encode(SENTENCES)
    assert 0 < np.abs(found - exact).max() < 0.1


def test_weights_of_another_architecture_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny("minilm"), tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    weights.pop(next(name for name in weights if "layer.1" in name))
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncoderError, match=r"1 weights are missing .* would be random"):
        load_encoder(LocalEncoderConfig(name="minilm", path=str(tmp_path / "m"), device="cpu"))


def test_batches_keep_the_budget_and_every_row() -> None:
    lengths = [5, 30, 2, 2, 9, 100, 1, 7]
    batches = batches_by_length(lengths, max_tokens=32, max_rows=3)
    assert sorted(np.concatenate(batches).tolist()) == list(range(8))
    for batch in batches:
        assert len(batch) <= 3
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 32
    assert batches[0].tolist() == [5]


@pytest.mark.parametrize(("side", "positions"), [("left", [[0, 0, 0, 1], [0, 1, 2, 3]]), ("right", None)])
def test_positions_count_from_the_first_token_that_is_no_padding(side: str, positions: list[list[int]] | None) -> None:
    """Encoders with rotary positions do not show it, because theirs are relative."""
    asked: dict[str, Any] = {}

    def model(**given: Any) -> Any:
        asked.update(given)
        return SimpleNamespace(last_hidden_state=given["input_ids"])

    encoder = object.__new__(TransformerEncoder)
    vars(encoder).update(device="cpu", located=SimpleNamespace(spec=SimpleNamespace(padding_side=side)), model=model)
    valid_BL = np.array([[False, False, True, True], [True] * 4])
    encoder._hidden(torch.zeros(2, 4, dtype=torch.long), valid_BL if side == "left" else valid_BL[:, ::-1].copy())
    found = asked.get("position_ids")
    assert (None if found is None else found.tolist()) == positions


@pytest.mark.parametrize(
    ("name", "spec", "tokenizer", "message"),
    [
        ("minilm", {"dim": 33}, {}, r"'minilm': expected dimension 33 \(its spec\), found 32\. Use the weights that"),
        ("minilm", {}, {"pad_token": None}, r"'minilm': its tokenizer has no padding token\. Add one to its files"),
        ("minilm", {"final_token": "<end>"}, {}, r"'minilm': its tokenizer has no token <end>, which its spec needs"),
    ],
)
def test_a_model_that_its_spec_does_not_describe_is_refused(
    name: str, spec: dict[str, Any], tokenizer: dict[str, Any], message: str, tiny: Tiny,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    located: Any = LocalEncoderConfig(name=name, path=str(tiny(name))).locate()
    load = transformer._load_tokenizer

    def changed(located: Any) -> Any:
        found = load(located)
        for key, value in tokenizer.items():
            setattr(found, key, value)
        return found

    monkeypatch.setattr(transformer, "_load_tokenizer", changed)
    located = dataclasses.replace(located, spec=dataclasses.replace(located.spec, **spec))
    with pytest.raises(EncoderError, match=message):
        TransformerEncoder(located, device="cpu", batch_tokens=99, batch_rows=9)
