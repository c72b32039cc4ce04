"""First module of every child process: watch the launching process, then run a module as `python -m` does.

    python mm_ldlm/distributed/entry.py MODULE ARGUMENTS…

It imports nothing but the standard library before it watches: a child of which the parent is killed while torch is
imported would be an orphan.
"""

import ctypes
import os
import runpy
import signal
import sys

LAUNCHER = "MM_LDLM_LAUNCHER"
"""Environment variable with the process id of the launching process"""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel for SIGTERM when the parent ends (Linux), and end now if that has already happened.

    Args:
        parent: process id that the parent has; None: the id of the present parent.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent(int(os.environ[LAUNCHER]))
    own = os.path.dirname(os.path.abspath(__file__))
    # The folder of the package, not PYTHONPATH, whose folders have no colon in their names
    sys.path[:] = [os.path.dirname(os.path.dirname(own)), os.getcwd(), *(place for place in sys.path if place != own)]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
