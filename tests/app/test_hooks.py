"""Hooks of every run: what the nodes receive, what is refused before the first one, and what remains afterwards."""

import contextlib
import functools
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DatasetError
from kedro.pipeline import Pipeline, node
from tests.app.sessions import Session

from mm_ldlm.app.catalog import Catalog
from mm_ldlm.app.follower import Follower
from mm_ldlm.app.parameters import SECTIONS
from mm_ldlm.core import ConfigurationError, StoreError, purposeful
from mm_ldlm.core.locks import take
from mm_ldlm.models.mmdit import MMDiTConfig
from mm_ldlm.training.jsonl import Tracker

Refuses = Callable[..., Any]
seen: list[Any] = []


def remember(*inputs: Any) -> dict[str, Any]:
    seen[:] = inputs
    return {"seen": len(inputs)}


def one(*inputs: str, outputs: Any = "validation_report", tag: str = "validation", func: Any = remember) -> Pipeline:
    return Pipeline([node(func, inputs=list(inputs) or None, outputs=outputs, name=f"{tag}.one", tags=tag)])


def test_nodes_receive_typed_sections_and_the_folders_of_stores(tmp_path: Path) -> None:
    names = [f"params:{name}" for name in SECTIONS]
    Session(tmp_path).run(
        one(*names, "params:records_workspace", "features", "params:features_workspace", "parameters")
    )
    *sections, records, made, features, raw = seen
    assert all(hasattr(section, "__dataclass_fields__") for section in sections)
    assert isinstance(sections[list(SECTIONS).index("model")], MMDiTConfig)
    assert records.is_dir()
    assert features.is_dir()
    assert made == features, "a folder that nodes fill is never missing"
    assert raw["model"]["kind"] == "mmdit"  # the report and MLflow show the parameters as they were given


def test_a_wrong_parameter_ends_a_run_before_its_first_node(tmp_path: Path, refuses: Refuses) -> None:
    seen[:] = ["untouched"]
    with refuses(ConfigurationError, "model.dimm", "dim"):
        Session(tmp_path, model={"dimm": 3}).run(one("params:seed"))
    assert seen == ["untouched"]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("read", "first"),
    [
        ("tokens", "--env=test --pipelines=ingestion"),
        ("preparation_report", "--env=test --pipelines=ingestion"),
        ("dataset", "--env=test --pipelines=ingestion,embedding,validation"),
        ("sampling_model", "--nodes=sampling.load_model,…"),
    ],
)
def test_a_run_whose_inputs_nobody_wrote_names_the_pipelines_that_write_them(
    read: str, first: str, tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(StoreError, read, first):
        Session(tmp_path).run(one(read, "latents", "runs", "timings", "tracked_metrics", outputs="comparison"))


def test_a_variable_of_older_scripts_is_named_with_its_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEARNING_RATE", "1")
    Session(tmp_path).run(one("params:training"))
    assert "LEARNING_RATE is not read; use --params training.optimizer.lr=VALUE" in caplog.text


@pytest.mark.parametrize("name", ["run", "validation_report", "samples_l2t", "plot_lengths", "timings"])
def test_a_pipe_in_the_place_of_an_artifact_is_never_opened(tmp_path: Path, name: str) -> None:
    session = Session(tmp_path)
    folder = {"samples_l2t": "07_model_output/samples_l2t.parquet"}.get(name, f"08_reporting/{name}.json")
    path = Path(session.entries.get(name, {"filepath": tmp_path / folder})["filepath"])
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    for pipeline in (one(name, outputs="comparison"), one("params:seed", outputs=name)):
        with pytest.raises((StoreError, DatasetError)) as raised:
            Session(tmp_path).run(pipeline)
        assert "pipe" in str(purposeful(raised.value))
    catalog = Catalog.from_config(session.entries)  # as in a notebook
    for use in (catalog.load, catalog.exists, functools.partial(catalog.save, data={})):
        with pytest.raises(StoreError, match="pipe"):
            use(name)


def test_seconds_of_pipelines_are_kept_until_they_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, clock = Session(tmp_path), itertools.count(1)
    monkeypatch.setattr("mm_ldlm.app.hooks.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    file = Path(session.entries["timings"]["filepath"])
    file.parent.mkdir(parents=True)
    (left := file.with_name(f".tmp-{0:032x}-{file.name}")).touch()  # by a run that was killed
    session.run(one("params:seed"))
    assert not left.exists()
    [next(clock) for _ in range(1000)]  # between two runs
    session.run(one("timings", outputs="comparison", tag="reporting"))
    assert seen[0].keys() == {"validation"}  # the pipeline that is running is not finished
    found = json.loads(file.read_text())
    assert found == {"validation": 2.0, "reporting": 2.0}, "a node runs, and its output is saved"
    file.write_text('{"validation": 100.0}')
    session.run(one("params:seed"))
    assert json.loads(file.read_text()) == {"validation": 100.0}  # one of its nodes ran


def test_a_split_that_the_training_reads_is_refused_before_the_embedding(tmp_path: Path, refuses: Refuses) -> None:
    def prepared(*_: Any) -> dict[str, Any]:
        return {"splits": {"train": 9, "test": 1}}

    pipeline = one("params:seed", outputs="preparation_report", tag="ingestion", func=prepared)
    Session(tmp_path).run(pipeline)
    pipeline += one("preparation_report", outputs="ingestion_report", tag="training")
    with refuses(ConfigurationError, "training.validate_every", "validation"):
        Session(tmp_path).run(pipeline)
    Session(tmp_path, training={"validate_every": 0}).run(pipeline)
    pipeline += one("preparation_report", outputs="comparison", tag="sampling")
    for change, reads in (({}, True), ({"rows": 0}, False), ({"tasks": []}, False)):
        with pytest.raises(ConfigurationError, match=r"sampling\.rows") if reads else contextlib.nullcontext():
            Session(tmp_path, training={"validate_every": 0}, sampling={"split": "validation", **change}).run(pipeline)


def test_of_two_runs_in_one_folder_the_second_is_refused_until_the_first_ends(tmp_path: Path, refuses: Refuses) -> None:
    writing, reading = take(tmp_path / ".results.lock", "write"), take(tmp_path / ".data.lock", "read")
    with refuses(ConfigurationError, "results", "Wait"):
        Session(tmp_path).run(one("params:seed"))
    with pytest.raises(ConfigurationError, match="uses the data"):
        Session(tmp_path).run(one("params:seed", outputs="preparation_report", tag="ingestion"))
    writing.close()
    Session(tmp_path).run(one("params:seed"))  # others may read the data meanwhile
    reading.close()
    with take(tmp_path / ".data.lock", "write"), pytest.raises(ConfigurationError, match="writes the data"):
        Session(tmp_path).run(one("records"))
    for part, use in (("data", "read"), ("results", "write")):
        with take(tmp_path / f".{part}.lock", use), pytest.raises(ConfigurationError, match=f"uses the {part}"):
            Session(tmp_path).run(one("params:seed", outputs="preparation_report", tag="ingestion") + one("records"))


def test_devices_and_hosts_are_checked_where_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {name: {"device": "cuda:99"} for name in ("training", "evaluation")}
    plan = one("params:training", outputs="training_spec", tag="training")
    launch = plan + one("training_spec", outputs="run", tag="sampling")
    scoring = one("params:evaluation", outputs="comparison", tag="evaluation")
    for pipeline, used in ((plan, False), (launch, True), (one("params:evaluation"), False), (scoring, True)):
        with pytest.raises(ConfigurationError, match="cuda:99") if used else contextlib.nullcontext():
            Session(tmp_path, **absent).run(pipeline)
    monkeypatch.setenv("NNODES", "2")
    Session(tmp_path).run(plan)
    with pytest.raises(ConfigurationError, match="NODE_RANK"):
        Session(tmp_path).run(launch)


def test_locks_end_with_a_run_however_it_ends(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise KeyError("x")

    session = Session(tmp_path)
    with pytest.raises(KeyError):
        session.run(one("params:seed", func=fail))
    assert take(tmp_path / ".results.lock", "write") is not None


def test_another_host_runs_only_what_hosts_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", "1")
    with pytest.raises(ConfigurationError, match="validation"):
        Session(tmp_path).run(one("params:seed"))
    Session(tmp_path).run(one("params:seed", outputs="comparison", tag="embedding"))
    assert not (tmp_path / "08_reporting/timings.json").exists()  # the first host records the run


def test_a_run_by_its_path_is_only_used(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(ConfigurationError, "validation", "sampling"):
        Session(tmp_path, run=str(tmp_path / "runs/x")).run(one("params:seed"))
    for tag in ("ingestion", "embedding", "training"):
        with pytest.raises(ConfigurationError, match=tag):
            Session(tmp_path, run=str(tmp_path / "runs/x")).run(one("params:seed", tag=tag))


def test_a_follower_misses_no_line_and_survives_its_sinks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    received: list[int] = []

    def sink(lines: Any) -> None:
        received.extend([line["step"] for line in lines] or [-1])

    def broken(lines: Any) -> None:
        raise RuntimeError("a" * 10**5)

    log = Tracker(tmp_path / "log.jsonl")
    log.metrics(0, {})  # of an earlier session
    follower, other = Follower(tmp_path / "log.jsonl", sink), Follower(tmp_path / "log.jsonl", broken)
    writers = [threading.Thread(target=log.metrics, args=(step, {"loss": 1.0})) for step in range(1, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    until = time.monotonic() + 30
    while len(received) < 19 and time.monotonic() < until:  # lines are passed on while the training runs
        time.sleep(0.05)
    assert len(received) == 19
    log.metrics(20, {})
    for each in (follower, other):
        each.stop()
    log.close()
    assert (sorted(received[:-1]), received[-1]) == (list(range(1, 21)), -1), "the rest, then an empty list"
    assert follower.lines == 20
    assert (caplog.text.count("no longer follows"), len(caplog.text) < 2000) == (1, True)
