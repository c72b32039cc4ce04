"""Start-up of the command line: the help, a refusal, and the first text of an inversion, next to `import torch`.

The inversion uses the newest run below `data` and is left out where there is none.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.core import CheckpointError
from mm_ldlm.inference.files import newest_run

ROUNDS = 5
PROGRAM = ["-m", "mm_ldlm"]


def run() -> list[dict[str, Any]]:
    """Return the rows: median seconds of a process, and those of `import torch` where torch is needed."""
    rows = [
        {"name": "start of mm-ldlm --help", "value": seconds([*PROGRAM, "--help"]), "unit": "s"},
        {"name": "refusal of a missing file", "value": seconds([*PROGRAM, "score", "missing.txt"]), "unit": "s"},
    ]
    with tempfile.TemporaryDirectory() as temporary:
        latents = str(Path(temporary) / "latents.npy")
        try:
            found = newest_run("data")
            from mm_ldlm import MMLDLM

            np.save(latents, np.eye(1, MMLDLM.from_run(found, device="cpu").dim, dtype=np.float32))
        except CheckpointError:
            return rows
        torch, first = seconds(["-c", "import torch"]), seconds([*PROGRAM, "invert", latents, "--device", "cpu"])
    inversion = {"name": "mm-ldlm invert to its first text", "value": first, "unit": "s"}
    return [*rows, {**inversion, "peer": "import torch", "peer_value": torch, "ratio": torch / first}]


def seconds(words: list[str]) -> float:
    """Return the median time of a process of Python."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], capture_output=True, check=False)
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(ROUNDS))
