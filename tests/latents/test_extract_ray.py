"""Embedding on a Ray cluster of two nodes on loopback. `make test-slow` installs Ray and runs this test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import ray_nodes
from mm_ldlm.data.latents import worker
from mm_ldlm.extras.ray.engine import RayEngineConfig


@pytest.mark.slow
def test_a_node_killed_half_way_changes_no_byte(
    pristine: Any, new_data: Callable[..., Any], tmp_path: Path, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = new_data(rows=1200, shard_rows=40)
    expected = files(data.root / "latents")
    for path in (data.root / "latents").iterdir():
        path.unlink()
    real, written = worker._write, []
    with ray_nodes.two_nodes() as cluster:

        def write(plan: Any, number: int, *rest: Any) -> None:
            written.append(number)
            real(plan, number, *rest)
            if len(written) == 10:
                cluster.remove_node(ray_nodes.second_node(cluster), allow_graceful=False)

        monkeypatch.setattr(worker, "_write", write)
        data.extract(engine=RayEngineConfig(address=cluster.address), processes=0)
    assert sorted(written) == list(range(30))
    assert files(data.root / "latents") == expected
