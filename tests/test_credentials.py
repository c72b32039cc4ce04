"""A password or a token is refused in every parameter and masked in everything that is printed or stored."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline
from kedro_datasets.json import JSONDataset

import mm_ldlm.app.parameters
from mm_ldlm.app.hooks import ProjectHooks
from mm_ldlm.core.config import refuse_unwritable
from mm_ldlm.core.credentials import MASK, holds_credentials, mask, mask_values
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.messages import show

SENTINEL = "sentinel-5PfQ"
WITH_SECRETS = (
    f"https://user:{SENTINEL}@host/path",
    f"http://:{SENTINEL}@host",
    f"postgresql://user:{SENTINEL}@host:5432/db?a=b",
    f"https://user:with/{SENTINEL}@host",
    f"https://host/path?token={SENTINEL}&x=1",
    f"https://host/x?a=1&X-Amz-Signature={SENTINEL}",
    f"https://host/x?api_key={SENTINEL}#part",
    f"mysql+pymysql://user:{SENTINEL}@host/db",
    f"see https://user:{SENTINEL}@host, please",
)
WITHOUT = (
    "sqlite:///data/mlflow.db", "http://host:5000", "ssh://git@host/repository", "data/a@b.txt", "a: b", "",
    "https://host/page?step=3&tokens=4", "kind: absorbing", "mm-ldlm", "basic English",
)  # fmt: skip


@pytest.mark.parametrize("text", WITH_SECRETS)
def test_a_secret_is_masked_and_recognised(text: str) -> None:
    assert SENTINEL not in mask(text)
    assert MASK in mask(text)
    assert "host" in mask(text)
    assert mask(mask(text)) == mask(text)
    assert holds_credentials(text)
    assert SENTINEL not in show({"a": [text]})


@pytest.mark.parametrize("text", WITH_SECRETS)
@pytest.mark.parametrize("is_key", [False, True])
def test_a_secret_in_a_parameter_is_refused_and_not_repeated(is_key: bool, text: str) -> None:
    given = {"b": {text: 1}} if is_key else {"b": ["harmless", text]}
    with pytest.raises(ConfigurationError, match=r"parameter 'a\.b.*: found a password or a token in") as refused:
        refuse_unwritable(given, at="a")
    assert SENTINEL not in str(refused.value)


@pytest.mark.parametrize("text", WITHOUT)
def test_a_text_without_a_secret_is_none(text: str) -> None:
    assert not holds_credentials(text)
    refuse_unwritable({"b": [text]}, at="a")
    if not text.startswith("ssh"):
        assert mask(text) == text


def test_a_user_alone_is_masked_where_it_is_shown() -> None:
    assert mask(f"https://{SENTINEL}@host") == f"https://{MASK}@host"
    assert mask(f"Authorization: Bearer {SENTINEL}") == f"Authorization: Bearer {MASK}"


@pytest.mark.parametrize("name", ["password", "hub_token", "api_key", "aws.secret", "Authorization", "private-key"])
def test_the_values_of_keys_that_name_secrets_are_masked(name: str) -> None:
    assert mask_values({"a": {name: SENTINEL, "b": [f"http://u:{SENTINEL}@h"]}}) == {
        "a": {name: MASK, "b": [f"http://{MASK}@h"]}
    }
    assert mask_values({name: [SENTINEL, (SENTINEL, "")]}) == {name: [MASK, (MASK, "")]}, "each of several values"
    harmless = {"max_tokens": "many", "splits": {"key": "mm-ldlm"}, "batch_tokens": 4096, "token_vectors": "encoder"}
    assert mask_values(harmless) == harmless


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Basic", "basic", "BASIC"])
def test_the_credential_of_a_header_is_masked_in_any_capitals(scheme: str) -> None:
    assert mask(f"authorization: {scheme} {SENTINEL}") == f"authorization: {scheme} {MASK}"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_characters="/ \t\n@", exclude_categories=("Z", "C")), min_size=1, max_size=20))
def test_no_password_survives(password: str) -> None:
    assert mask(f"x https://user:{password}@host/y") == f"x https://{MASK}@host/y"


def test_a_long_text_is_masked_in_time() -> None:
    text = "://" * 30_000 + "?token" * 10_000
    assert mask(text) == text


def test_nothing_that_a_run_writes_contains_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials in the environment, and an error of a node whose message contains an address with a password."""
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {"tracking": "mm_ldlm.app.tracking.config:TrackingConfig"})
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, SENTINEL)
    section = {"enabled": True, "uri": "sqlite:///data/mlflow.db", "experiment": "e"}
    catalog = DataCatalog({
        "parameters": MemoryDataset({"seed": 0, "tracking": section}),
        "tracking_reference": JSONDataset(filepath=str(tmp_path / "tracking.json")),
        "timings": JSONDataset(filepath=str(tmp_path / "timings.json")),
    })  # fmt: skip
    hooks = ProjectHooks()
    hooks._project = tmp_path
    with caplog.at_level(logging.DEBUG, logger="mm_ldlm"):
        hooks.before_pipeline_run(
            run_params={"run_id": "1", "env": "test", "pipeline_names": None}, pipeline=Pipeline([]), catalog=catalog
        )
        hooks.on_pipeline_error(error=ConnectionError(f"no answer from https://user:{SENTINEL}@host"))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "mlflow.db" for path in written)
    assert not [path for path in written if SENTINEL.encode() in path.read_bytes()]
    assert SENTINEL not in caplog.text
