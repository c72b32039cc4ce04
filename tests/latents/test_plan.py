"""What decides the bytes of the latents, and where each option of the embedding is used."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.data.latents.plan import Plan, make_plan

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import EncoderError
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.latents import extract, hosts, worker
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.extras.ray.engine import RayEngineConfig


class Records:
    """What a plan reads of the records."""

    directory, manifest = Path("/records"), SimpleNamespace(fingerprint="r")

    def __len__(self) -> int:
        return 5000


def test_every_option_that_changes_a_bit_is_in_the_fingerprint_of_the_plan() -> None:
    def plan(encoder: Any = None, located: str = "e", records: Any = None, **changes: Any) -> Plan:
        return make_plan(
            records or Records(), SimpleNamespace(fingerprint=located), encoder=parse_encoder(encoder or {}),  # type: ignore[arg-type]
            config=dataclasses.replace(ExtractConfig(), **changes), workspace=Path("/w"),
        )  # fmt: skip

    decides: dict[str, Any] = {"dtype": "float16", "shard_rows": 7, "threads": 3}
    free: dict[str, Any] = {
        "processes": 2, "non_finite": "quarantine", "progress": False, "engine": RayEngineConfig(),
        "launch": dataclasses.replace(ExtractConfig().launch, nodes=2),
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(ExtractConfig)} == {*decides, *free}
    before = plan().fingerprint
    changed = [plan(**{name: value}).fingerprint for name, value in decides.items()]
    changed += [plan({name: 3}).fingerprint for name in ("batch_tokens", "batch_rows")]
    http = {"kind": "http", "url": "http://127.0.0.1/v1", "name": "toy"}
    changed += [plan(http | batch).fingerprint for batch in ({}, {"batch_rows": 3}, {"batch_bytes": 3})]
    other = Records()
    other.manifest = SimpleNamespace(fingerprint="other")
    changed += [plan(located="other").fingerprint, plan(records=other).fingerprint]
    assert len({before, *changed}) == 1 + len(changed)
    for name, value in free.items():
        if name not in ("engine", "launch"):
            assert plan(**{name: value}).fingerprint == before, name
    assert plan({"device": "cpu"}).fingerprint == before
    made = plan(dtype="float16", threads=3, non_finite="quarantine", shard_rows=7)
    assert (made.rows, made.shard_rows, made.dtype, made.threads, made.non_finite) == (
        5000,
        7,
        "float16",
        3,
        "quarantine",
    )
    assert made.fingerprints["records"] == "r"
    assert made.fingerprints["encoder"] == "e"
    assert plan().shard_rows == 1024


def some_plan(folder: Path, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "records": folder, "workspace": folder, "rows": 10, "shard_rows": 4, "dtype": "float32", "threads": 1,
        "non_finite": "stop", "encoder": parse_encoder({}), "fingerprints": {"encoder": "e"},
    }  # fmt: skip
    return Plan(**given | changes)


@pytest.mark.parametrize(
    ("number", "dtype", "non_finite", "refused"),
    [(70_000.0, "float32", "stop", False), (70_000.0, "float16", "stop", True),
     (70_000.0, "float16", "quarantine", False), (1.0, "float16", "stop", False), (np.nan, "float32", "stop", True),
     (np.inf, "float32", "quarantine", False)],
)  # fmt: skip
def test_numbers_that_the_stored_type_cannot_represent_are_not_finite(
    number: float, dtype: str, non_finite: str, refused: bool, tmp_path: Path
) -> None:
    plan = some_plan(tmp_path, dtype=dtype, non_finite=non_finite)
    vectors = np.ones((8, 2), np.float32)
    vectors[1:8, 1] = number
    ids = [f"id{row}" for row in range(8)]
    if not refused:
        worker._check(plan, 3, ids, vectors)
        plan.progress_folder.mkdir()
        worker._write(plan, 3, ids, vectors, 0, 8)
        return
    with pytest.raises(EncoderError, match=r"7 of 8 sentences of shard 3 \(ids id1, id2, id3, id4, id5, …\)"):
        worker._check(plan, 3, ids, vectors)


def test_a_shard_is_recorded_after_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two leaves a shard that is made again, and no record of a shard that does not exist."""
    plan = some_plan(tmp_path)
    plan.progress_folder.mkdir()

    def full(*_: Any) -> Any:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(worker, "write_shard", full)
        with pytest.raises(OSError, match="No space"):
            worker._write(plan, 1, ["a"], np.ones((1, 2)), 0, 1)
    assert list(plan.progress_folder.iterdir()) == []
    worker._write(plan, 1, ["a"], np.ones((1, 2)), 3, 7)
    assert sorted(path.name for path in plan.progress_folder.iterdir()) == ["part-000001.json", "rank-3.json"]
    assert json.loads((plan.progress_folder / "rank-3.json").read_text()) == {"rows": 7}


def test_an_error_in_one_lane_ends_the_others_after_their_current_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, ran = threading.Event(), []
    monkeypatch.setattr(worker.ShardStore, "open", lambda *_: None)
    monkeypatch.setattr(worker, "_read", lambda records, encoder, plan, number: (["a"], number))
    monkeypatch.setattr(worker, "_write", lambda *_: None)

    def run(number: int) -> Any:
        ran.append(number)
        if number == 0:
            failed.set()
            raise EncoderError("broken")
        failed.wait(10)
        time.sleep(0.02)  # the error of the other lane is noticed meanwhile
        return np.ones((1, 2), np.float32)

    encoder: Any = SimpleNamespace(fingerprint="e", run=run, verify=lambda: None)
    with pytest.raises(EncoderError, match="broken"):
        worker.encode_shards(
            some_plan(tmp_path, rows=400), list(range(100)), located=None, rank=0, lanes=2, encoder=encoder
        )
    assert 0 in ran
    assert len(ran) < 20


def test_a_number_of_threads_is_used_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_to, now = [], [7]

    def change(count: int) -> None:
        set_to.append(count)
        now[0] = count

    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", change)
    with contextlib.suppress(KeyboardInterrupt), worker.fixed_threads(3):
        assert now == [3]
        raise KeyboardInterrupt
    assert now == [7]
    checked: list[int] = []
    encoder: Any = SimpleNamespace(
        fingerprint="e", prepare=list, run=lambda texts: np.full((len(texts), 2), now[0]),
        verify=lambda: checked.append(now[0]),
    )  # fmt: skip
    monkeypatch.setattr(worker, "load_encoder", lambda *_, **__: encoder)
    tasks = worker.EncodeTexts(some_plan(tmp_path, threads=5), device="cpu")
    assert tasks(["a", "b"]).tolist() == [[5, 5]] * 2
    assert (now, len(checked)) == ([7], 1), "the encoder is verified before its vectors are returned"
    asked: list[Any] = []
    monkeypatch.setattr(worker.ShardStore, "open", lambda *_: SimpleNamespace())
    for gpus, device in ((0, "cpu"), (2, "cuda")):
        engine: Any = SimpleNamespace(
            gpus=gpus, run=lambda function, texts, **more: asked.append((function, more)) or []
        )
        worker.encode_by_tasks(engine, some_plan(tmp_path, threads=5), [])
        assert asked[-1][0].device == device
        assert asked[-1][1] == {"ordered": False, "cpus": 5, "gpus": int(device == "cuda")}


@pytest.mark.parametrize(
    ("encoder", "gpus", "embedding", "here", "on_hosts"),
    [
        ({}, 0, {}, (1, 6), 6), ({}, 0, {"threads": 2}, (1, 3), 3), ({"device": "cpu"}, 4, {"threads": 3}, (1, 2), 2),
        ({}, 4, {}, (4, 1), 4), ({"device": "cuda"}, 4, {"threads": 2}, (4, 1), 4),
        ({}, 4, {"processes": 3}, (3, 1), 3), ({"device": "cuda:1"}, 4, {}, (1, 1), 1),
        ({}, 0, {"processes": 5, "threads": 2}, (5, 1), 5),
        ({"kind": "http"}, 4, {"threads": 2}, (1, 2), 1), ({"kind": "http"}, 0, {"processes": 3}, (3, 1), 3),
    ],
)  # fmt: skip
def test_the_number_of_processes_on_one_host_and_on_several(
    encoder: Any, gpus: int, embedding: Any, here: tuple[int, int], on_hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    more = {"url": "http://127.0.0.1/v1", "name": "toy"} if encoder.get("kind") == "http" else {}
    parsed, config = parse_encoder(encoder | more), parse(ExtractConfig, embedding, at="embedding")
    assert extract._processes_and_lanes(parsed, config, shards=64) == here
    assert extract._processes_and_lanes(parsed, config, shards=1) == (1, 1)
    assert hosts.processes_of(parsed, config) == on_hosts


def test_the_progress_is_the_sum_of_the_ranks_of_this_attempt(tmp_path: Path) -> None:
    plan, shown = some_plan(tmp_path), SimpleNamespace(n=0, update=lambda more: setattr(shown, "n", shown.n + more))
    plan.progress_folder.mkdir()
    for rank, rows in ((0, 30), (1, 12)):
        (plan.progress_folder / f"rank-{rank}.json").write_text(json.dumps({"rows": rows}))
    (plan.progress_folder / "rank-2.json").write_text("{")
    for _ in range(2):
        extract._advance(shown, plan)
        assert shown.n == 42
    located: Any = SimpleNamespace(describe=lambda: {"name": "minilm"})
    extract._write_plan(plan, located)
    assert [path.name for path in plan.progress_folder.iterdir()] == ["plan.json"]
    written = json.loads((plan.progress_folder / "plan.json").read_text())
    assert written == {"fingerprints": plan.fingerprints, "encoder": {"name": "minilm"}}


@pytest.mark.parametrize("shown", [True, False])
def test_the_progress_bar_is_shown_on_request_and_ends_with_all_rows(
    shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = some_plan(tmp_path)
    plan.progress_folder.mkdir()
    with extract._watch(plan, 10, shown=shown):
        (plan.progress_folder / "rank-0.json").write_text('{"rows": 10}')
    text = capsys.readouterr().err
    assert ("embedding: 100%" in text and "10.0/10.0" in text) == shown, text


@pytest.mark.parametrize(
    ("encoder", "gpus", "device"),
    [({}, 2, "cuda:1"), ({}, 0, "cpu"), ({"device": "cuda"}, 2, "cuda:1"), ({"device": "cpu"}, 2, None),
     ({"device": "cuda:7"}, 2, None)],
)  # fmt: skip
def test_a_rank_encodes_every_nth_missing_shard_on_its_own_device(
    encoder: Any, gpus: int, device: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 of 4 is the second on its host; of its shards 3, 10 and 16 the second is finished."""
    plan = some_plan(tmp_path, encoder=parse_encoder(encoder))
    plan.progress_folder.mkdir()
    plan.sidecar(10).write_text("{}")
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"plan": plan.to_dict(), "missing": [1, 2, 3, 7, 8, 9, 10, 12, 14, 15, 16, 20, 21]}))
    rank = worker.environment.RankInfo(rank=2, world=4, local_rank=1, local_world=2)
    monkeypatch.setattr(worker.environment, "rank_info", lambda: rank)
    monkeypatch.setattr(worker.process, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker, "append_output", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    called: list[Any] = []
    monkeypatch.setattr(worker, "encode_shards", lambda *given, **options: called.append((given, options)))
    worker.main(job)
    assert called == [((plan, [3, 16]), {"located": None, "rank": 2, "device": device})]
