"""A fault in every process of a command: with this folder on PYTHONPATH, Python imports the file when it starts.

`FAULT="SIGKILL 17 FOLDER COUNTER"` meets the process that makes the 17th change of a file below FOLDER. All processes
count together in the file COUNTER, by its size. After that change a full disk (`ENOSPC`) accepts no other one.
"""

import errno
import os
import signal
import sys
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"}
FULL = {"os.rename", "os.mkdir", "os.link", "os.symlink", "open"}
"""Changes that need room"""


def _plant(fault: str, number: int, folder: str, counter: str) -> None:
    count = os.open(counter, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def meet(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (event in CHANGES or writes) or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        if not os.fsdecode(arguments[0]).startswith(folder):
            return
        os.write(count, b".")
        place = os.lseek(count, 0, os.SEEK_END)
        if fault == "ENOSPC" and place >= number and event in FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(arguments[0]))
        if fault.startswith("SIG") and place == number:
            os.kill(os.getpid(), getattr(signal, fault))

    sys.addaudithook(meet)


if "FAULT" in os.environ:
    _fault, _number, _folder, _counter = os.environ["FAULT"].split(" ")
    _plant(_fault, int(_number), _folder, _counter)
