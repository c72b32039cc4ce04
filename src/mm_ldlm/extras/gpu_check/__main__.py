"""`python -m mm_ldlm.extras.gpu_check` (`make gpu-check`): check a machine with a GPU, and write a report.

    python -m mm_ldlm.extras.gpu_check                          all checks
    python -m mm_ldlm.extras.gpu_check --list                   the names of the checks
    python -m mm_ldlm.extras.gpu_check --only models bf16       some of them
    python -m mm_ldlm.extras.gpu_check --device cpu             the parts that a CPU can check, at small sizes

The exit code is 1 if a check fails, or if there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.gpu_check import report
from mm_ldlm.extras.gpu_check.registry import CHECKS, chosen
from mm_ldlm.extras.gpu_check.runner import run_checks


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mm_ldlm.extras.gpu_check", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run these checks; see --list")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--out", type=Path, default=Path("data/gpu_check"), help="folder of the report (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1800.0, help="time for all checks together (%(default)g)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device to check (%(default)s)")
    given = parser.parse_args(arguments)
    if given.list:
        width = max(map(len, CHECKS))
        print("\n".join(f"{name:{width}}  {entry.what}" for name, entry in CHECKS.items()))
        return 0
    try:
        names = chosen(given.only)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            f"No GPU was found (torch {torch.__version__}, torch.cuda.is_available() is false). On a machine with one, "
            "check the driver and that torch was built for CUDA. `python -m mm_ldlm.extras.gpu_check --device cpu` "
            "(`make gpu-check ARGS='--device cpu'`) runs the parts that a CPU can check.",
            file=sys.stderr,
        )
        return 1
    outcomes = run_checks(names, device=given.device, out=given.out, seconds=given.seconds, show=_show)
    options = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["python -m mm_ldlm.extras.gpu_check", *options])
    json_path, table_path = report.write(outcomes, device=given.device, command=command, out=given.out)
    counts = {
        status: sum(outcome.status == status for outcome in outcomes) for status in ("passed", "failed", "left out")
    }
    print(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    print(f"written: {json_path} and {table_path}; append the second to docs/log.md")
    return 1 if counts["failed"] else 0


def _show(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
