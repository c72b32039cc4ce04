"""Extraction of latents: correct vectors, and the same bytes after interruptions and for any number of processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.plan import default_shard_rows

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, EncoderError, FingerprintError
from mm_ldlm.data.encoders import LocalEncoderConfig, load_encoder
from mm_ldlm.data.latents import extract as module
from mm_ldlm.data.latents import worker
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore

Files = Callable[[Path], dict[str, bytes]]


def run(data: Any, workspace: Path, **changes: Any) -> LatentStore:
    encoder = changes.pop("encoder", data.encoder)
    config = dataclasses.replace(data.extraction, **changes)
    extract(data.records, encoder=encoder, config=config, workspace=workspace)
    return LatentStore.open(workspace)


def test_row_i_is_the_vector_of_record_i(pristine: Any) -> None:
    texts = pristine.records.strings("text").take(slice(None))
    expected = load_encoder(pristine.encoder).encode(texts)
    np.testing.assert_allclose(pristine.latents.take(slice(None)), expected, atol=1e-6)
    assert pristine.latents.ids(slice(None)) == pristine.records.strings("id").take(slice(None))
    assert [shard.rows for shard in pristine.latents.manifest.shards] == [50, 50, 50, 50, 30]
    meta = pristine.latents.manifest.meta
    assert (meta["dim"], meta["dtype"], meta["non_finite"]["count"]) == (24, "float32", 0)
    assert str(pristine.root) not in (pristine.root / "latents" / "manifest.json").read_text()


def test_two_processes_write_the_bytes_of_one(pristine: Any, tmp_path: Path, files: Files) -> None:
    run(pristine, tmp_path / "two", processes=2)
    assert files(tmp_path / "two") == files(pristine.root / "latents")


def test_lanes_of_one_process_write_the_bytes_of_one(
    pristine: Any, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    used: set[int] = set()
    real = worker._lane

    def watched(plan: Any, numbers: list[int], encoder: Any, place: int, stop: Any) -> None:
        used.add(place)
        real(plan, numbers, encoder, place, stop)

    monkeypatch.setattr(worker, "_lane", watched)
    run(pristine, tmp_path / "lanes", processes=0)
    assert used == {0, 1, 2}
    assert files(tmp_path / "lanes") == files(pristine.root / "latents")


@pytest.fixture
def task_engine(monkeypatch: pytest.MonkeyPatch) -> type:
    """The engine `local` as one that runs elsewhere: a task is one shard, and what a node receives is pickled."""
    import pickle

    from mm_ldlm.data.engines.local import LocalEngine, LocalEngineConfig

    class Elsewhere(LocalEngine):
        def run(self, function: Any, tasks: Any, **options: Any) -> Any:
            copy = pickle.loads(pickle.dumps(function))
            yield from reversed([(position, copy(task)) for position, task in enumerate(tasks)])

    monkeypatch.setattr(LocalEngineConfig, "here", property(lambda _: False))
    monkeypatch.setattr(LocalEngineConfig, "started", lambda _: contextlib.nullcontext(Elsewhere()))
    return Elsewhere


def test_tasks_of_an_engine_write_the_bytes_of_one_process(
    pristine: Any, tmp_path: Path, files: Files, task_engine: type
) -> None:
    run(pristine, tmp_path / "w", processes=0)
    assert files(tmp_path / "w") == files(pristine.root / "latents")


def test_only_missing_shards_are_tasks(
    pristine: Any, tmp_path: Path, files: Files, task_engine: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = worker._write, []

    def broken(plan: Any, number: int, *rest: Any) -> None:
        if number == 2:
            raise OSError("disk full")
        made.append(number)
        real(plan, number, *rest)

    monkeypatch.setattr(worker, "_write", broken)
    with pytest.raises(OSError, match="disk full"):
        run(pristine, tmp_path / "w", processes=0)
    assert made == [4, 3]
    monkeypatch.setattr(worker, "_write", real)
    monkeypatch.setattr(task_engine, "run", counted := _Counted(task_engine.run))  # type: ignore[attr-defined]
    run(pristine, tmp_path / "w", processes=0)
    assert counted.tasks == 3
    assert files(tmp_path / "w") == files(pristine.root / "latents")


class _Counted:
    """Counts the tasks that an engine receives."""

    def __init__(self, real: Any) -> None:
        self.real, self.tasks = real, 0

    def __get__(self, instance: Any, owner: type) -> Any:
        def run(function: Any, tasks: Any, **options: Any) -> Any:
            given = list(tasks)
            self.tasks += len(given)
            return self.real(instance, function, given, **options)

        return run


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "cuda"}, "'encoder.device': expected auto or cpu, because the nodes of the engine have no GPU"),
        ({"device": "cuda:1"}, "expected auto, cpu or cuda, because the engine assigns the GPUs, found cuda:1"),
    ],
)
def test_an_engine_refuses_a_device_that_it_does_not_have(
    pristine: Any, tmp_path: Path, task_engine: type, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run(pristine, tmp_path / "w", encoder=dataclasses.replace(pristine.encoder, **change), processes=0)


def test_a_number_of_processes_is_refused_where_the_engine_decides() -> None:
    with pytest.raises(ConfigurationError, match=r"'embedding.processes': expected 0, because the engine ray decides"):
        parse(ExtractConfig, {"engine": {"kind": "ray"}, "processes": 2}, at="embedding")


def test_only_missing_shards_are_encoded(
    pristine: Any, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that ended after two shards: they stay, three are made."""
    real = worker._write

    def broken(plan: Any, number: int, *rest: Any) -> None:
        if number == 2:
            raise OSError("disk full")
        real(plan, number, *rest)

    monkeypatch.setattr(worker, "_write", broken)
    with pytest.raises(OSError, match="disk full"):
        run(pristine, tmp_path / "w")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=iter([100.0, 105.0]).__next__))
    assert not Manifest.exists(tmp_path / "w")
    made: list[int] = []

    def counted(plan: Any, number: int, *rest: Any) -> None:
        made.append(number)
        real(plan, number, *rest)

    monkeypatch.setattr(worker, "_write", counted)
    with caplog.at_level("INFO"):
        run(pristine, tmp_path / "w")
    assert "embedding 230 rows with minilm: 3 of 5 shards to do" in caplog.text
    assert "embedded 130 rows in 5 s, 26 a second (2 shards kept)" in caplog.text
    assert made == [2, 3, 4]
    assert files(tmp_path / "w") == files(pristine.root / "latents")


def test_a_finished_store_is_left_alone(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "encode_shards", lambda *a, **k: pytest.fail("nothing was missing"))
    before = (data.root / "latents" / "manifest.json").stat().st_mtime_ns
    data.extract()
    assert (data.root / "latents" / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_shard_of_a_finished_store_is_rewritten(data: Any, pristine: Any, harm: str, files: Files) -> None:
    path = data.root / "latents" / "part-000001.arrow"
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif harm == "cut":
        path.write_bytes(content[:-20])
    else:
        path.unlink()
    data.extract()
    assert files(data.root / "latents") == files(pristine.root / "latents")


def test_an_unrecorded_shard_is_not_trusted(pristine: Any, tmp_path: Path, files: Files) -> None:
    """Written in full, killed before its sidecar: it is made again."""
    (tmp_path / "w").mkdir()
    forged = (pristine.root / "latents" / "part-000003.arrow").read_bytes()
    (tmp_path / "w" / "part-000000.arrow").write_bytes(forged)
    run(pristine, tmp_path / "w")
    assert files(tmp_path / "w") == files(pristine.root / "latents")


@pytest.mark.parametrize(
    ("what", "encoder_change", "extraction_change"),
    [("another encoder", {"max_length": 5}, {}), ("other embedding parameters", {}, {"shard_rows": 51})],
)
def test_pitfall_25_shards_of_other_inputs_are_refused(
    data: Any, files: Files, what: str, encoder_change: dict[str, Any], extraction_change: dict[str, Any]
) -> None:
    before = files(data.root / "latents")
    encoder = dataclasses.replace(data.encoder, **encoder_change)
    with pytest.raises(FingerprintError, match=f"contains latents of {what}"):
        run(data, data.root / "latents", encoder=encoder, **extraction_change)
    assert files(data.root / "latents") == before


def test_pitfall_25_an_unfinished_store_of_another_encoder_is_refused_too(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "encode_shards", lambda *a, **k: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        run(pristine, tmp_path / "w")
    monkeypatch.undo()
    with pytest.raises(FingerprintError, match="another encoder"):
        run(pristine, tmp_path / "w", encoder=dataclasses.replace(pristine.encoder, prompt="say: "))


class _Broken:
    """Gives NaN for sentences with a cat in them."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def prepare(self, texts: list[str]) -> Any:
        self.texts = texts
        return texts

    def run(self, texts: list[str]) -> np.ndarray:
        found = self.inner.encode(texts)
        found[[i for i, text in enumerate(texts) if "cat" in text]] = np.nan
        return found


def test_not_a_number_stops_and_names_the_sentences(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "load_encoder", lambda *a, **k: _Broken(load_encoder(*a, **k)))
    first = next(
        name
        for name, text in pristine.records.table(slice(None)).select(["id", "text"]).to_pandas().values
        if "cat" in text
    )
    with pytest.raises(EncoderError, match=rf"not finite for \d+ of 50 sentences of shard 0 \(ids {first}"):
        run(pristine, tmp_path / "w")
    assert not list((tmp_path / "w").glob("*.arrow"))


def test_not_a_number_can_go_to_quarantine(pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "load_encoder", lambda *a, **k: _Broken(load_encoder(*a, **k)))
    store = run(pristine, tmp_path / "w", non_finite="quarantine", shard_rows=5)
    cats = ["cat" in text for text in pristine.records.strings("text").take(slice(None))]
    ids = [name for name, bad in zip(store.ids(slice(None)), cats, strict=True) if bad]
    assert store.manifest.meta["non_finite"] == {"count": sum(cats), "ids": ids[:10]}
    assert 10 < sum(cats) < 220
    np.testing.assert_array_equal(np.isnan(store.take(slice(None))).all(1), cats)


def test_half_precision_is_stored_and_read_as_float32(pristine: Any, tmp_path: Path) -> None:
    store = run(pristine, tmp_path / "w", dtype="float16")
    assert store.dtype == "float16"
    assert store.take([3]).dtype == np.float32
    np.testing.assert_allclose(store.take(slice(None)), pristine.latents.take(slice(None)), atol=5e-4)


def test_no_records_make_an_empty_store(pristine: Any, tmp_path: Path) -> None:
    from mm_ldlm.data.corpus.record import RECORD_SCHEMA
    from mm_ldlm.data.store import StoreWriter

    StoreWriter(tmp_path / "r", kind="records", schema=RECORD_SCHEMA).finish()
    records = ShardStore.open(tmp_path / "r")
    extract(records, encoder=pristine.encoder, config=pristine.extraction, workspace=tmp_path / "w")
    assert LatentStore.open(tmp_path / "w").take([]).shape == (0, 24)


def test_shards_are_neither_many_nor_few() -> None:
    assert [default_shard_rows(n) for n in (10, 20_000, 100_000, 1_000_000, 10_000_000)] == [
        1024,
        1024,
        1024,
        8192,
        65_536,
    ]


def test_a_dead_process_is_one_readable_error_and_nothing_is_lost(pristine: Any, tmp_path: Path, files: Files) -> None:
    """The second process finds other weights than the plan's: they were changed after the launch."""
    from mm_ldlm.core.errors import WorkerFailed

    folder = tmp_path / "encoder"
    shutil.copytree(pristine.encoder.path, folder)
    encoder = LocalEncoderConfig(name="minilm", path=str(folder), device="cpu", batch_tokens=256, max_length=64)
    import mm_ldlm.data.latents.extract as module

    real = module.launch

    def tampering(*arguments: Any, **options: Any) -> None:
        (folder / "tokenizer_config.json").write_text("{}")
        real(*arguments, **options)

    original = (folder / "tokenizer_config.json").read_text()
    module.launch = tampering  # type: ignore[assignment]
    try:
        with pytest.raises(WorkerFailed, match=r"rank \d.*Its files changed since the run started"):
            run(pristine, tmp_path / "w", encoder=encoder, processes=2)
    finally:
        module.launch = real  # type: ignore[assignment]
    (folder / "tokenizer_config.json").write_text(original)
    run(pristine, tmp_path / "w", encoder=encoder)
    assert files(tmp_path / "w") == files(pristine.root / "latents")


# -- kills
# ----------------------------------------------------------------------------------------------------------------

_JOB = """
import sys
from pathlib import Path
from mm_ldlm.encoders import LocalEncoderConfig
from mm_ldlm.latents.config import ExtractConfig
from mm_ldlm.latents.extract import extract
from mm_ldlm.store import ShardStore

records, workspace, encoder = sys.argv[1:]
extract(
    ShardStore.open(records, "records"),
    encoder=LocalEncoderConfig(name="minilm", path=encoder, device="cpu", batch_tokens=256, max_length=64),
    config=ExtractConfig(shard_rows=20, processes=2, progress=False),
    workspace=Path(workspace),
)
"""


def _family(pid: int) -> list[int]:
    """The process and its descendants."""
    import psutil

    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow
def test_twenty_kills_lose_nothing_and_change_no_byte(
    new_data: Callable[..., Any], tmp_path: Path, files: Files
) -> None:
    """SIGKILL at random moments, of the launcher or of one of two processes; then the bytes of an undisturbed run."""
    data = new_data(rows=2400, shard_rows=20)
    dice = random.Random(7)
    workspace = tmp_path / "killed"
    assert data.encoder.path is not None
    command = [sys.executable, "-c", _JOB, str(data.root / "records"), str(workspace), data.encoder.path]
    source = str(Path(worker.__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    kills = progressed = 0
    before = -1
    while kills < 20:
        assert not Manifest.exists(workspace), f"finished after {kills} kills; give it more rows"
        job = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        start, done = time.monotonic(), len(list(workspace.glob("part-*.arrow")))
        # Most kills fall while shards are being written, however long the start takes; some fall into the start.
        writing = dice.random() < 0.85
        patience = 600.0 if writing else dice.uniform(0, 4)
        while job.poll() is None and time.monotonic() - start < patience:
            if len(list(workspace.glob("part-*.arrow"))) > done:
                break
            time.sleep(0.002)
        if writing:
            time.sleep(dice.uniform(0, 0.05))
        family = _family(job.pid)
        whole = dice.random() < 0.5
        victims = family if whole else [dice.choice(family)] if family else []
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        kills += bool(victims)
        job.wait(120)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in family if pid != job.pid):
            time.sleep(0.02)
        now = len(list((workspace / ".extract").glob("part-*.json")))
        progressed += now > before
        before = now
    assert progressed >= 5
    subprocess.run(command, env=environment, check=True, timeout=300)
    assert files(workspace) == files(data.root / "latents")
    assert LatentStore.open(workspace).ids(slice(None)) == data.records.strings("id").take(slice(None))


def test_processes_zero_means_the_machines_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from mm_ldlm.data.latents.extract import _processes_and_lanes

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert _processes_and_lanes(LocalEncoderConfig(), ExtractConfig(threads=2), shards=64) == (1, 3)
    assert _processes_and_lanes(LocalEncoderConfig(), ExtractConfig(), shards=2) == (1, 2)
    assert _processes_and_lanes(LocalEncoderConfig(), ExtractConfig(processes=4), shards=64) == (4, 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert _processes_and_lanes(LocalEncoderConfig(), ExtractConfig(), shards=64) == (4, 1)
    assert _processes_and_lanes(LocalEncoderConfig(device="cuda:1"), ExtractConfig(), shards=64) == (1, 1)
