"""Second cases of the hooks: several pipelines in a refusal, folders that a catalog lacks, and causes of errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DatasetError
from kedro.pipeline import Pipeline, node
from mm_ldlm.app.datasets.locks import FOLDERS
from mm_ldlm.app.hooks.refusals import later_than_test, refuse_beyond_samples, refuse_on_other_hosts
from mm_ldlm.app.hooks.tracked import TrackedRun
from mm_ldlm.app.tracking.names import MOST_HEADLINES

from mm_ldlm.app.hooks import ProjectHooks, refusals
from mm_ldlm.core.errors import ConfigurationError


def pipeline(*names: str) -> Pipeline:
    return Pipeline([node(lambda: 1, None, name, name=name, tags=name) for name in names])


def test_all_pipelines_that_a_chosen_run_does_not_need_are_named_in_order() -> None:
    run = SimpleNamespace(_describe=lambda: {"chosen": "somewhere"})
    catalog: Any = {"run": run}
    refuse_beyond_samples(pipeline("sampling", "evaluation", "reporting"), catalog)
    with pytest.raises(ConfigurationError) as refused:
        refuse_beyond_samples(pipeline("training", "sampling", "embedding", "sanity"), catalog)
    assert str(refused.value) == (
        "parameter 'run': expected only pipelines that use a finished run, found embedding, sanity, training. Add "
        "`--pipelines=sampling,evaluation,reporting`, or leave `run` out."
    )


@pytest.mark.parametrize(("nodes", "count"), [(3, "3"), (None, "several")])
def test_what_runs_on_one_host_is_named_with_the_number_of_this_one(
    nodes: int | None, count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(is_first=False, node_rank=2, nodes=nodes)
    monkeypatch.setattr("mm_ldlm.distributed.environment.hosts", lambda: found)
    refuse_on_other_hosts(pipeline("embedding", "training"))
    with pytest.raises(ConfigurationError) as refused:
        refuse_on_other_hosts(pipeline("reporting", "training", "ingestion"))
    assert str(refused.value) == (
        f"expected only embedding and training on host 2 of {count}, found ingestion, reporting. Run the others on one "
        "host, before or after: `NNODES=1 kedro run --pipelines=…`; ingestion also runs on a Ray cluster "
        "(docs/ray.md)."
    )
    found.is_first = True
    refuse_on_other_hosts(pipeline("reporting"))


@pytest.mark.parametrize(
    ("layers", "order"),
    [
        ((), None), (("mdlm",), None), (("mdlm", "test"), None), (("test", "local"), None),
        (("test", "mdlm"), "mdlm+test"), (("a", "test", "mdlm", "local"), "a+mdlm+test+local"),
        (("test", "local", "mdlm"), "local+mdlm+test"), (("local", "test", "a"), "local+a+test"),
    ],
)  # fmt: skip
def test_the_layer_of_tests_belongs_behind_all_but_local(layers: tuple[str, ...], order: str | None) -> None:
    found = later_than_test(layers)
    if order is None:
        assert found == ""
    else:
        assert found == f"\nThe environment 'test' shrinks only the layers before it: use --env={order}."


def test_a_catalog_that_lacks_a_folder_locks_none(tmp_path: Path) -> None:
    entries = {name: {"filepath": f"data/{part}/x/{name}.json"} for part, name in FOLDERS.items()}
    hooks = ProjectHooks()
    hooks._project = tmp_path
    hooks._context = SimpleNamespace(config_loader={"catalog": entries})  # type: ignore[assignment]
    assert hooks._folders() == {part: tmp_path / "data" / part for part in FOLDERS}
    for name in FOLDERS.values():
        lacking = {key: value for key, value in entries.items() if key != name}
        hooks._context = SimpleNamespace(config_loader={"catalog": lacking})  # type: ignore[assignment]
        assert hooks._folders() is None
    hooks._context = None
    assert hooks._folders() is None


def test_the_cause_of_a_folder_that_cannot_be_written_is_named_without_the_words_around_it(tmp_path: Path) -> None:
    def save(name: str, value: Any) -> None:
        raise DatasetError("Failed while saving data to dataset JSONDataset(…)") from OSError("no space left")

    hooks = ProjectHooks()
    hooks._catalog = SimpleNamespace(save=save)  # type: ignore[assignment]
    hooks._announce = lambda *_: None  # type: ignore[method-assign]
    typed = {"tracking": SimpleNamespace(enabled=False)}
    with pytest.raises(ConfigurationError) as refused:
        hooks._begin(typed, {}, {}, Pipeline([]), None)
    assert str(refused.value) == (
        "the data folder cannot be written to (no space left). Choose another one: `--params data=FOLDER`, or 'data' "
        "in the environment's globals.yml."
    )


def test_as_many_headlines_as_the_list_of_runs_shows_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "mm_ldlm.evaluation.headline.most_important", lambda data, *, count: asked.append(count) or ["a"]
    )
    monkeypatch.setattr("mm_ldlm.app.hooks.tracked._send", lambda uri, call: call())
    recorded: list[Any] = []
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path)
    run._record = SimpleNamespace(uri="u", add_metrics=lambda data, *, first: recorded.append((data, first)))  # type: ignore[assignment]
    run.saved("metrics", {"a": 1.0})
    assert (asked, recorded) == ([MOST_HEADLINES], [({"a": 1.0}, ["a"])])


def test_the_checks_of_a_configuration_need_no_numbers_of_hosts() -> None:
    """They run in one process here; only ranks that are started are counted."""
    sanity, training = pipeline("sanity"), Pipeline([node(lambda x: 1, "training_spec", "run", name="r", tags="t")])
    assert (refusals.launches(sanity), refusals.trains(sanity)) == (False, True)
    assert (refusals.launches(training), refusals.trains(training)) == (True, True)
    assert refusals.trains(pipeline("sampling")) is False
