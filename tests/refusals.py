"""Golden file of messages: `refuses` checks an error and compares its message with `golden/messages.json`.

`pytest --regenerate` (without `-n`) rewrites the messages of the tests that it runs; a person reviews the diff.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden" / "messages.json"
LONGEST = 1500
_VARYING = (
    (re.compile(r"/\S*?/pytest-of-[^/\s]+/pytest-\d+/(popen-gw\d+/)?[^/\s'\"):;,]+"), "TMP"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0xADDRESS"),
    (re.compile(r"(Valid keys|[Cc]hoose (?:from|an? [^:]+)): [\w, ]+"), r"\1: NAMES"),  # of the installed families
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"\brun-[0-9a-f]{12}\b"), "run-NAME"),
    (re.compile(r"(\w+\.py):\d+"), r"\1:LINE"),
    (
        re.compile(r"process \d+, since [^:]+:\d\d:\d\d\S*: .*?( writes to|\. [A-Z])"),
        r"process NUMBER, since TIME: COMMAND\1",
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="rewrite the golden files of the tests that run")


def _constant(message: str) -> str:
    """Replace what differs between two runs of a test: folders, addresses, processes."""
    for pattern, name in _VARYING:
        message = pattern.sub(name, message)
    return message


class Messages:
    """The messages of one session, by test; written at its end if they are to be regenerated."""

    def __init__(self, *, regenerate: bool) -> None:
        self.regenerate = regenerate
        self.known: dict[str, list[str]] = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
        self.seen: dict[str, list[str]] = {}

    def compare(self, test: str, message: str) -> None:
        """Compare the next message of a test with the golden one."""
        message = _constant(message)
        found = self.seen.setdefault(test, [])
        found.append(message)
        if self.regenerate:
            return
        expected = [_constant(each) for each in self.known.get(test, [])]
        assert message in expected[len(found) - 1 : len(found)], (
            f"the message of {test} changed; read it, then run pytest --regenerate:\n  now: {message}\n"
            f"  golden: {expected[len(found) - 1 : len(found)]}"
        )

    def write(self) -> None:
        """Merge the messages of this session into the golden file."""
        GOLDEN.parent.mkdir(exist_ok=True)
        kept = {
            test: lines for test, lines in self.known.items() if (GOLDEN.parents[2] / test.split("::")[0]).is_file()
        }
        GOLDEN.write_text(
            json.dumps(kept | self.seen, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
        )


@pytest.fixture(scope="session")
def messages(request: pytest.FixtureRequest) -> Iterator[Messages]:
    found = Messages(regenerate=request.config.getoption("--regenerate"))
    yield found
    if found.regenerate and found.seen:
        found.write()


@pytest.fixture
def refuses(request: pytest.FixtureRequest, messages: Messages) -> Callable[..., Any]:
    """`with refuses(ErrorClass, *named):` expects an error of exactly this class whose message contains each of `named`.

    The message is one bounded text for a person, and equals the golden one.
    """

    @contextmanager
    def refusing(error: type[BaseException], *named: Any) -> Iterator[pytest.ExceptionInfo[BaseException]]:
        with pytest.raises(error) as raised:
            yield raised
        assert type(raised.value) is error
        message = str(raised.value)
        assert 20 <= len(message) <= LONGEST, message
        assert message.isprintable() or message.replace("\n", " ").isprintable(), message
        assert not [each for each in named if str(each) not in message], message
        messages.compare(request.node.nodeid, message)

    return refusing
