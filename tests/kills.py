"""Kill a process at each of its changes of files, for tests of what a killed writer leaves behind."""

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}


def kills(action: Callable[[], Any]) -> Iterator[int]:
    """Run `action` in forked processes, killed before their first, second, … change of a file, until one ends.

    Yields the number of the change after each kill; what the process left is then on disk.
    """
    for number in itertools.count():
        pid = os.fork()
        if not pid:
            _run(action, number)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the action failed in the process that was not killed"
            return
        yield number


def _run(action: Callable[[], Any], number: int) -> None:
    left = number

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and (
            bool({*"wxa+"} & {*arguments[1]})
            if isinstance(arguments[1], str)
            else bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        )
        if (event in EVENTS or writes) and "/dev/" not in str(arguments[0]):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(count)
    try:
        action()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
