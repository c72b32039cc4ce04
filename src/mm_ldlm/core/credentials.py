"""Mask credentials in texts and parameters, and test whether a text contains one.

Credentials belong in environment variables (`MLFLOW_TRACKING_USERNAME`, `HF_TOKEN`) and never in a parameter.
Everything that prints or stores parameters or addresses masks them here.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

_USER = re.compile(r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]*://)(?:[^\s/]{0,1000}|[^\s/@:]*:\S{0,1000})@")
"""The user and the password of an address; the second form is a password with a `/` that should have been encoded."""
_LOOSE = re.compile(
    r"(?P<scheme>://|(?<![^\s'\"(=,/]))(?:(?<=://)[^\s/@:]{0,100}:[^/@\n]{1,200}|[^\s/@:'\"]{1,100}:[^\s/@]{1,200})@(?=[\w\[])"
)
"""A password with a space in it, and a user with a password without a scheme; masked where a text is shown"""
_QUERY = re.compile(
    r"(?P<name>[?&;#](?:[\w.~%-]{0,40}(?:token|passw(?:or)?d|pwd|secret|signature|credentials?|(?:api|access)[_-]?key)"
    r"|sig|key)=)[^\s&;#'\"]+",
    re.IGNORECASE,
)
"""A value of the query of an address with the name of a credential."""
_HEADER = re.compile(
    r"\b(?P<name>(?:Bearer|Basic|Authorization['\"]?\s*[:=]\s*['\"]?[\w-]+)\s+)[\w.~+/=-]{8,}", re.IGNORECASE
)
_NAME = (
    r"(?:password|passwd|passphrase|pwd|secret|(?<!mask_)(?<!(?:pad|unk|sep|cls|bos|eos)_)token|credentials?"
    r"|authorization|(?:api|access|private|secret)[_-]?key)"
)
"""Names of credentials; the special tokens of a tokenizer are none"""
_NAMES = re.compile(rf"(?:^|[_.\s-]){_NAME}$", re.IGNORECASE)
"""Keys whose value is a credential. `max_tokens` and `splits.key` are none."""
_ASSIGNED = re.compile(rf"(?<![a-z0-9])(?P<name>{_NAME}=)(?:\"[^\"]*\"|'[^']*'|[\"']?[^\s,;&'\"]+)", re.IGNORECASE)
"""The value of such a key in a command line; masked where a text is shown"""


def mask(text: str) -> str:
    """Return `text` with the credentials of addresses and of authorization headers replaced by `***`."""
    return _ASSIGNED.sub(rf"\g<name>{MASK}", _LOOSE.sub(rf"\g<scheme>{MASK}@", _masked(text)))


def _masked(text: str) -> str:
    if "://" in text:
        text = _USER.sub(rf"\g<scheme>{MASK}@", text)
        text = _QUERY.sub(rf"\g<name>{MASK}", text)
    return _HEADER.sub(rf"\g<name>{MASK}", text)


def holds_credentials(text: str) -> bool:
    """Return whether an address in `text` contains a password or a token; a user name (`ssh://git@host`) is neither."""
    return _masked(text) != re.sub(r"(?<=://)([^\s/@:]+)(?=@)", MASK, text)


def mask_values(value: Any, *, key: str = "") -> Any:
    """Mask the credentials in parameters: in every text, and the entire text of a key such as `password`."""
    if isinstance(value, str):
        return MASK if value and _NAMES.search(key) else mask(value)
    if isinstance(value, Mapping):
        return {mask(name) if isinstance(name, str) else name: mask_values(item, key=str(name))
                for name, item in value.items()}  # fmt: skip
    if isinstance(value, (list, tuple)):
        return type(value)(mask_values(item, key=key) for item in value)
    return value
