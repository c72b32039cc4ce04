"""Free memory: what the host, the limits of the process and its control group leave, the least of them."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import memory

PAGE = resource.getpagesize()
INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("available_kib", "pages", "limit", "group", "used", "free"),
    [
        (9_000, 10, INFINITY, "max", "7", 9_000 * 1024),
        (9_000, 10, INFINITY, "5000", "1200", 3_800),
        (9_000, 3, 5 * PAGE, "max", "7", 2 * PAGE),
        (1, 3, 500 * PAGE, "5000", "7", 1_024),
        (9_000, 10, INFINITY, "5000", "6000", 0),
    ],
)
def test_what_is_in_use_is_not_free(
    available_kib: int, pages: int, limit: int, group: str, used: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "/proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n",
        "/proc/self/statm": f"{pages} 2 1 1 0 1 0",
        "/sys/fs/cgroup/memory.max": f"{group}\n",
        "/sys/fs/cgroup/memory.current": f"{used}\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda self, **_: files[str(self)])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert memory.free_bytes() == free


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/proc/meminfo", OSError(2, "no such file")), ("/proc/meminfo", "MemAvailable: many kB"),
        ("/proc/meminfo", "MemAvailable:"), ("/proc/self/statm", ""),
        ("/proc/self/statm", UnicodeDecodeError("ascii", b"", 0, 1, "no ASCII")),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("group", ["5000", "max"])
def test_what_a_host_does_not_report_is_no_limit(
    name: str, found: Any, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the control group holds all the same."""
    files = {
        "/proc/meminfo": "MemTotal: 99999999 kB\n", "/proc/self/statm": "3 2 1",
        "/sys/fs/cgroup/memory.max": group, "/sys/fs/cgroup/memory.current": "1200", name: found,
    }  # fmt: skip

    def read_text(self: Path, **_: Any) -> str:
        if isinstance(files[str(self)], Exception):
            raise files[str(self)]
        return files[str(self)]

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (INFINITY, INFINITY))
    assert memory.free_bytes() == (3_800 if group == "5000" else 2.0**47)


@pytest.mark.parametrize(
    ("refuse", "needed", "words"),
    [
        (lambda: memory.refuse_texts(3, tokens=5, numbers=7, what="generate"), 3 * (1_000 + 5 * 160 + 4 * 7),
         "generate: 3 texts of up to 5 tokens: .* Request fewer or shorter texts at once"),
        (lambda: memory.refuse_texts(2_000, tokens=1_000, what="infill"), 2_000 * (1_000 + 1_000 * 160),
         "infill: 2,000 texts of up to 1,000 tokens: .* the 0.3 GB .* about 0.3 GB"),
        (lambda: memory.refuse_numbers(9, what="draws"), 72, "draws: 9 numbers: .* Request less at once"),
        (lambda: memory.refuse_batch(1_024, vocab_size=50_000), 1_024 * 50_000 * 12,
         "batch_tokens 1,024 with a vocabulary of 50,000 words: .* Set a smaller batch_tokens, or None"),
    ],
)  # fmt: skip
def test_a_request_fits_in_exactly_the_memory_that_it_needs(
    refuse: Any, needed: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: float(needed))
    refuse()
    monkeypatch.setattr(memory, "free_bytes", lambda: float(needed) - 1)
    with pytest.raises(SamplingError, match=words):
        refuse()
