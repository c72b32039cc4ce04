"""Kill a process at each of its changes of files, for tests of what a killed writer leaves behind."""

import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}


def kills(action: Callable[[], Any]) -> Iterator[int]:
    """Run `action` in forked processes, killed before their first, second, … change of a file, until one ends.

    Yields the number of the change after each kill; what the process left is then on disk.
    """
    for number in itertools.count():
        if changes(action, number) is not None:
            return
        yield number


@pytest.fixture(params=["drawn", pytest.param("all", marks=pytest.mark.slow)])
def sweep(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Iterator[int]]:
    """`sweep(action)`: run it to its end, then killed before its first, its last and twelve drawn changes, or before all.

    Yields after each run, whose files the caller removes.
    """

    def numbers(action: Callable[[], Any]) -> Iterator[int]:
        count = changes(action)
        assert count is not None
        yield count
        drawn = random.Random(request.node.nodeid).sample(range(count), min(12, count))
        for number in range(count) if request.param == "all" else sorted({0, *drawn, count - 1}):
            assert changes(action, number) is None, "the action repeats its changes"
            yield number

    return numbers


def changes(action: Callable[[], Any], most: int = sys.maxsize) -> int | None:
    """Run `action` in a forked process that has `most` changes of files; return their number, or None if it was killed."""
    incoming, outgoing = os.pipe()
    pid = os.fork()
    if not pid:
        _run(action, most, outgoing)
    os.close(outgoing)
    _, status = os.waitpid(pid, 0)
    with open(incoming) as made:
        if os.WIFSIGNALED(status):
            return None
        assert os.WEXITSTATUS(status) == 0, "the action failed in the process that was not killed"
        return int(made.read())


def _run(action: Callable[[], Any], most: int, outgoing: int) -> None:
    made = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal made
        writes = event == "open" and (
            bool({*"wxa+"} & {*arguments[1]})
            if isinstance(arguments[1], str)
            else bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        )
        if (event in EVENTS or writes) and "/dev/" not in str(arguments[0]):
            if made == most:
                os.kill(os.getpid(), signal.SIGKILL)
            made += 1

    sys.addaudithook(count)
    try:
        action()
        os.write(outgoing, str(made).encode())
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
