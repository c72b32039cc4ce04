"""Free memory: what the host, the limits of the process and its control group leave, the least of them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

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
