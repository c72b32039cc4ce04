"""Token states: one for each token of the project, equal to the encoder's output, resumable; refusals."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.errors import EncoderError, FingerprintError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.ccdd.token_states import TokenStatesConfig, embed_tokens


def run(data: Any, workspace: Path, *, tokenizer: Any = None, encoder: Any = None, **config: Any) -> Manifest:
    return embed_tokens(
        data.records, data.tokens, tokenizer or data.tokenizer, encoder=encoder or data.encoder,
        config=TokenStatesConfig(**config), workspace=workspace,
    )  # fmt: skip


def test_a_state_is_the_output_of_the_encoder_at_its_token(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer, BertModel

    monkeypatch.setattr(token_states, "_RECORDS_AT_ONCE", 64)
    used: list[int] = []
    real = token_states.fixed_threads
    monkeypatch.setattr(token_states, "fixed_threads", lambda count: used.append(count) or real(1))
    manifest = run(pristine, tmp_path / "states", dtype="float32", threads=3)
    assert used == [3]
    assert [manifest.meta[name] for name in ("dim", "dtype", "bytes_per_token")] == [24, "float32", 4 * 24]
    states = ShardStore.open(tmp_path / "states", token_states.KIND)
    starts = token_states.starts(pristine.tokens.ints("length").take(slice(None)))
    assert manifest.rows == len(states) == starts[-1]
    folder = pristine.encoder.path
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    for record in (0, 100, 229):
        text = pristine.records.take([record]).column("text")[0].as_py()
        given = tokenizer(text, return_tensors="pt")
        want = model(**given).last_hidden_state[0, 1:-1].detach().numpy()  # without [CLS] and [SEP]
        rows = token_states.rows_of_tokens(starts, np.array([record]))
        np.testing.assert_allclose(states.fixed(token_states.COLUMN).take(rows), want, atol=1e-5)


def test_it_continues_after_a_kill_with_the_same_bytes(
    pristine: Any, tmp_path: Path, files: Callable[[Path], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(token_states, "SHARD_TOKENS", 700)
    with caplog.at_level("INFO", logger=token_states.__name__):
        manifest = run(pristine, tmp_path / "whole")
    ends = np.cumsum([shard.rows for shard in manifest.shards])
    assert caplog.messages == [f"states of {end} of {manifest.rows} tokens" for end in ends]
    assert len(manifest.shards) > 3
    assert manifest.meta["bytes_per_token"] == 2 * 24
    encoded = token_states._encode

    def twice_then_killed(*args: Any, **more: Any) -> Any:
        if args[4] > 50:
            raise KeyboardInterrupt
        return encoded(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(token_states, "_encode", twice_then_killed)
        with pytest.raises(KeyboardInterrupt):
            run(pristine, tmp_path / "parts")
    assert not Manifest.exists(tmp_path / "parts")
    calls: list[int] = []
    monkeypatch.setattr(token_states, "_encode", lambda *args, **more: calls.append(args[4]) or encoded(*args, **more))
    run(pristine, tmp_path / "parts")
    assert 0 < len(calls) < len(manifest.shards)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    calls.clear()
    run(pristine, tmp_path / "parts")
    assert not calls


def test_other_inputs_are_refused(pristine: Any, tmp_path: Path) -> None:
    run(pristine, tmp_path / "states")
    for changed in ({"dtype": "float32"}, {"threads": 2}):
        with pytest.raises(FingerprintError, match=r"made with other parameters\. Nothing"):
            run(pristine, tmp_path / "states", **changed)
    other = dataclasses.replace(pristine.encoder, max_length=60)
    with pytest.raises(FingerprintError, match=r"made with other encoder\. Nothing"):
        run(pristine, tmp_path / "states", encoder=other)
    small = pristine.tokenizer.with_vocabulary(np.arange(2000))
    with pytest.raises(FingerprintError, match=r"made with other tokenizer\. Nothing"):
        run(pristine, tmp_path / "states", tokenizer=small)
    for name in ("records", "tokens"):
        stores = SimpleNamespace(
            records=pristine.records, tokens=pristine.tokens, tokenizer=pristine.tokenizer, encoder=pristine.encoder
        )
        changed_store = copy.copy(getattr(stores, name))
        changed_store.manifest = dataclasses.replace(changed_store.manifest, meta={"other": 1})
        setattr(stores, name, changed_store)
        with pytest.raises(FingerprintError, match=rf"made with other {name}\. Nothing"):
            run(stores, tmp_path / "states")


def test_an_encoder_with_other_tokens_is_refused(pristine: Any, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, "the": 3}
    base = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    other = TextTokenizer(base, max_length=32)
    with pytest.raises(EncoderError, match=r"expected one state for each token.*set tokenizer\.path"):
        run(pristine, tmp_path / "states", tokenizer=other)
    prompted = dataclasses.replace(pristine.encoder, prompt="query: ")
    with pytest.raises(EncoderError, match="The encoder must also have no prompt"):
        run(pristine, tmp_path / "prompted", encoder=prompted)


def test_an_encoder_without_token_outputs_is_refused(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_states, "load_encoder", lambda config, located: object())
    with pytest.raises(EncoderError, match="no state for each token"):
        run(pristine, tmp_path / "states", encoder=LocalEncoderConfig(path=pristine.encoder.path))


@pytest.mark.parametrize(
    ("number", "dtype", "fits"),
    [(60_000.0, "float16", True), (70_000.0, "float16", False), (-70_000.0, "float16", False),
     (70_000.0, "float32", True), (np.nan, "float32", False), (np.inf, "float16", False)],
)  # fmt: skip
def test_states_that_the_stored_type_cannot_represent_are_refused(
    number: float, dtype: Any, fits: bool, pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*given: Any, **_: Any) -> Any:
        first, last = given[4:6]
        lengths = pristine.tokens.ints("length").take(slice(first, last))
        return np.array([[1.0, 2.0], [3.0, number]], np.float32)[np.arange(lengths.sum()) % 2]

    monkeypatch.setattr(token_states, "_encode", encode)
    if fits:
        run(pristine, tmp_path / "states", dtype=dtype)
        states = ShardStore.open(tmp_path / "states", token_states.KIND).fixed(token_states.COLUMN)
        assert states.take([1])[0].tolist() == [3.0, np.dtype(dtype).type(number)]
        return
    with pytest.raises(EncoderError, match=rf"not finite in {dtype} for tokens of the records 0 to 229"):
        run(pristine, tmp_path / "states", dtype=dtype)
    assert not list((tmp_path / "states").glob("*.arrow"))


@pytest.mark.parametrize("records", [[], [0], [4, 1], [2], [3, 3, 0], [0, 1, 2, 3, 4]])
def test_the_rows_of_tokens_follow_one_another_in_the_order_of_the_records(records: list[int]) -> None:
    lengths = np.array([2, 0, 3, 1, 4])
    starts = token_states.starts(lengths)
    assert starts.tolist() == [0, 2, 2, 5, 6, 10]
    expected = [row for record in records for row in range(starts[record], starts[record] + lengths[record])]
    assert token_states.rows_of_tokens(starts, np.array(records, np.int64)).tolist() == expected


def test_shards_end_at_records_and_are_bounded() -> None:
    starts = token_states.starts(np.array([5, 90_000, 3, 65_000, 600]))
    assert token_states._cuts(starts) == [(0, 1), (1, 2), (2, 4), (4, 5)]
    most = token_states.SHARD_TOKENS
    for lengths, cuts in (
        ([most - 1, 1, 1], [(0, 2), (2, 3)]), ([most - 1, 2], [(0, 1), (1, 2)]), ([most, most], [(0, 1), (1, 2)]),
        ([0, most, 0, 1], [(0, 3), (3, 4)]), ([], []),
    ):  # fmt: skip
        assert token_states._cuts(token_states.starts(np.array(lengths, np.int64))) == cuts
