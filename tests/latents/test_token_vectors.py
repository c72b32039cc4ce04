"""Token vectors: one row per token id, kept while tokenizer and encoder are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.extras.http_encoder.embedding_service import DIM, Service, running, unit

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.latents.token_vectors import embed_vocabulary

TOKENS = ["[PAD]", "[MASK]", "cat", "##s", "▁dog", "##"]


class Tokenizer:
    """What the vocabulary is read from."""

    vocab_size = len(TOKENS)

    def __init__(self, fingerprint: str = "t") -> None:
        self.fingerprint = fingerprint

    def token(self, number: int) -> str:
        return TOKENS[number]


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as found:
        yield found


def embed(service: Service, workspace: Path, *, tokenizer: str = "t", **values: Any) -> LatentStore:
    workspace.mkdir(exist_ok=True)
    encoder = parse_encoder({"kind": "http", "url": service.url, "name": "toy", **values})
    embed_vocabulary(Tokenizer(tokenizer), encoder=encoder, workspace=workspace).write(workspace)  # type: ignore[arg-type]
    return LatentStore.open(workspace)


def noisy(text: str) -> np.ndarray:
    return (unit(text) + np.random.default_rng().normal(0, 3e-5, DIM)).astype(np.float32)


def test_word_pieces_are_encoded_as_plain_text(service: Service, tmp_path: Path) -> None:
    found = embed(service, tmp_path / "w")
    plain = ["[PAD]", "[MASK]", "cat", "s", "dog", "##"]
    np.testing.assert_array_equal(found.take(slice(None)), [unit(text) for text in plain])
    assert found.ids(slice(None)) == TOKENS


def test_an_intact_store_of_the_same_inputs_is_kept(service: Service, tmp_path: Path) -> None:
    """Otherwise each run through a service would change the dataset, and training could not continue."""
    service.vectors = noisy
    first = embed(service, tmp_path / "w").manifest
    asked = len(service.texts)
    assert embed(service, tmp_path / "w").manifest == first
    assert len(service.texts) == asked
    shard = tmp_path / "w" / first.shards[0].name
    content = bytearray(shard.read_bytes())
    content[-300] ^= 1
    shard.write_bytes(content)
    embed(service, tmp_path / "w")
    assert len(service.texts) == asked + len(TOKENS)
    shard.unlink()
    embed(service, tmp_path / "w")
    assert len(service.texts) == asked + 2 * len(TOKENS)


@pytest.mark.parametrize("change", [{"tokenizer": "other"}, {"prompt": "say: "}])
def test_other_inputs_are_embedded_anew(service: Service, tmp_path: Path, change: dict[str, str]) -> None:
    first = embed(service, tmp_path / "w").manifest
    again = embed(service, tmp_path / "w", **change).manifest
    assert again.fingerprints != first.fingerprints
    assert len([text for text in service.texts if text.endswith("cat")]) == 2


def test_a_model_that_changes_meanwhile_is_refused(service: Service, tmp_path: Path) -> None:
    service.vectors = lambda text: unit(text, salt="new" if "cat" in service.texts else "")
    with pytest.raises(EncoderError, match="returns other vectors than before"):
        embed(service, tmp_path / "w")
    assert not list((tmp_path / "w").iterdir())
