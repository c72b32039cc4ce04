"""A target whose cases fail on purpose, one for each ending that the oracle must notice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import SourceError

from .oracle import Written, Wrong, check_rows


class Unescaped(SourceError):
    """A project error whose message is printed as it is."""

    __str__ = Exception.__str__


FAULTS = {
    "none": "success",
    "refusal": "refused",
    "traceback": "traceback",
    "printed": "traceback",
    "segfault": "signal",
    "abort": "signal",
    "wait": "time-out",
    "spin": "time-out",
    "memory": "memory",
    "exit": "no result",
    "lines": "long message",
    "endless_line": "long message",
    "empty": "empty message",
    "surrogate": "unprintable message",
    "lost_row": "lost row",
    "invented_row": "invented row",
    "cut_text": "changed text",
    "foreign_text": "foreign text",
    "lost_text": "lost row",
    "wrong": "silent change",
    "orphan": "orphan",
}
"""Planted fault → the ending that the campaign must report."""


def generate(draw: random.Random) -> dict[str, Any]:
    return {"fault": draw.choice(list(FAULTS))}


def run(parameters: dict[str, Any], folder: Path, material: Any) -> str:
    fault = parameters["fault"]
    match fault:
        case "refusal":
            raise SourceError("expected one thing, found another.\nDo a third.")
        case "traceback":
            raise KeyError("a defect")
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
        case "lines":
            raise SourceError("one\ntwo\nthree\nfour")
        case "endless_line":
            raise SourceError("x" * 10_000)
        case "empty":
            raise SourceError("")
        case "surrogate":
            raise Unescaped("the name \udcff")
        case "wrong":
            raise Wrong("silent change", "the bytes changed, the store did not complain")
        case "orphan":
            if os.fork() == 0:
                time.sleep(3600)
        case "lost_row" | "invented_row" | "cut_text" | "foreign_text" | "lost_text":
            _count(fault)
    return "success"


def _count(fault: str) -> None:
    """Ingestions as a reader with this defect would leave them, given to the count of rows."""
    texts = ["one", "two", "three"]
    written = Written(3, 3, whole=set(texts), required=set(texts), forbidden={"secret"})
    if fault == "lost_row":
        texts = texts[:2]
    elif fault == "invented_row":
        texts = [*texts, "one"]
    elif fault == "cut_text":
        texts = ["one", "two", "thr"]
    elif fault == "foreign_text":
        texts = ["one", "two", "secret"]
    elif fault == "lost_text":
        written.low, texts = 2, texts[:2]
    report = {"accepted": len(texts), "duplicates": 0, "quarantined": 0, "rows_from_splitting": 0}
    check_rows(written, report, texts, 0)
