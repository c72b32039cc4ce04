"""Infilling and editing change nothing outside their gaps."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inference.runs import DIM, make
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mm_ldlm.core import SamplingError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.extras.editing import infilling, interpolation
from mm_ldlm.extras.editing.verbatim import rewritten, with_masks
from mm_ldlm.sampling.registry import text_sampler


@pytest.fixture(scope="module")
def wordpiece() -> TextTokenizer:
    return load_tokenizer(TokenizerConfig(max_length=64))


@pytest.fixture(scope="module")
def cased() -> TextTokenizer:
    """Byte-level BPE with a token for every byte and one for " dog"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*alphabet, "Ġd", "og", "Ġdog"])}
    base = Tokenizer(models.BPE(vocabulary, [("Ġ", "d"), ("o", "g"), ("Ġd", "og")]))
    base.pre_tokenizer, base.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    base.add_special_tokens(["<pad>", "<mask>", "<unk>"])
    return TextTokenizer(base, max_length=64)


def ids_of(tokenizer: TextTokenizer, *tokens: str) -> list[int]:
    masks, every = ("[MASK]", "<mask>"), tokenizer.from_base(tokenizer.kept_V)
    return [tokenizer.mask_id if token in masks else int(every[tokenizer.base.token_to_id(token)]) for token in tokens]


def infilled(tokenizer: TextTokenizer, text: str, *words: str) -> str:
    """Fill the masks with these tokens, one after the other, as a model would."""
    template, canvas = with_masks(text, "[MASK]", tokenizer)
    found = iter(ids_of(tokenizer, *words))
    tokens = [next(found) if token == tokenizer.mask_id else token for token in canvas]
    assert next(found, None) is None
    return template.filled(tokens, tokenizer)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("I ordered a [MASK] for dinner.", ["pizza"], "I ordered a pizza for dinner."),
        ("Émile's  [MASK],\n[MASK]!", ["dog", "cat"], "Émile's  dog,\ncat!"),
        ("[MASK] [MASK] rises", ["the", "moon"], "the moon rises"),
        ("[MASK][MASK] rises", ["the", "moon"], "the moon rises"),
        ("He was play[MASK] there", ["##ing"], "He was playing there"),
        ("He was play [MASK] there", ["##ing"], "He was playing there"),
        ("the nurse [MASK] [MASK] house", ["'", "s"], "the nurse's house"),
        ("The end [MASK]", ["."], "The end."),
        ("Zxqj 龘 [MASK] ok", ["dog"], "Zxqj 龘 dog ok"),
        ("un[MASK]able", ["work"], "unworkable"),
        ("[MASK]", ["dog"], "dog"),
        ("  [MASK]  ", ["dog"], "  dog  "),
    ],
)
def test_infilling_keeps_the_letters_and_spaces_of_the_text(
    wordpiece: TextTokenizer, text: str, words: list[str], expected: str
) -> None:
    assert infilled(wordpiece, text, *words) == expected
    assert len(with_masks(text, "[MASK]", wordpiece)[0].gaps) == len(re.findall(r"\[MASK\](?!\s*\[MASK\])", text))


def test_a_tokenizer_whose_tokens_begin_with_spaces(cased: TextTokenizer) -> None:
    assert infilled(cased, "A  BIG [MASK] Runs", "Ġdog") == "A  BIG dog Runs"
    assert with_masks("A [MASK] B", "[MASK]", cased)[1] == ids_of(cased, "A", "<mask>", "Ġ", "B")
    assert infilled(cased, "do[MASK]!", "g") == "dog!"
    canvas = ids_of(cased, "A", "<mask>", "Ġ", "B")
    assert rewritten("A dog B", canvas, cased).filled(ids_of(cased, "A", "Ġdog", "Ġ", "B"), cased) == "A dog B"


def test_spaces_at_the_end_of_a_text_and_before_a_word_stay(cased: TextTokenizer) -> None:
    """A token may begin with a space of the text, and a text may end in one."""
    assert with_masks("A [MASK] B ", "[MASK]", cased)[1] == ids_of(cased, "A", "<mask>", "Ġ", "B", "Ġ")
    assert infilled(cased, "A [MASK] B ", "Ġdog") == "A dog B "
    whole = ["A", "Ġ", "Ġdog", "Ġ", "B"]
    assert cased.encode(["A  dog B"])[0] == ids_of(cased, *whole)
    for place, kept in ((2, "A  dog B"), (0, "A  dog B"), (4, "A  dog B")):
        canvas = ids_of(cased, *(token if at != place else "<mask>" for at, token in enumerate(whole)))
        assert rewritten("A  dog B", canvas, cased).filled(ids_of(cased, *whole), cased) == kept


@pytest.mark.parametrize("words", [[[], []], [["dog"], ["the", "dog"]], [["the"], []]])
def test_gaps_of_any_number_of_tokens_keep_the_letters_of_the_text(
    wordpiece: TextTokenizer, words: list[list[str]]
) -> None:
    template, canvas = with_masks("Émile [MASK] in  THE [MASK] Garden", "[MASK]", wordpiece)
    tokens, found = list[int](), iter(ids_of(wordpiece, *some) for some in words)
    for token in canvas:
        tokens += next(found) if token == wordpiece.mask_id else [token]
    text = template.regapped(canvas, tokens).filled(tokens, wordpiece)
    assert re.sub(r"\s+", " ", text) == " ".join(["Émile", *words[0], "in THE", *words[1], "Garden"])


def edited(tokenizer: TextTokenizer, text: str, changes: dict[int, str]) -> str:
    tokens = tokenizer.encode([text])[0]
    canvas = [tokenizer.mask_id if place in changes else token for place, token in enumerate(tokens)]
    written = [ids_of(tokenizer, changes[place])[0] if place in changes else t for place, t in enumerate(tokens)]
    return rewritten(text, canvas, tokenizer).filled(written, tokenizer)


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("Émile's  Dog, RAN!", {3: "cat"}, "Émile's  cat, RAN!"),
        ("The Nurse's House", {1: "dog"}, "The dog's House"),
        ("Zxqj 龘 dog", {}, "Zxqj 龘 dog"),
        ("A co-op B", {2: "dog"}, "A co dog op B"),
        ("Dogs run", {1: "."}, "Dogs."),
        ("Dogs Run  Fast", {0: "the", 1: "cat"}, "the cat  Fast"),
    ],
)
def test_editing_keeps_the_letters_and_spaces_of_the_text(
    wordpiece: TextTokenizer, text: str, changes: dict[int, str], expected: str
) -> None:
    assert edited(wordpiece, text, changes) == expected


def test_requests_pass_their_options_to_every_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, asked, again = make(), list[Any](), infilling.remask
    write, invert, latents = model.writer.write, interpolation.invert, np.eye(2, DIM, dtype=np.float32)
    scores, least = model.model.token_log_probs, list[list[int]]()

    def recorded(canvases: Any, **how: Any) -> Any:
        masks = [[place for place, token in enumerate(each) if token == model.shape.mask_id] for each in canvases]
        asked.append(how | {"masks": masks})
        return write(canvases, **how)

    def scored(tokens_BL: Any, **how: Any) -> Any:
        log_probs_BL, calls = scores(tokens_BL, **how)
        least.extend(log_probs_BL.masked_fill(tokens_BL == model.shape.pad_id, 0).argmin(1, keepdim=True).tolist())
        return log_probs_BL, calls

    monkeypatch.setattr(model.writer, "write", recorded)
    monkeypatch.setattr(model.model, "token_log_probs", scored)
    monkeypatch.setattr(interpolation, "invert", lambda model, of, **how: asked.append(how) or invert(model, of, **how))
    monkeypatch.setattr(infilling, "remask", lambda of, ids, **how: asked.append(how) or again(of, ids, **how))
    how: Any = {"sampler": "random", "steps": 3, "temperature": 0.5, "seed": 7}
    model.infill(["w1 [MASK]", "[MASK] news"], latents=latents, **how)
    assert "1 of 2 texts" in caplog.messages[-1]
    edited = model.edit(["w1 w2 w3", "w4 w5"], targets=latents, strength=0.4, reembed=True, **how)
    assert edited.cosines is not None
    assert (edited.model_calls > 4).all(), "four calls choose what is rewritten"
    for each in asked:
        assert torch.equal(each.pop("latents_nd"), model.standardised(latents))
    written = {"sampler": text_sampler("random", steps=3, temperature=0.5), "seed": 7}
    assert asked == [written | {"masks": [[1], [0]]}, {"strength": 0.4, "seed": 7}, written | {"masks": least}]
    passed = {"sampler": "random", "length": 4, "reembed": True, "seed": 7}
    path = model.interpolate(latents, latents[::-1], steps=3, **passed)
    assert asked[3] == passed
    assert (path.rows.tolist(), path.fractions.tolist()) == ([0, 0, 0, 1, 1, 1], [0.0, 0.5, 1.0] * 2)
    assert model.edit("w1 w2 w3", targets=latents[:1], strength=1.0, steps=2).model_calls.max() <= 2
    for wrong in (
        lambda: model.infill("w1 [MASK]", latents=latents), lambda: model.edit("w1", targets=latents[:1], strength=1.5)
    ):  # fmt: skip
        with pytest.raises(SamplingError):
            wrong()


WRITTEN = st.text(alphabet="aAé龘 .,'!-\"\n9zZ([ſß", max_size=30)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pieces=st.lists(WRITTEN, min_size=2, max_size=4))
def test_everything_outside_the_masks_is_in_the_result_in_order(wordpiece: TextTokenizer, pieces: list[str]) -> None:
    found = infilled(wordpiece, "[MASK]".join(pieces), *["dog"] * (len(pieces) - 1))
    assert re.fullmatch(r"\s*dog\s*".join(re.escape(piece.strip()) for piece in pieces), found.strip())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=WRITTEN, data=st.data())
def test_editing_changes_only_the_masked_words(
    wordpiece: TextTokenizer, cased: TextTokenizer, text: str, data: st.DataObject
) -> None:
    """A character of several tokens is a word of its own."""
    tokenizer, dog = data.draw(st.sampled_from([(wordpiece, "dog"), (cased, "Ġdog")]))
    tokens, spans = tokenizer.encode([text])[0], tokenizer.spans(text)
    chosen = data.draw(st.sets(st.sampled_from(range(len(tokens))))) if tokens else set()
    found = edited(tokenizer, text, dict.fromkeys(chosen, dog))
    touched = {place for first, stop in (spans[token] for token in chosen) for place in range(first, stop)}
    kept = [text[slice(*span)].strip() for span in dict.fromkeys(spans) if touched.isdisjoint(range(*span))]
    assert len(re.findall("dog", found)) == len(chosen)
    assert re.search(".*".join(re.escape(part) for part in kept), found, re.DOTALL)
