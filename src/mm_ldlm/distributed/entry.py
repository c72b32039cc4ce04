"""First module of every child process: watch the launching process, then run a module as `python -m` does.

    python mm_ldlm/distributed/entry.py PARENT INTERFACE MODULE ARGUMENTS…

PARENT is the process id of the launching process, INTERFACE the network interface for gloo; with an empty text gloo
chooses it, by the address of the host name, which is the loopback on many machines.
It imports nothing but the standard library before it watches: a child of which the parent is killed while torch is
imported would be an orphan.
"""

import ctypes
import os
import runpy
import signal
import sys

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
    parent, interface, *sys.argv = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python drops a Ctrl-C that arrives in a callback of an import
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: threads that `torch.set_num_threads` does not set
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    own = os.path.dirname(os.path.abspath(__file__))
    # The folder of the package, not PYTHONPATH, whose folders have no colon in their names
    sys.path[:] = [os.path.dirname(os.path.dirname(own)), os.getcwd(), *(place for place in sys.path if place != own)]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
