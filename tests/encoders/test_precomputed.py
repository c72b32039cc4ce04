"""Encoders that are only declared, because their vectors come with the texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import config, to_dict
from mm_ldlm.core.errors import ConfigurationError, EncoderError
from mm_ldlm.data.encoders import given_dim, load_encoder, locate_encoder, no_encoder, parse_encoder

DECLARED: dict[str, Any] = {"kind": "precomputed", "name": "mine", "dim": 3, "normalised": False}


class Loaded:
    dim, fingerprint = 3, "f" * 32

    def encode(self, sentences: Any) -> Any:
        return np.full((len(sentences), self.dim), len(sentences), np.float32)

    def prepare(self, sentences: Any) -> Any:
        return sentences

    run = encode

    def verify(self) -> None:
        raise EncoderError("it has changed")


loaded_on: list[str | None] = []


@config
class ToyEncoderConfig:
    """An encoder for new texts."""

    kind: str = "toy"
    dim: int = 3
    name: str = "toy"
    device: None = None

    batching: Any = None

    def portable(self) -> Any:
        return to_dict(self)

    def missing(self) -> str | None:
        return "parameter 'encoder.path': it is away."

    def locate(self, *, expected: str | None = None) -> Any:
        return None

    def load(self, located: Any, *, device: str | None = None) -> Any:
        loaded_on.append(device)
        found = Loaded()
        found.dim = 3 if self.name == "toy" else 4
        return found


TOY = f"{__name__}:ToyEncoderConfig"


def test_a_declaration_is_identified_by_name_dimension_and_normalisation() -> None:
    found = parse_encoder(DECLARED)
    assert given_dim(found) == 3
    located = locate_encoder(found)
    assert (located.dim, located.normalised, located.name) == (3, False, "mine")
    marks = {locate_encoder(parse_encoder({**DECLARED, **change})).fingerprint for change in (
        {}, {"name": "yours"}, {"dim": 4}, {"normalised": True}
    )}  # fmt: skip
    assert len(marks) == 4
    named = parse_encoder({**DECLARED, "for_new_texts": {"kind": TOY}})
    assert locate_encoder(named).fingerprint == located.fingerprint
    assert found.portable() == named.portable()
    assert parse_encoder(to_dict(named)) == named


@pytest.mark.parametrize("key", ["name", "dim", "normalised"])
def test_nothing_of_a_declaration_has_a_default(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'encoder.{key}' is missing"):
        parse_encoder({name: value for name, value in DECLARED.items() if name != key})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, "'encoder.dim'.*found 0"),
        ({"name": " "}, "expected the name of the encoder that made the vectors"),
        ({"for_new_texts": {"kind": "local", "name": "minilm"}}, "found 'minilm' of dimension 384"),
        ({"for_new_texts": DECLARED}, r"expected an encoder that computes vectors \(local or http\)"),
        ({"for_new_texts": {"kind": "lokal"}}, "Did you mean 'local'"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_encoder({**DECLARED, **change})


def test_without_an_encoder_for_new_texts_nothing_is_embedded() -> None:
    found = parse_encoder(DECLARED)
    reason = no_encoder(found)
    assert reason is not None
    assert "Set encoder.for_new_texts" in reason
    assert found.missing() is None
    with pytest.raises(EncoderError, match="the vectors of the encoder 'mine' come from the sources"):
        load_encoder(found)


def test_the_encoder_for_new_texts_embeds_under_the_fingerprint_of_the_declaration() -> None:
    found = parse_encoder({**DECLARED, "for_new_texts": {"kind": TOY}})
    assert no_encoder(found) is None
    assert found.missing() == "parameter 'encoder.for_new_texts.path': it is away."
    loaded = load_encoder(found)
    assert loaded.fingerprint == locate_encoder(found).fingerprint
    np.testing.assert_array_equal(loaded.encode(["a", "b"]), np.full((2, 3), 2))
    np.testing.assert_array_equal(loaded.run(loaded.prepare(["a"])), np.full((1, 3), 1))
    with pytest.raises(EncoderError, match="it has changed"):
        loaded.verify()
    load_encoder(found, device="cuda:3")
    assert loaded_on[-2:] == [None, "cuda:3"]
    with pytest.raises(EncoderError, match=r"expected vectors of dimension 3 .* found dimension 4"):
        load_encoder(parse_encoder({**DECLARED, "for_new_texts": {"kind": TOY, "name": "other"}}))


def test_loading_locates_an_encoder_once_and_with_the_expected_fingerprint() -> None:
    calls: list[Any] = []

    class Config:
        def locate(self, *, expected: str | None) -> str:
            calls.append(("locate", expected))
            return "found"

        def load(self, located: str, *, device: str | None) -> str:
            calls.append(("load", located, device))
            return "loaded"

    config: Any = Config()
    assert load_encoder(config, device="cpu", expected="f") == "loaded"
    assert load_encoder(config, located="given", expected="f") == "loaded"  # type: ignore[arg-type]
    assert locate_encoder(config, expected="g") == "found"
    assert calls == [("locate", "f"), ("load", "found", "cpu"), ("load", "given", None), ("locate", "g")]


def test_the_encoder_for_new_texts_has_the_dimension_of_the_declaration() -> None:
    assert load_encoder(parse_encoder({**DECLARED, "for_new_texts": {"kind": TOY}})).dim == 3
