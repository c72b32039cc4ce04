"""Parameters of encoders at their limits, and what is stored of an encoder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.encoders.spec import EncoderSpec
from mm_ldlm.extras.http_encoder.address import endpoint, is_loopback

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.encoders.sentence_transformers import SentenceTransformersEncoder
from mm_ldlm.data.encoders.transformer import _has_pooler
from mm_ldlm.data.encoders.weights import LocatedWeights, locate_weights

LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "dim": ([1, 65_536], [0, 65_537]),
    "batch_rows": ([1, 65_536], [0, 65_537]),
    "batch_bytes": ([1, 2**28], [0, 2**28 + 1]),
    "connections": ([1, 64], [0, 65]),
    "requests_per_minute": ([0.1, 1e6, None], [0.09, 1.1e6, 0]),
    "timeout": ([0.001, 3600], [0.0009, 3601]),
    "retries": ([0, 100], [-1, 101]),
    "max_wait": ([0.001, 3600], [0.0009, 3601]),
    "min_cosine": ([0.5, 0.999_999], [0.49, 1.0]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_service_has_parameters_within_their_limits(name: str) -> None:
    given = {"kind": "http", "url": "https://host/v1", "name": "toy"}
    good, bad = LIMITS[name]
    for value in good:
        assert getattr(parse_encoder({**given, name: value}), name) == value
    for value in bad:
        with pytest.raises(ConfigurationError, match=rf"encoder\.{name}'"):
            parse_encoder({**given, name: value})


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ({"name": "e5", "truncate_dim": 1024}, True),
        ({"name": "e5", "truncate_dim": 1023}, False),
        ({"name": "minilm", "truncate_dim": 384}, True),
        *(({"name": "qwen3", "truncate_dim": dim}, 32 <= dim <= 1024) for dim in (31, 32, 33, 1024, 1025)),
        ({"name": "t5", "dtype": "bfloat16"}, True),
        ({"name": "sonar", "dtype": "float16"}, True),
        ({"name": "sonar", "language": "fra_Latn"}, True),
        ({"name": "owner/model", "truncate_dim": 9}, True),
        ({"name": "mine", "path": "/folder"}, True),
        ({"name": "mine"}, False),
    ],
)
def test_a_local_encoder_is_cut_only_where_it_was_trained_for_it(values: dict[str, Any], good: bool) -> None:
    if good:
        assert parse_encoder(values).name == values["name"]
        return
    with pytest.raises(ConfigurationError, match=r"encoder\.(truncate_dim|name)'"):
        parse_encoder(values)


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("LocalHost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True),
     ("localhost.example.org", False), ("10.0.0.1", False), ("", False), ("0.0.0.0", False)],
)  # fmt: skip
def test_a_key_leaves_this_machine_only_by_https(host: str, here: bool) -> None:
    assert is_loopback(host) == here


@pytest.mark.parametrize(
    ("url", "found"),
    [("https://host/v1", "https://host/v1/embeddings"), (" https://host/v1/ ", "https://host/v1/embeddings"),
     ("http://host", "http://host/embeddings"), ("http://host:8/embeddings/", "http://host:8/embeddings"),
     ("http://host/a/embeddings", "http://host/a/embeddings")],
)  # fmt: skip
def test_the_address_of_the_embeddings(url: str, found: str) -> None:
    assert endpoint(url).geturl() == found


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_the_description_has_every_field_but_the_digests_and_no_path(tmp_path: Path) -> None:
    """A folder of the user has no revision, whatever the registry pins."""
    (tmp_path / "config.json").write_text('{"hidden_size": 40}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = locate_weights("qwen3", path=str(tmp_path), truncate_dim=33, revision="ignored", dtype="bfloat16")
    fields = {field.name for field in dataclasses.fields(EncoderSpec)} - {"digests"}
    about = found.describe()
    assert about.keys() == fields | {"dtype", "fingerprint"}
    assert (about["revision"], about["dim"], about["dtype"], about["name"]) == (None, 33, "bfloat16", "qwen3")
    assert str(tmp_path) not in json.dumps(about)
    assert about["fingerprint"] == found.fingerprint


@pytest.mark.parametrize("prompt", ["", "say: "])
def test_an_empty_prompt_is_none_and_no_sentence_is_not_sent(
    prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library takes an empty prompt for the name of one."""
    asked: list[Any] = []

    class Library:
        max_seq_length = None

        def __init__(self, folder: str, **options: Any) -> None: ...

        def encode(self, texts: list[str], **options: Any) -> Any:
            asked.append((texts, options["prompt"]))
            return np.ones((len(texts), 5))

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Library)
    spec = EncoderSpec(name="m", source="m", architecture="sentence_transformers", prompt=prompt)
    located = LocatedWeights(spec=spec, folder=tmp_path, truncate_dim=None, dtype="float32", fingerprint="f")
    encoder = SentenceTransformersEncoder(located, device="cpu", max_length=9, batch_rows=2)
    assert encoder.model.max_seq_length == 9
    assert encoder.encode([]).shape == (0, 5)
    assert encoder.encode(["a"]).shape == (1, 5)
    assert asked == [(["dim"], prompt or None), (["a"], prompt or None)]


@pytest.mark.parametrize(
    ("kind", "pooler"),
    [("bert", True), ("roberta", True), ("xlm-roberta", True), ("camembert", True), ("mpnet", True), ("qwen3", False),
     ("distilbert", False)],
)  # fmt: skip
def test_classes_with_a_pooler_are_built_without_it(kind: str, pooler: bool, tmp_path: Path) -> None:
    """Its weights are not in the folders of sentence encoders and would count as missing."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    spec = EncoderSpec(name="m", source="m")
    located = LocatedWeights(spec=spec, folder=tmp_path, truncate_dim=None, dtype="float32", fingerprint="f")
    assert _has_pooler(located) == pooler
    other = dataclasses.replace(located, spec=dataclasses.replace(spec, architecture="t5_encoder"))
    assert not _has_pooler(other)
