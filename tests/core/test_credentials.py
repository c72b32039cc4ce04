"""Credentials: masked in everything that is shown, and recognised in parameters."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import MASK, holds_credentials, mask, mask_values

WORDS = st.text(string.ascii_letters + string.digits, min_size=8, max_size=20).map(lambda word: f"S3cret{word}")
FORMS = (
    "postgresql://user:{}@host:5432/db", "http://{}@host", "https://user:{}@[::1]/x?y=1", "http://host/x?token={}&y=2",
    "http://host/x?api_key={}", "http://host/x?X-Amz-Signature={}", "Authorization: Bearer {}",
    "Authorization: token {}", "user:{}@host",
    "http://user:a {}@host/", "http://user:a/{}@host/", "s3://key:{}@bucket", "http://h/#access_token={}",
    "http://user:a@{}@host", "//user:{}@host", "https://host/blob?se=1&sig={}", "--params=encoder.api_key={}",
    "host=db password='{}' user=me", 'x.password="a {} b",y=1', "x.token='{}",
)  # fmt: skip
PLAIN = (
    "http://host:5000/x", "sqlite:///data/mlflow.db", "a text: with a colon, mail to me@host.org", "12:30", "C:/folder",
    "http://host/x?max_tokens=32", "see http://host:80/x (me@host)", "key-value store", "git@github.com:a/b.git", "a@b",
    "mask_token=[MASK] pad_token=<pad>",
)  # fmt: skip


@given(WORDS, st.sampled_from(FORMS), st.sampled_from(PLAIN))
def test_no_secret_survives_masking_and_the_rest_does(secret: str, form: str, plain: str) -> None:
    shown = mask(f"{plain}\n{form.format(secret)}\n{plain}")
    assert secret not in shown
    assert shown.count(mask(plain)) >= 2


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_without_a_secret_is_none(text: str) -> None:
    assert not holds_credentials(text)
    assert mask(text) == text


@pytest.mark.parametrize("form", [form for form in FORMS if "://" in form and "a {}" not in form])
def test_a_parameter_with_a_secret_is_recognised(form: str) -> None:
    assert holds_credentials(form.format("S3cretS3cret")) == (form != "http://{}@host")  # a user alone is none


@pytest.mark.parametrize(
    "key", ["password", "PASSWORD", "db_password", "api_key", "apikey", "token", "hf.token", "secret", "credentials"]
)
def test_the_value_of_a_key_that_names_a_secret_is_masked(key: str) -> None:
    assert mask_values({"a": [{key: "word"}]}) == {"a": [{key: MASK}]}
    assert mask_values({key: ["word", ("other",)], f"x.{key}=word": 1}) == {key: [MASK, (MASK,)], f"x.{key}={MASK}": 1}


@pytest.mark.parametrize(
    "key", ["max_tokens", "token_vectors", "mask_token", "eos_token", "key", "splits.key", "keyboard"]
)
def test_the_value_of_another_key_is_shown(key: str) -> None:
    assert mask_values({key: "word"}) == {key: "word"}


@pytest.mark.parametrize(
    "text", ["http://" + "a" * 10**6, "://" * 10**5, "a:" * 10**5 + "@", "?token=" * 10**5, "@:" * 10**5]
)
def test_long_texts_are_masked_in_time(text: str) -> None:
    assert len(mask(text)) <= len(text) * 2
