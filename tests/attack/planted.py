"""A target whose cases fail on purpose, one for each ending that the oracle must notice."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from mm_ldlm.core import SourceError

from .oracle import Written, Wrong, check_rows


class Unescaped(SourceError):
    """A project error whose message is printed as it is."""

    __str__ = Exception.__str__


ERRORS: dict[str, tuple[BaseException, str]] = {
    "refusal": (SourceError("expected one thing, found another.\nDo a third."), "refused"),
    "traceback": (KeyError("a defect"), "traceback"),
    "lines": (Unescaped("one\ntwo\nthree\nfour"), "long message"),
    "endless_line": (Unescaped("x" * 10_000), "long message"),
    "empty": (SourceError(""), "empty message"),
    "surrogate": (Unescaped("the name \udcff"), "unprintable message"),
    "wrong": (Wrong("silent change", "the bytes changed, the store did not complain"), "silent change"),
}
"""Planted error → the ending that the campaign must report"""
ROWS: dict[str, tuple[int, list[str], str]] = {
    "lost_row": (3, ["one", "two"], "lost row"),
    "invented_row": (3, ["one", "two", "three", "one"], "invented row"),
    "cut_text": (3, ["one", "two", "thr"], "changed text"),
    "foreign_text": (3, ["one", "two", "secret"], "foreign text"),
    "lost_text": (2, ["one", "two"], "lost row"),
}
"""Ingestions as a reader with this defect would leave them: fewest rows, accepted texts, the ending"""
DEEDS = {
    "none": "success", "printed": "traceback", "segfault": "signal", "abort": "signal", "wait": "time-out",
    "spin": "time-out", "memory": "memory", "exit": "no result", "orphan": "orphan",
}  # fmt: skip
FAULTS = DEEDS | {name: found[-1] for name, found in (ERRORS | ROWS).items()}


def prepare() -> None:
    """Nothing is needed."""


def generate(draw: random.Random) -> dict[str, Any]:
    return {"fault": draw.choice(list(FAULTS))}


def run(parameters: dict[str, Any], folder: Path, material: Any) -> str:
    fault = parameters["fault"]
    if fault in ERRORS:
        raise ERRORS[fault][0]
    if fault in ROWS:
        low, texts, _ = ROWS[fault]
        rows = {"one", "two", "three"}
        report = {"accepted": len(texts), "duplicates": 0, "quarantined": 0, "rows_from_splitting": 0}
        check_rows(Written(low, 3, whole=rows, required=rows, forbidden={"secret"}), report, texts, 0)
    match fault:
        case "printed":
            print("Traceback (most recent call last):\n  in a thread", flush=True)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "abort":
            os.abort()
        case "wait":
            time.sleep(3600)
        case "spin":
            while True:
                pass
        case "memory":
            return f"success {len(bytearray(2**36))}"
        case "exit":
            os._exit(0)
        case "orphan":
            if os.fork() == 0:
                time.sleep(3600)
    return "success"
