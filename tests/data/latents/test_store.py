"""Token vectors: one per token id, encoded as plain text, kept while tokenizer and encoder are the same."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.data.latents.toy import ToyEncoderConfig, content, digest_vector

from mm_ldlm.core import EncoderError
from mm_ldlm.data.features import Inputs
from mm_ldlm.data.latents.store import LatentStore, TokenVectors

TOKENS = ["[PAD]", "cat", "##s", "▁dog", "##"]
PLAIN = ["[PAD]", "cat", "s", "dog", "##"]


def made(workspace: Path, *, mark: str = "t", **options: Any) -> LatentStore:
    tokenizer: Any = SimpleNamespace(
        vocab_size=len(TOKENS), fingerprint=mark, token=TOKENS.__getitem__, written=PLAIN.__getitem__
    )
    nothing: Any = None
    TokenVectors(ToyEncoderConfig(**options)).make(Inputs(nothing, nothing, tokenizer, {}), workspace)
    return LatentStore.open(workspace)


def test_row_i_is_the_vector_of_the_plain_text_of_token_i(tmp_path: Path) -> None:
    found = made(tmp_path)
    np.testing.assert_array_equal(found.take(slice(None)), np.array([digest_vector(t) for t in PLAIN], np.float32))
    assert found.gather("id", slice(None)).to_pylist() == TOKENS


def test_a_store_of_the_same_inputs_is_kept_and_another_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, loaded = made(tmp_path), []
    before, real = content(tmp_path), ToyEncoderConfig.load
    monkeypatch.setattr(ToyEncoderConfig, "load", lambda *a, **k: loaded.append(a) or real(*a, **k))
    assert made(tmp_path, about="again").manifest == first.manifest
    assert not loaded
    (tmp_path / first.manifest.shards[0].name).write_bytes(b"damaged")
    made(tmp_path)
    assert content(tmp_path) == before
    for other in ({"salt": "x"}, {"mark": "u"}):
        assert made(tmp_path, **other).manifest.fingerprint != first.manifest.fingerprint
    assert len(loaded) == 3


def test_a_token_without_a_usable_vector_is_refused_and_nothing_is_stored(tmp_path: Path, refuses: Any) -> None:
    with refuses(EncoderError, "dog"):
        made(tmp_path / "a", wrong="dog")
    marker = tmp_path / "changed"
    marker.touch()
    with pytest.raises(EncoderError, match="Restore it"):
        made(tmp_path / "b", changes=str(marker))
    assert not [*tmp_path.rglob("*.arrow")]
