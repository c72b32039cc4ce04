"""Every name of a credential is known: in the query of an address, and as the key of a parameter."""

from __future__ import annotations

from typing import Any

import pytest

from mm_ldlm.core.credentials import MASK, holds_credentials, mask, mask_values

SECRET = "sentinel-5PfQ"
IN_QUERIES = ("token", "passwd", "password", "pwd", "secret", "signature", "credential", "credentials", "api_key",
              "api-key", "apikey", "access_key", "accesskey", "sig", "key")  # fmt: skip
LONGER = ("hub_token", "X-Amz-Signature", "my.password", "X-Amz-Credential", "client%5Fsecret", "AWSAccessKey")
HARMLESS = ("tokens", "keys", "passwords", "monkey", "design", "sigma", "page", "key2")
KEYS = ("password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "credentials", "authorization",
        "api_key", "api-key", "apikey", "access_key", "private_key", "secret_key", "secret-key")  # fmt: skip
PLAIN_KEYS = ("key", "max_tokens", "tokenizer", "passwords", "keys", "secrets", "monkey", "public_key", "tokens")


@pytest.mark.parametrize("separator", ["?", "&", ";", "#"])
@pytest.mark.parametrize("name", IN_QUERIES + LONGER)
def test_the_value_of_a_name_in_a_query_is_masked_up_to_the_next_one(name: str, separator: str) -> None:
    for written in (name, name.upper()):
        text = f"https://host/x?a=1{separator}{written}={SECRET}&b=2 and more" if separator != "?" else (
            f"https://host/x?{written}={SECRET}&b=2 and more"
        )  # fmt: skip
        assert mask(text) == text.replace(SECRET, MASK)
        assert holds_credentials(text)


@pytest.mark.parametrize("name", HARMLESS)
def test_other_names_in_a_query_are_not(name: str) -> None:
    text = f"https://host/x?{name}={SECRET}"
    assert mask(text) == text
    assert not holds_credentials(text)


@pytest.mark.parametrize("end", ["&", ";", "#", "'", '"', " ", ""])
def test_a_value_ends_where_its_address_goes_on(end: str) -> None:
    assert mask(f"see 'https://host/x?token={SECRET}{end}rest") == f"see 'https://host/x?token={MASK}" + (
        f"{end}rest" if end else ""
    )


@pytest.mark.parametrize("before", ["", "hub_", "aws.", "my-", "the "])
@pytest.mark.parametrize("name", KEYS)
def test_the_value_of_a_key_with_the_name_of_a_credential_is_masked(name: str, before: str) -> None:
    for written in (name, name.upper(), name.title()):
        key = f"{before}{written}"
        assert mask_values({key: SECRET}) == {key: MASK}
        assert mask_values({key: [SECRET, {"x": SECRET}]}) == {key: [MASK, {"x": SECRET}]}


@pytest.mark.parametrize("name", PLAIN_KEYS)
def test_the_value_of_another_key_is_shown(name: str) -> None:
    given: dict[str, Any] = {name: SECRET, "deeper": {name: [SECRET, 3, None]}}
    assert mask_values(given) == given


@pytest.mark.parametrize("scheme", ["https", "s3", "postgresql+psycopg2", "git-ssh", "a.b"])
def test_the_user_of_any_scheme_is_masked(scheme: str) -> None:
    assert mask(f"at {scheme}://me:{SECRET}@host/x") == f"at {scheme}://{MASK}@host/x"
    assert mask(f"{scheme}://me:{SECRET}@host and {scheme}://{SECRET}@other") == (
        f"{scheme}://{MASK}@host and {scheme}://{MASK}@other"
    )


FORMS = {
    "https://me:{}@host": "https://***@host",
    "https://{}@host": "https://***@host",
    "https://me:a/{}@host/x": "https://***@host/x",
    "https://host/x?token={}": "https://host/x?token=***",
    "https://host/x?a=1#sig={}": "https://host/x?a=1#sig=***",
    "https://me:{}@host/x?api_key={}&secret={}": "https://***@host/x?api_key=***&secret=***",
    "Bearer {}": "Bearer ***",
    "Basic {}": "Basic ***",
}
"""Text with a credential in each place where one is known → the text that is shown"""


@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("first", FORMS)
def test_each_of_several_credentials_of_a_text_is_masked(first: str, second: str) -> None:
    text = f"from https://host {first} to {second} or {first}".replace("{}", SECRET)
    shown = f"from https://host {FORMS[first]} to {FORMS[second]} or {FORMS[first]}"
    assert mask(text) == shown
    assert mask_values({"a": [text], text: 1}) == {"a": [shown], shown: 1}


@pytest.mark.parametrize("separator", ["&", ";", "#"])
def test_every_credential_of_one_query_is_masked(separator: str) -> None:
    for written in (IN_QUERIES + LONGER, ("token",) * 5, ("a", "sig", "b", "key", "c")):
        text = "https://host/x?" + separator.join(f"{name}={SECRET}{place}" for place, name in enumerate(written))
        expected = "https://host/x?" + separator.join(
            f"{name}={SECRET}{place}" if name in ("a", "b", "c") else f"{name}={MASK}"
            for place, name in enumerate(written)
        )
        assert mask(text) == expected
        assert holds_credentials(text)


@pytest.mark.parametrize(("length", "hidden"), [(7, False), (8, True), (400, True)])
def test_a_header_has_a_credential_of_eight_characters_or_more(length: int, hidden: bool) -> None:
    value = "aB3.~+/=-_"[:1] + "x" * (length - 1)
    assert mask(f"Bearer {value}, then") == (f"Bearer {MASK}, then" if hidden else f"Bearer {value}, then")
    assert mask("Basic aB3.~+/=-_") == f"Basic {MASK}"


def test_keys_and_values_of_any_type_keep_their_types() -> None:
    url = f"https://me:{SECRET}@host"
    given = {url: 1, 3: url, "a": (url, [url]), "b": True, "c": None, "token": "", "d": 2.5}
    shown = f"https://{MASK}@host"
    assert mask_values(given) == {shown: 1, 3: shown, "a": (shown, [shown]), "b": True, "c": None, "token": "",
                                  "d": 2.5}  # fmt: skip
