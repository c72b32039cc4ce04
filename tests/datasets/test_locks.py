"""Locks of the data folders: which runs exclude one another, and which run at the same time."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from kedro.pipeline import Pipeline, node
from mm_ldlm.app.datasets.locks import FOLDERS, FolderLocks, _part

from mm_ldlm.core import locks as lock
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.locks import Lock
from mm_ldlm.pipeline_registry import register_pipelines

_holding: list[FolderLocks] = []
"""Locks end with their object."""


def pipeline(*names: str) -> Pipeline:
    modules = [importlib.import_module(f"mm_ldlm.pipelines.{name}.pipeline") for name in names]
    return sum((module.create_pipeline() for module in modules), Pipeline([]))


def take(steps: Pipeline, folders: dict[str, Path]) -> FolderLocks:
    """Lock the folders for a run with these steps."""
    _holding.append(FolderLocks())
    _holding[-1].take(steps, folders)
    return _holding[-1]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pipeline("ingestion", "embedding", "validation", "training", "sampling")
    _holding.clear()
    monkeypatch.setattr("kedro.framework.project.pipelines", {"__default__": whole})


def folders(root: Path, results: str = "a") -> dict[str, Path]:
    return {"data": root, "features": root, "results": root / results if results else root}


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (("training",), ("training",), False),
        (("training",), ("sampling",), False),
        (("ingestion", "embedding", "validation", "training"), ("ingestion",), False),
        (("validation",), ("ingestion",), False),
        (("validation",), ("embedding",), False),
        (("training",), ("ingestion",), False),  # the dataset is among the results, but its stores are the data
        (("training",), ("embedding",), False),
        (("sampling",), ("embedding",), False),
        (("comparison",), ("ingestion",), True),  # its sessions read the data, with locks of their own
    ],
)
def test_runs_in_one_folder(first: tuple[str, ...], second: tuple[str, ...], together: bool, tmp_path: Path) -> None:
    for one, two in ((first, second), (second, first)):
        mine, theirs = FolderLocks(), FolderLocks()
        mine.take(pipeline(*one), folders(tmp_path))
        if together:
            theirs.take(pipeline(*two), folders(tmp_path))
            theirs.release()
        else:
            with pytest.raises(ConfigurationError, match=r"expected no other run that .* found process \d+, since 2"):
                theirs.take(pipeline(*two), folders(tmp_path))
        mine.release()
        theirs.take(pipeline(*two), folders(tmp_path))
        theirs.release()


MODELS = {"data": "read", "features": "read", "results": "write"}
USES = {
    "ingestion": {"data": "write"}, "embedding": {"data": "read", "features": "write"}, "validation": MODELS,
    "training": MODELS, "sampling": MODELS, "evaluation": MODELS, "reporting": {"data": "read", "results": "write"},
    "sanity": MODELS, "comparison": {"results": "write"}, "export": MODELS,
    "__default__": dict.fromkeys(("data", "features", "results"), "write"),
}  # fmt: skip
"""Pipeline → the parts that a run of it alone locks, and how; the report quotes that of the ingestion."""


def used(root: Path) -> dict[str, str]:
    """What another process finds: parts that nobody else may read or write, and parts that it may only read."""
    found = {}
    for part in ("data", "features", "results"):
        for use, left in (("write", ""), ("read", "read")):
            if (other := lock.take(root / f".{part}.lock", use)) is not None:  # type: ignore[arg-type]
                other.release()
                found[part] = left
                break
        else:
            found[part] = "write"
    return {part: use for part, use in found.items() if use}


@pytest.mark.parametrize("name", USES)
def test_a_run_of_one_pipeline_locks_what_it_writes_and_what_others_wrote_that_it_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipelines that wrote its inputs are no part of the run."""
    registered = register_pipelines()
    assert set(registered) == set(USES)
    monkeypatch.setattr("kedro.framework.project.pipelines", registered)
    mine = take(registered[name], folders(tmp_path, ""))
    assert used(tmp_path) == USES[name]
    mine.release()
    assert used(tmp_path) == {}


def test_each_part_is_found_by_an_entry_that_it_contains() -> None:
    """The folder of a part, and of its lock, is that of this entry in the catalog."""
    steps = register_pipelines()["__default__"].nodes
    found = {part: {_part(each) for each in steps if entry in each.outputs} for part, entry in FOLDERS.items()}
    assert found == {part: {part} for part in ("data", "features", "results")}


def test_a_run_of_some_nodes_locks_what_these_nodes_read(tmp_path: Path) -> None:
    """The nodes before and after them are no part of the run either."""
    steps = {each.short_name: each for name in ("ingestion", "embedding") for each in pipeline(name).nodes}
    expected = {name: {"data": "write"} if "ingestion" in each.tags else {"features": "write"}
                for name, each in steps.items()}  # fmt: skip
    records_and_tokens = {"records", "tokens", "tokenizer_files", "vectors"}
    for name, each in steps.items():
        if "embedding" in each.tags and records_and_tokens & set(each.inputs):
            expected[name] = {"data": "read", "features": "write"}
    found = {}
    for name, each in steps.items():
        mine = take(Pipeline([each]), folders(tmp_path, ""))
        found[name] = used(tmp_path)
        mine.release()
    assert found == expected


def test_models_train_at_the_same_time_on_the_same_data(tmp_path: Path) -> None:
    first, second = (
        take(pipeline("validation", "training", "sampling"), folders(tmp_path, name)) for name in ("a", "b")
    )
    assert first._held.keys() == second._held.keys() != set()


def test_a_whole_run_shares_the_data_once_they_are_written(tmp_path: Path) -> None:
    whole, other = FolderLocks(), FolderLocks()
    steps = pipeline("ingestion", "embedding", "validation")
    whole.take(steps, folders(tmp_path, "a"))
    for each in (*pipeline("ingestion").nodes, *pipeline("embedding").nodes):
        with pytest.raises(ConfigurationError, match="while this one uses them"):
            other.take(pipeline("validation"), folders(tmp_path, "b"))
        for name in each.outputs:
            whole.saved(name)
    other.take(pipeline("validation"), folders(tmp_path, "b"))
    with pytest.raises(ConfigurationError, match="while this one writes them"):
        take(pipeline("ingestion"), folders(tmp_path, "c"))


def test_a_part_that_another_run_takes_while_it_is_shared_ends_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, steps = FolderLocks(), pipeline("ingestion")
    whole.take(steps, folders(tmp_path, "a"))
    monkeypatch.setattr(Lock, "share", lambda lock: False)
    *first, last = [name for each in steps.nodes for name in each.outputs]
    for name in first:
        whole.saved(name)
    with pytest.raises(ConfigurationError, match=r"no other run that writes the data in .* while this one uses them"):
        whole.saved(last)
    whole.saved("a name of no part")
    whole.release()


def test_the_sessions_of_a_comparison_run_inside_its_folder(tmp_path: Path) -> None:
    """In base, data, features and results are one folder, and the sessions have results below it."""
    take(pipeline("comparison"), folders(tmp_path, ""))
    first = take(pipeline("ingestion", "embedding", "validation", "training"), folders(tmp_path, "06_models/x/seed-0"))
    first.release()
    for seed in (1, 2):
        take(pipeline("validation", "training"), folders(tmp_path, f"06_models/x/seed-{seed}"))
    with pytest.raises(ConfigurationError, match=r"uses the results .*`--params results=FOLDER`"):
        take(pipeline("training"), folders(tmp_path, ""))


def test_a_refused_run_holds_no_lock(tmp_path: Path) -> None:
    mine = take(pipeline("training"), folders(tmp_path, "a"))
    with pytest.raises(ConfigurationError, match="the results in"):
        take(pipeline("validation", "training"), folders(tmp_path, "a"))
    mine.release()
    take(pipeline("ingestion"), folders(tmp_path, "b"))


@pytest.mark.parametrize(
    ("part", "step", "parameter"),
    [("data", "ingestion", "data"), ("features", "embedding", "data"), ("results", "training", "results")],
)
def test_a_refused_run_is_told_which_part_and_which_parameter(
    part: str, step: str, parameter: str, tmp_path: Path
) -> None:
    """Data and features are both below the folder that the parameter `data` chooses."""
    take(pipeline(step), folders(tmp_path))
    with pytest.raises(ConfigurationError) as error:
        take(pipeline(step), folders(tmp_path))
    assert f"no other run that uses the {part} in {folders(tmp_path)[part]} while this one writes" in str(error.value)
    assert f"`--params {parameter}=FOLDER`" in str(error.value)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        take(pipeline("training"), folders(tmp_path / "file"))


def test_nodes_of_no_pipeline_write_results(tmp_path: Path) -> None:
    mine = take(Pipeline([node(lambda: 1, None, "x", name="n")]), folders(tmp_path))
    mine.saved("x")
    with pytest.raises(ConfigurationError):
        take(pipeline("training"), folders(tmp_path))
