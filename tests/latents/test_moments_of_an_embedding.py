"""What an embedding leaves at each moment, what it logs, and what a repeated one does not touch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.plan import Plan, make_plan
from mm_ldlm.data.latents.rate import FIRST_SECONDS, Rate

from mm_ldlm.core.errors import ConfigurationError, EncoderError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.latents import extract as module
from mm_ldlm.data.latents import hosts, worker
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter, write_shard
from mm_ldlm.distributed.launch import HostsConfig
from mm_ldlm.extras.own_vectors.latents import take_over
from mm_ldlm.extras.own_vectors.store import VectorStore, vector_table

HOST_VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "SLURM_NNODES")


def some_plan(folder: Path, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "records": folder, "workspace": folder, "rows": 10, "shard_rows": 4, "dtype": "float32", "threads": 1,
        "non_finite": "stop", "encoder": parse_encoder({}), "fingerprints": {"encoder": "e"},
    }  # fmt: skip
    return Plan(**given | changes)


# -- a store that is repaired ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [True, False])
def test_the_progress_is_shown_where_the_parameters_say_so(
    shown: bool, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data.root / "latents" / "part-000004.arrow").unlink()
    asked: list[bool] = []
    monkeypatch.setattr(module, "_watch", lambda plan, rows, *, shown: asked.append(shown) or contextlib.nullcontext())
    data.extract(progress=shown)
    assert asked == [shown]


def test_a_kill_during_the_repair_loses_no_shard(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is removed when the sidecar files of all intact shards are written, and not before."""
    folder = data.root / "latents"
    (folder / "part-000002.arrow").unlink()
    real, seen = module._write_sidecars, list[Any]()

    def killed(plan: Plan, found: Any) -> None:
        seen.append(Manifest.exists(folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write_sidecars", killed)
    with pytest.raises(KeyboardInterrupt):
        data.extract()
    assert (seen, Manifest.exists(folder)) == ([True], True)
    monkeypatch.setattr(module, "_write_sidecars", real)
    monkeypatch.setattr(module, "_write_plan", killed)  # the next step after the repair
    with pytest.raises((KeyboardInterrupt, TypeError)):
        data.extract()
    assert not Manifest.exists(folder)
    recorded = sorted(path.name for path in (folder / ".extract").iterdir())
    assert recorded == [*(f"part-{number:06d}.json" for number in (0, 1, 3, 4)), "plan.json"]
    monkeypatch.undo()
    made: list[int] = []
    write = worker._write
    monkeypatch.setattr(worker, "_write", lambda plan, number, *rest: made.append(number) or write(plan, number, *rest))
    data.extract()
    assert made == [2]


def test_a_shard_whose_bytes_changed_is_named_in_the_log(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    path = data.root / "latents" / "part-000003.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with caplog.at_level("WARNING"):
        data.extract()
    assert caplog.messages == [f"{path}: the checksum differs; this shard is embedded again"]
    caplog.clear()
    data.extract()
    assert caplog.messages == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_empty_store_has_the_type_of_the_parameters(dtype: Any, pristine: Any, tmp_path: Path) -> None:
    StoreWriter(tmp_path / "r", kind="records", schema=RECORD_SCHEMA).finish()
    config = dataclasses.replace(pristine.extraction, dtype=dtype)
    extract(ShardStore.open(tmp_path / "r"), encoder=pristine.encoder, config=config, workspace=tmp_path / "w")
    found = LatentStore.open(tmp_path / "w")
    assert (found.dtype, found.dim, found.manifest.meta["dtype"]) == (dtype, 24, dtype)


def test_the_manifest_has_the_dimension_of_the_stored_vectors(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder whose last module makes shorter vectors, the configuration names the dimension before it."""
    located = pristine.encoder.locate()
    loaded = SimpleNamespace(
        fingerprint=located.fingerprint, prepare=list, verify=lambda: None,
        run=lambda texts: np.ones((len(texts), 5), np.float32),
    )  # fmt: skip
    monkeypatch.setattr(worker, "load_encoder", lambda *_, **__: loaded)
    made = extract(pristine.records, encoder=pristine.encoder, config=pristine.extraction, workspace=tmp_path)
    assert (made.meta["dim"], made.meta["encoder"]["dim"], LatentStore.open(tmp_path).dim) == (5, 24, 5)


# -- paths and hosts ---------------------------------------------------------------------------------------------------


def test_a_plan_has_whole_paths_wherever_it_was_made(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that read it may run in another folder."""
    monkeypatch.chdir(pristine.root)
    plan = make_plan(
        ShardStore.open("records"), pristine.encoder.locate(), encoder=pristine.encoder, config=pristine.extraction,
        workspace=Path("sub/../w"),
    )  # fmt: skip
    assert (plan.records, plan.workspace) == (pristine.root.resolve() / "records", pristine.root.resolve() / "w")


def test_the_ranks_of_several_hosts_receive_a_whole_path(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        monkeypatch.setenv(name, value)
    launched: list[Path] = []

    def launch(module: str, arguments: list[str], *, config: Any, log_directory: Path) -> None:
        launched.extend([Path(arguments[0]), log_directory])
        raise KeyboardInterrupt

    monkeypatch.setattr(hosts, "launch", launch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        extract(pristine.records, encoder=pristine.encoder, config=pristine.extraction, workspace=Path("w"))
    progress = tmp_path.resolve() / "w" / ".extract"
    assert launched[0] == progress / "job.json"
    assert launched[1].parent == progress / "logs"


@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_a_number_of_hosts_in_the_parameters_is_enough(
    rank: str | None, pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number of this host nothing is written."""
    for name in HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if rank is not None:
        monkeypatch.setenv("NODE_RANK", rank)
    config = dataclasses.replace(pristine.extraction, launch=HostsConfig(nodes=3, rendezvous="head:29400", keep_logs=7))
    if rank is None:
        with pytest.raises(ConfigurationError, match="the number of this host among 3 in NODE_RANK"):
            extract(pristine.records, encoder=pristine.encoder, config=config, workspace=tmp_path / "w")
        assert list((tmp_path / "w").iterdir()) == []
        return
    found: Any = hosts.launch_config(config, pristine.encoder, workspace=tmp_path)
    assert (found.nodes, found.node_rank, found.rendezvous, found.keep_logs) == (3, int(rank), "head:29400", 7)


# -- given vectors -----------------------------------------------------------------------------------------------------


def test_latents_of_given_vectors_are_kept_as_they_are(pristine: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((230, 3)).astype(np.float32)
    (tmp_path / "v").mkdir()
    ids = pristine.records.strings("id").take(slice(None))
    shard = write_shard(tmp_path / "v", "part-000000.arrow", vector_table(ids, list(vectors), dim=3))
    VectorStore(3, tmp_path / "v").commit([shard], records=pristine.records.manifest)
    encoder = parse_encoder({"kind": "precomputed", "name": "mine", "dim": 3, "normalised": False})

    def take() -> dict[str, int]:
        made = take_over(
            pristine.records, ShardStore.open(tmp_path / "v", "vectors"), encoder=encoder, config=ExtractConfig(),
            workspace=tmp_path / "l",
        )  # fmt: skip
        assert made.meta["shard_rows"] == 1024
        return {path.name: path.stat().st_ino for path in (tmp_path / "l").iterdir()}

    assert take() == take()


# -- the worker --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 6])
def test_a_refusal_of_numbers_is_whole(count: int, tmp_path: Path) -> None:
    vectors = np.ones((8, 2), np.float32)
    vectors[1 : 1 + count, 1] = np.inf
    names = ", ".join(f"id{row}" for row in range(1, 1 + min(count, 5)))
    with pytest.raises(EncoderError) as error:
        worker._check(some_plan(tmp_path), 3, [f"id{row}" for row in range(8)], vectors)
    assert str(error.value) == (
        f"encoder 'minilm' returned numbers that are not finite for {count} of 8 sentences of shard 3 "
        f"(ids {names}{', …' if count == 6 else ''}). This shard was not written. Check these sentences and "
        "encoder.dtype, or set embedding.non_finite to quarantine to leave them out of the index and continue."
    )


def test_an_encoder_that_is_not_that_of_the_plan_encodes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in this process nor in a task, where it was just loaded."""
    other: Any = SimpleNamespace(
        fingerprint="other", prepare=lambda texts: pytest.fail("tokenised"), run=lambda _: pytest.fail("computed")
    )
    monkeypatch.setattr(worker, "load_encoder", lambda *_, **__: other)
    monkeypatch.setattr(worker.ShardStore, "open", lambda *_: pytest.fail("read"))
    words = r"encoder 'minilm': expected fingerprint e \(the plan\), found other\. Its files changed"
    with pytest.raises(EncoderError, match=words):
        worker.encode_shards(some_plan(tmp_path), [0], located=None, rank=0)
    with pytest.raises(EncoderError, match=words):
        worker.EncodeTexts(some_plan(tmp_path), device="cpu")(["a"])


def test_a_rank_is_tied_to_its_launcher_before_it_reads_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(worker.process, "die_with_parent", lambda: done.append("tied"))
    monkeypatch.setattr(worker, "append_output", lambda: done.append("logged"))
    with pytest.raises(FileNotFoundError):
        worker.main(tmp_path / "job.json")
    assert done == ["tied", "logged"]


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_lane_without_shards_ends(lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three lanes share two shards; every lane writes its own in their order, and reports to a place of its own."""
    written: list[Any] = []
    lock = threading.Lock()

    def write(plan: Plan, number: int, ids: Any, vectors: Any, rank: int, done: int) -> None:
        with lock:
            written.append((number, ids, vectors.tolist(), rank, done))

    monkeypatch.setattr(worker.ShardStore, "open", lambda place, kind: (place, kind))
    monkeypatch.setattr(worker, "_read", lambda records, encoder, plan, number: ([f"id{number}"], number))
    monkeypatch.setattr(worker, "_write", write)
    encoder: Any = SimpleNamespace(
        fingerprint="e", run=lambda number: np.full((1, 2), number, np.float32), verify=lambda: None
    )
    worker.encode_shards(some_plan(tmp_path), [2, 1], located=None, rank=4, lanes=lanes, encoder=encoder)
    ranks = {1: [(2, 4, 1), (1, 4, 2)], 3: [(2, 4, 1), (1, 5, 1)]}[lanes]
    expected = [(number, [f"id{number}"], [[float(number)] * 2], rank, done) for number, rank, done in ranks]
    assert (written if lanes == 1 else sorted(written, key=lambda each: each[3])) == expected


# -- the remaining time ------------------------------------------------------------------------------------------------


def test_the_remaining_time_follows_every_step_of_the_measurement() -> None:
    """Ten rows a second after a start of 100 s; the rows of the newest moment are not measured yet."""
    rate = Rate(1000)
    rate.advanced(0, 50.0)
    assert rate.left(60.0) is None, "no row is finished"
    rate.advanced(100, 100.0)
    rate.advanced(100, 104.0)
    assert rate.left(100.0 + FIRST_SECONDS) is None
    rate.advanced(200, 110.0)
    assert rate.left(110.0) == pytest.approx(80.0)
    assert rate.left(113.0) == pytest.approx(77.0)
    rate.advanced(150, 114.0)
    assert rate.left(114.0) == pytest.approx(76.0), "a number that falls counts for nothing"
    rate.advanced(400, 130.0)
    assert rate.left(130.0) == pytest.approx(600 * 30 / 200)


def test_the_job_of_the_ranks_is_the_plan_and_what_is_missing(tmp_path: Path) -> None:
    plan = some_plan(tmp_path)
    plan.progress_folder.mkdir()
    path = module._write_job(plan, [3, 1])
    assert path == tmp_path / ".extract" / "job.json"
    assert json.loads(path.read_text()) == {"plan": plan.to_dict(), "missing": [3, 1]}
