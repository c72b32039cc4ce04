"""Start-up of the command line: the help, a refusal, and the first text of an inversion, next to `import torch`."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 5
PROGRAM = ["-m", "mm_ldlm"]
MODEL, TEXT = "minilm-english", "The weather in Paris was lovely last summer."


def run() -> list[dict[str, Any]]:
    """Return the rows: median seconds of a process, and of `import torch`."""
    from mm_ldlm import MMLDLM

    words: dict[str, list[str]] = {
        "startup.help": [*PROGRAM, "--help"],
        "startup.refusal": [*PROGRAM, "score", "missing.txt"],
    }
    with tempfile.TemporaryDirectory() as temporary:
        texts, vectors = Path(temporary) / "texts.txt", Path(temporary) / "vectors.npy"
        texts.write_text(TEXT, encoding="utf-8")
        np.save(vectors, MMLDLM.from_pretrained(MODEL).encode([TEXT]))
        for name, file in {"vectors": vectors, "texts": texts}.items():
            words[f"startup.invert_{name}"] = [
                *PROGRAM, "invert", str(file), "--run", MODEL, "--device", "cpu",
            ]  # fmt: skip
        torch = seconds(["-c", "import torch"])
        found = {name: seconds(each) for name, each in words.items()}
    peer = {"unit": "s", "peer": "import torch", "peer_value": torch}
    return [{"name": name, "value": value, "ratio": torch / value} | peer for name, value in found.items()]


def seconds(words: list[str]) -> float:
    """Return the median time of a process of Python."""

    def once() -> float:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "missing.txt" in words, done.stderr
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(ROUNDS))
