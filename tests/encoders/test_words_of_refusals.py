"""Refusals of encoders in full: each value at its place, what was expected, what was found and what to do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.extras.http_encoder.embedding_service import DIM, Service, unit

from mm_ldlm.core.errors import ConfigurationError, EncoderError, MMLDLMError
from mm_ldlm.data.encoders import (
    REGISTRY,
    LocalEncoderConfig,
    load_encoder,
    locate_encoder,
    no_encoder,
    parse_encoder,
    transformer,
)
from mm_ldlm.data.encoders.weights import locate_weights
from mm_ldlm.extras.http_encoder import probes
from mm_ldlm.extras.http_encoder.encoder import vectors_of

NAMES = ", ".join(REGISTRY)


def said(kind: type[MMLDLMError], call: Any) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def encoder_of(service: Service, **values: Any) -> Any:
    return parse_encoder({"kind": "http", "url": service.url, "name": "toy", "connections": 1, "timeout": 30, **values})


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "minilmm"}, f"encoder 'minilmm' is neither in the registry ({NAMES}) nor a hub id (owner/model); set "
         "path to use a local sentence-transformers folder under any name"),
        ({"name": "e5", "truncate_dim": 7}, "truncate_dim=7: e5 was not trained for truncation"),
        ({"name": "qwen3", "truncate_dim": 31}, "truncate_dim=31: qwen3 can be truncated to 32..1024"),
        ({"name": "t5", "dtype": "float16"}, "T5 overflows in float16; use bfloat16 or float32"),
        ({"name": "e5", "language": "x"}, "language='x': e5 has no language setting"),
        ({"kind": "http", "url": "https://h", "name": " "}, "expected the service's name of the model, found an "
         "empty one"),
        ({"kind": "http", "url": "https://h", "name": "m", "shorten": True}, "expected dim, the number of dimensions "
         "to ask for, found null"),
        ({"kind": "http", "url": "https://h", "name": "m", "retries": 101}, "expected a number from 0 to 100, found "
         "101"),
        ({"kind": "http", "url": "https://h", "name": "m", "min_cosine": 0.25}, "expected a number from 0.5 to 1, "
         "found 0.25"),
        ({"kind": "http", "url": "http://far:8/v1", "name": "m", "key_variable": "KEY"}, "a key is sent to far without "
         "encryption; use https, or set key_variable to null for a service without a key"),
        ({"kind": "http", "url": "https://h", "name": "m", "key_variable": "sk-1"}, "expected the name of an "
         "environment variable (letters, digits and '_'), found something else, which is not shown because it may be "
         "the key itself"),
        ({"kind": "precomputed", "name": "", "dim": 3, "normalised": True}, "expected the name of the encoder that "
         "made the vectors, found an empty one"),
        ({"kind": "precomputed", "name": "m", "dim": 3, "normalised": True, "for_new_texts": {"kind": "local"}},
         "expected an encoder of dimension 3, like that of the given vectors, found 'minilm' of dimension 384"),
        ({"kind": "precomputed", "name": "m", "dim": 3, "normalised": True, "for_new_texts": {"kind": "precomputed",
          "name": "n", "dim": 3, "normalised": True}}, "expected an encoder that computes vectors (local or http), "
         "found one whose vectors are given"),
    ],
)  # fmt: skip
def test_parameters_are_refused_in_full(values: dict[str, Any], words: str) -> None:
    assert words in said(ConfigurationError, lambda: parse_encoder(values))


def test_what_an_encoder_lacks_is_said_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalEncoderConfig(path="away").missing() == (
        f"parameter 'encoder.path': away does not exist (looked from {tmp_path}). Correct it or put the folder with "
        "the weights there."
    )
    declared = {"kind": "precomputed", "name": "mine", "dim": 384, "normalised": True}
    found = parse_encoder({**declared, "for_new_texts": {"kind": "local", "path": "away"}})
    assert str(found.missing()).startswith("parameter 'encoder.for_new_texts.path': away does not exist")
    assert no_encoder(found) is None
    assert no_encoder(parse_encoder(declared)) == (
        "the vectors of the encoder 'mine' come from the sources, and no encoder is named that can embed other texts. "
        "Set encoder.for_new_texts (for example {kind: local, name: minilm}) if there is one."
    )
    loaded = SimpleNamespace(dim=5)
    monkeypatch.setattr("mm_ldlm.extras.own_vectors.encoder.load_encoder", lambda config, *, device: loaded)
    assert said(EncoderError, lambda: load_encoder(found)) == (
        "expected vectors of dimension 384 from the encoder for new texts, like those of 'mine', found dimension 5. "
        "Correct encoder.for_new_texts."
    )


# -- services ----------------------------------------------------------------------------------------------------------

SERVICE = (
    ". Check that encoder.url is an embedding service with the convention /v1/embeddings, and encoder.name and "
    "encoder.dim."
)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([1], "expected an answer with the list 'data', found [1]"),
        ({"data": {}}, "expected an answer with the list 'data', found {'data': {}}"),
        ({"data": [1]}, "expected 2 vectors for 2 sentences, found 1"),
        ({"data": [1, 2]}, "expected an index from 0 to 1 for each vector, found None"),
        ({"data": [{"index": 2}, 1]}, "expected an index from 0 to 1 for each vector, found 2"),
        ({"data": [{"index": 1, "embedding": [1.0]}] * 2}, "expected each index once, found 1 twice"),
        ({"data": [{"index": 1, "embedding": "?"}] * 2}, "expected an embedding that is a list of numbers or base64 of "
         "float32, found '?'"),
        ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0, 3.0]}]}, "expected vectors "
         "of dimension 1, found 3"),
    ],
)  # fmt: skip
def test_answers_are_refused_in_full(answer: Any, words: str) -> None:
    assert said(EncoderError, lambda: vectors_of(answer, rows=2, dim=None, service="S")) == f"S: {words}{SERVICE}"


def test_vectors_of_an_answer_are_in_the_order_of_the_request() -> None:
    answer = {"data": [{"index": index, "embedding": [float(index), 0.5]} for index in (2, 0, 1)]}
    found = vectors_of(answer, rows=3, dim=2, service="S")
    assert (found.dtype, found.tolist()) == (np.float32, [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]])


def test_a_service_that_is_another_one_is_refused_in_full(service: Service) -> None:
    place = service.url.removesuffix("/v1")
    first = locate_encoder(encoder_of(service)).fingerprint
    service.vectors = lambda text: -unit(text)
    assert said(EncoderError, lambda: locate_encoder(encoder_of(service, min_cosine=0.9), expected=first)) == (
        f"{place}: the model 'toy' returns other vectors than before: the cosine of a probe sentence is -1, "
        "encoder.min_cosine is 0.9. Another model answers under this name, or another version of it. Finished shards "
        "are kept, and no further one was written. Restore the earlier model and run again, or remove the latents to "
        "embed everything with the present one."
    )
    service.vectors = lambda text: unit(text) * 3
    assert said(EncoderError, lambda: locate_encoder(encoder_of(service))) == (
        f"{place}: expected vectors of length 1 from the model 'toy' (encoder.normalised), found lengths that differ "
        "from 1 by up to 2. Set encoder.normalised to false."
    )
    service.vectors = lambda text: unit(text) * (0 if text == probes.SENTENCES[-1] else 1)
    assert said(EncoderError, lambda: locate_encoder(encoder_of(service))) == (
        f"{place}: expected finite vectors other than zero for the probe sentences, found NaN, infinity or zeros. "
        "Check the model 'toy' of the service."
    )
    service.vectors = lambda text: unit(text, dim=DIM + len(text) % 2)
    assert said(EncoderError, lambda: locate_encoder(encoder_of(service, batch_rows=1))) == (
        f"{place}: expected vectors of one dimension, found [{DIM}, {DIM + 1}]. Set encoder.dim, and check that one "
        "model answers."
    )


def test_an_answer_that_is_too_large_is_refused_in_full(service: Service) -> None:
    encoder: Any = load_encoder(encoder_of(service))
    service.fault = lambda number, texts: "huge"
    most = (DIM * 32 + 1024) * 2 + 65_536
    assert said(EncoderError, lambda: encoder.encode(["a", "b"])) == (
        f"{service.url.removesuffix('/v1')}: expected an answer of at most {most} bytes, found a larger one. Check "
        "that encoder.url is an embedding service; a smaller encoder.batch_rows makes answers smaller."
    )


# -- folders -----------------------------------------------------------------------------------------------------------


def test_folders_are_refused_in_full(tmp_path: Path) -> None:
    assert said(EncoderError, lambda: locate_weights("e5", path=str(tmp_path))) == (
        f"encoder 'e5': the folder {tmp_path} contains no config.json. Set encoder.path to a folder with the model's "
        "config.json, its tokenizer and its weights."
    )
    (tmp_path / "config.json").write_text('{"hidden_size": 40}')
    assert said(EncoderError, lambda: locate_weights("mine", path=str(tmp_path))) == (
        f"encoder 'mine': {tmp_path} has no modules.json, so it is not a sentence-transformers model and its pooling "
        f"is unknown. Use a name of the registry ({NAMES}) with encoder.path, or add a spec to encoders/registry.py."
    )
    assert said(EncoderError, lambda: locate_weights("e5", path=str(tmp_path))) == (
        f"encoder 'e5': {tmp_path} contains no weights (*.safetensors or pytorch_model*.bin). Fetch the model again."
    )
    (tmp_path / "model.safetensors").touch()
    assert said(EncoderError, lambda: locate_weights("qwen3", path=str(tmp_path), truncate_dim=41)) == (
        "encoder 'qwen3': truncate_dim=41, but its vectors have 40 dimensions. Set encoder.truncate_dim to at most "
        "that."
    )


def test_models_are_refused_in_full(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    located: Any = LocalEncoderConfig(name="minilm", path=str(tiny("minilm"))).locate()
    other = dataclasses.replace(located, spec=dataclasses.replace(located.spec, dim=50))
    options = {"device": "cpu", "batch_tokens": 99, "batch_rows": 9}
    assert said(EncoderError, lambda: transformer.TransformerEncoder(other, **options)) == (
        "encoder 'minilm': expected dimension 50 (its spec), found 32. Use the weights that the spec names."
    )

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("first\nsecond")

    import transformers

    with monkeypatch.context() as patch:
        patch.setattr(transformers.AutoModel, "from_pretrained", fail)
        assert said(EncoderError, lambda: transformer._load_model(located)) == (
            f"encoder 'minilm': the model in {located.folder} cannot be loaded (first). Fetch the model again."
        )
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    assert said(EncoderError, lambda: transformer._load_tokenizer(located)) == (
        f"encoder 'minilm': the tokenizer in {located.folder} cannot be loaded (first). Fetch the model again."
    )
