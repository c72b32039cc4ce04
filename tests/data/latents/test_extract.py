"""Extraction: row i is the vector of record i, and no byte depends on who computed it, when, or after which kill."""

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.latents.toy import DIM, TEXTS, ToyEncoder, ToyEncoderConfig, content, digest_vector, embedded, records
from tests.kills import kills

from mm_ldlm.core import ConfigurationError, EncoderError, FingerprintError, config, parse
from mm_ldlm.data.engines import LocalEngine
from mm_ldlm.data.latents import extract as module
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import default_shard_rows, extract_with_first_host
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.distributed import environment

PROJECT = Path(__file__).parents[3]
Files = dict[str, bytes]


@config
class ElsewhereConfig:
    """An engine on other hosts: a task and its function are pickled, and results come in another order."""

    kind: str = "tests.data.latents.test_extract:ElsewhereConfig"
    here = False
    gpus: int = 0

    def started(self) -> Any:
        engine = Elsewhere()
        engine.gpus = self.gpus
        return contextlib.nullcontext(engine)


class Elsewhere(LocalEngine):
    def run(self, function: Any, tasks: Any, **options: Any) -> Iterator[tuple[int, Any]]:
        assert (options["gpus"], options["cpus"]) == (function.device == "cuda", function.job.config.threads)
        copy = pickle.loads(pickle.dumps(function))
        yield from reversed([(position, copy(pickle.loads(pickle.dumps(task)))) for position, task in enumerate(tasks)])


@pytest.fixture
def stored(tmp_path: Path) -> ShardStore:
    return records(tmp_path / "records")


@pytest.fixture
def expected(stored: ShardStore, tmp_path: Path) -> Files:
    """The files of an undisturbed run in this process."""
    embedded(stored, tmp_path / "plain")
    return content(tmp_path / "plain")


def ranks_in_this_process(_: str, arguments: list[str], *, config: Any, **options: Any) -> None:
    """Run the ranks of two hosts one after another, the last one first, and again as after an error.

    The slow tests launch processes.
    """
    each = config.processes // 2
    for rank in [*reversed(range(config.processes))] * 2:
        with pytest.MonkeyPatch.context() as patch:
            info = environment.RankInfo(rank=rank, local_rank=rank % each, world=config.processes, local_world=each)
            patch.setattr(environment, "rank_info", lambda info=info: info)
            module.main(Path(arguments[0]))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=8), max_size=12, unique=True), st.integers(1, 13))
def test_row_i_is_the_vector_of_record_i(tmp_path: Path, texts: list[str], shard_rows: int) -> None:
    for name in ("records", "latents"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    stored = records(tmp_path / "records", texts)
    found = embedded(stored, tmp_path / "latents", shard_rows=shard_rows)
    assert found.gather("id", slice(None)).to_pylist() == stored.gather("id", slice(None)).to_pylist()
    vectors = np.array([digest_vector(text) for text in texts], np.float32).reshape(-1, DIM)
    np.testing.assert_array_equal(found.take(slice(None)), vectors)
    assert [shard.rows for shard in found.manifest.shards][:-1] == [shard_rows] * (max(len(texts) - 1, 0) // shard_rows)


def test_texts_whose_end_the_encoder_does_not_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ToyEncoder, "max_length", 3)
    monkeypatch.setattr(ToyEncoder, "count_tokens", lambda _, texts: [len(text.encode()) for text in texts])
    embedded(records(tmp_path / "records", ["a", "abc", "éé", "ab"]), tmp_path / "latents")
    assert "1 of 4 texts have more than the 3 tokens" in caplog.text


@pytest.mark.parametrize(
    ("options", "lanes", "devices"),
    [
        ({"processes": 4}, (3, 1), {"cuda:0", "cuda:1"}), ({"processes": 0}, (6, 3), {None}),
        *(({"engine": ElsewhereConfig(gpus=gpus), "processes": 0}, (1, 1), {device})
          for gpus, device in ((0, "cpu"), (2, "cuda"))),
    ],
    ids=["processes", "lanes", "engine on a CPU", "engine on GPUs"],
)  # fmt: skip
def test_the_bytes_depend_neither_on_processes_nor_on_lanes_nor_on_the_engine(
    options: dict[str, Any], lanes: tuple[int, int], devices: set[Any], stored: ShardStore, expected: Files,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The encoder has a share of the cores of its host, and the GPU of its rank or task."""

    def choose(wanted: str, *, local_rank: int = 0) -> torch.device:
        return torch.device("cuda", local_rank) if wanted == "auto" else torch.device(wanted)

    monkeypatch.setattr(module, "choose_device", choose)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(module, "launch", ranks_in_this_process)
    for threads in (1, 2):
        monkeypatch.setattr(ToyEncoder, "asked", [])
        embedded(stored, tmp_path / f"{threads}", threads=threads, **options)
        assert {about[1:] for about, _ in ToyEncoder.asked} == {(lanes[threads - 1], threads, threads)}
    assert content(tmp_path / "1") == expected
    monkeypatch.setattr(ToyEncoder, "asked", [])
    embedded(stored, tmp_path / "auto", ToyEncoderConfig(device="auto"), **options)
    assert {about[0] for about, _ in ToyEncoder.asked} == devices
    embedded(stored, tmp_path / "none", ToyEncoderConfig(device=None), **(options if "engine" not in options else {}))
    assert content(tmp_path / "none").keys() == expected.keys()


def test_an_extraction_killed_at_any_write_ends_with_the_same_bytes(
    stored: ShardStore, expected: Files, tmp_path: Path
) -> None:
    workspace = tmp_path / "killed"
    for number in kills(lambda: embedded(stored, workspace)):
        if Manifest.exists(workspace):
            assert content(workspace).items() >= expected.items()
        if number % 3 == 0:  # otherwise the next process continues, and is killed later
            other = tmp_path / "other"
            shutil.copytree(workspace, other) if workspace.exists() else None
            embedded(stored, other)
            assert content(other) == expected
            shutil.rmtree(other)
            shutil.rmtree(workspace, ignore_errors=True)
    assert content(workspace) == expected


@pytest.mark.parametrize(
    "engine",
    [{}, {"processes": 2}, {"engine": ElsewhereConfig(), "processes": 0}],
    ids=["here", "ranks", "elsewhere"],
)
def test_what_is_finished_is_not_computed_again(
    engine: dict[str, Any], stored: ShardStore, expected: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if the encoder repeats its vectors approximately only."""
    for number in (1, 2):
        (tmp_path / f"plain/part-00000{number}.arrow").write_bytes(b"damaged")
    monkeypatch.setattr(module, "launch", ranks_in_this_process)
    monkeypatch.setattr(ToyEncoder, "asked", [])
    for _ in range(2):
        embedded(stored, tmp_path / "plain", ToyEncoderConfig(about="again"), **engine)
        assert sorted(text for _, texts in ToyEncoder.asked for text in texts) == sorted(TEXTS[4:12])
        assert content(tmp_path / "plain") == expected


@pytest.mark.parametrize("change", ["encoder", "batch", "shard_rows", "dtype", "threads", "records"])
@pytest.mark.parametrize("finished", [True, False])
def test_pitfall_25_latents_of_other_inputs_are_refused_and_stay(
    change: str, finished: bool, stored: ShardStore, expected: Files, tmp_path: Path
) -> None:
    workspace = tmp_path / "plain"
    if not finished:
        shutil.rmtree(workspace)
        with pytest.raises(EncoderError):
            embedded(stored, workspace, ToyEncoderConfig(wrong="text 9 "))
    before = content(workspace)
    other: Any = {"shard_rows": 5, "dtype": "float16", "threads": 2}.get(change)
    with pytest.raises(FingerprintError, match=str(workspace)):
        embedded(
            records(tmp_path / "more", TEXTS[1:]) if change == "records" else stored, workspace,
            ToyEncoderConfig(salt="x" * (change == "encoder"), batch=8 + (change == "batch")), **({change: other} if other else {}),
        )  # fmt: skip
    assert content(workspace) == before


@pytest.mark.parametrize("engine", [{}, {"engine": ElsewhereConfig(), "processes": 0}], ids=["here", "elsewhere"])
@pytest.mark.parametrize(("fault", "dtype"), [("wrong", "float32"), ("wrong", "float16"), ("large", "float16")])
def test_a_vector_that_is_not_finite_is_refused_or_counted_never_stored_in_silence(
    fault: str, dtype: str, engine: dict[str, Any], stored: ShardStore, tmp_path: Path
) -> None:
    encoder = ToyEncoderConfig(**{fault: "more words with"})
    bad = [row for row, text in enumerate(TEXTS) if "more words with" in text]
    ids = stored.gather("id", bad).to_pylist()
    with pytest.raises(EncoderError, match=rf"'toy'.*{dtype}.*(?:{'|'.join(ids)})"):
        embedded(stored, tmp_path / "stop", encoder, dtype=dtype, **engine)
    for path in (tmp_path / "stop").glob("*.arrow"):
        assert not set(bad) & {*range(4 * int(path.stem[-6:]), 4 * int(path.stem[-6:]) + 4)}
    found = embedded(stored, tmp_path / "kept", encoder, dtype=dtype, non_finite="quarantine", **engine)
    assert found.manifest.meta["non_finite"] == {"count": len(bad), "ids": ids[:10]}
    finite = np.isfinite(found.take(slice(None))).all(1)
    assert np.flatnonzero(~finite).tolist() == bad
    assert found.take([0]).dtype == np.float32


def test_an_encoder_that_changes_writes_no_further_shard(stored: ShardStore, tmp_path: Path) -> None:
    marker = tmp_path / "changed"
    encoder = ToyEncoderConfig(changes=str(marker))
    embedded(stored, tmp_path / "before", encoder)
    marker.touch()
    with pytest.raises(EncoderError, match="Restore it"):
        embedded(stored, tmp_path / "after", encoder)
    assert not list((tmp_path / "after").glob("*.arrow"))


@given(st.integers(0, 10**8))
def test_shards_are_neither_many_nor_small(rows: int) -> None:
    size = default_shard_rows(rows)
    assert 1024 <= size <= 65_536
    assert size.bit_count() == 1
    assert size in (1024, 65_536) or 64 <= rows / size < 128


# -- several hosts -----------------------------------------------------------------------------------------------------

HOSTS = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "NPROC_PER_NODE": "1"}
HOST = """
import sys
from pathlib import Path
from tests.data.latents.toy import ToyEncoderConfig, embedded
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract_with_first_host
from mm_ldlm.data.store import ShardStore
from mm_ldlm.distributed.environment import hosts

stored, workspace = sys.argv[1:]
if hosts().is_first:
    embedded(ShardStore.open(stored, "records"), Path(workspace))
else:
    config = ExtractConfig(shard_rows=4)
    extract_with_first_host(encoder=ToyEncoderConfig(), config=config, workspace=Path(workspace))
"""


@pytest.mark.slow
def test_two_hosts_write_the_bytes_of_one(stored: ShardStore, expected: Files, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "src")])
    command = [sys.executable, "-c", HOST, str(stored.directory), str(tmp_path / "shared")]
    environment = {**os.environ, **HOSTS, "MASTER_PORT": port, "PYTHONPATH": path}
    running = [subprocess.Popen(command, env={**environment, "NODE_RANK": rank}) for rank in ("1", "0")]
    assert [process.wait(timeout=400) for process in running] == [0, 0]
    assert content(tmp_path / "shared") == expected


def test_hosts_of_one_store_meet_under_one_name(
    stored: ShardStore, expected: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Any
) -> None:
    def launch(folder: Path, **options: Any) -> Any:
        made = parse(ExtractConfig, options, at="embedding")
        return module.ranks_of_hosts(made, ToyEncoderConfig().device, workspace=folder)

    assert launch(tmp_path) is None
    with refuses(ConfigurationError, "NNODES"):
        extract_with_first_host(encoder=ToyEncoderConfig(), config=ExtractConfig(), workspace=tmp_path)
    for name, value in HOSTS.items():
        monkeypatch.setenv(name, value)
    asked = list[Any]()
    monkeypatch.setattr(module, "launch", lambda *_, config, **__: asked.append(config.nodes))
    embedded(stored, tmp_path / "plain")
    assert asked == [2], "the other hosts wait for the first one, also if nothing is missing"
    first = launch(tmp_path / "here" / "latents")
    assert (first.nodes, first.node_rank, first.rendezvous) == (2, 0, "127.0.0.1:29511")
    monkeypatch.setenv("NODE_RANK", "1")
    assert launch(tmp_path / "mounted" / "latents").job == first.job != launch(tmp_path / "here" / "other").job
    assert launch(tmp_path, launch={"job": "mine"}).job == "mine"
    with refuses(ConfigurationError, "embedding.engine", "NNODES=1"):
        launch(tmp_path, engine={"kind": "tests.data.latents.test_extract:ElsewhereConfig"})


def test_an_engine_with_nodes_of_its_own_takes_no_processes(refuses: Any) -> None:
    with refuses(ConfigurationError, "embedding.processes"):
        parse(ExtractConfig, {"engine": {"kind": ElsewhereConfig().kind}, "processes": 2}, at="embedding")
