"""The page of a run in MLflow leads back to the run folder, the data and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mm_ldlm.app.tracking.record import NOTE, Record

from mm_ldlm.app.tracking import mlflow as tracking

REFERENCE = {"name": "run-0123", "fingerprint": "f00d", "step": 300, "checkpoint": "step-00000300", "metrics": {}}
STORES = {"records": "aa" * 32, "tokenizer": "bb"}


@pytest.fixture(scope="module")
def place(uri: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    root = tmp_path_factory.mktemp("project")
    folder = root / "runs" / "run-0123"
    folder.mkdir(parents=True)
    config = {
        "model": {"kind": "mmdit"}, "objective": {"kind": "multimodal", "mode": "mixed"},
        "training": {"init_from": "/srv/other/run"}, "tracking": {"tracking_uri": f"sqlite:///{root}/m.db"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return uri, folder


def record(place: tuple[str, Path], *, name: str | None = "all@base", experiment: str) -> Record:
    run_id = tracking.open_run(place[0], experiment=experiment, name=name or "mine", parameters={}, tags={})
    project = place[1].parents[1]
    return Record(place[0], run_id, project=project, name=name, pipelines="all", command="kedro run --env=base")


def data_of(found: Record) -> Any:
    return tracking.client(found.uri).get_run(found.run_id)


def test_a_run_leads_back_to_its_folder_its_data_and_its_command(place: tuple[str, Path], tmp_path: Path) -> None:
    found = record(place, experiment="back")
    for _ in range(2):  # as often as it is loaded
        found.add_dataset("data/05_model_input", "d1g3st", STORES, examples={"train": 1000, "test": 20})
        found.add_run(REFERENCE, place[1], trained=True)
    found.add_metrics({"perplexity": 3.5, "l2t.bleu": 0.5, "made_by": {"run": "/a/b/c"}}, first=["perplexity"])
    found.describe()
    run = data_of(found)
    assert run.info.run_name == "all@base run-0123"
    tags = run.data.tags
    assert (tags["run_folder"], tags["run_fingerprint"], tags["step"]) == ("run-0123", "f00d", "300")
    assert tags["dataset_fingerprint"] == "d1g3st"
    assert tags["fingerprint.records"] == STORES["records"]
    text = tags[NOTE]
    for words in (
        "Trained `mmdit` with the objective `multimodal` (mixed) for 300 steps. Ran all.", "`kedro run --env=base`",
        "| perplexity | 3.5 |", "examples: 1,000 train, 20 test", "run-0123",
    ):  # fmt: skip
        assert words in text
    datasets = {item.dataset.name: item.dataset.digest for item in run.inputs.dataset_inputs}
    assert datasets == {"data/05_model_input": "d1g3st", "records": STORES["records"][:36], "tokenizer": "bb"}
    client = tracking.client(found.uri)
    assert {item.path for item in client.list_artifacts(found.run_id)} == {"config.json", "metrics.json"}
    config = json.loads(Path(client.download_artifacts(found.run_id, "config.json", str(tmp_path))).read_text())
    assert config["training"] == {"init_from": "…/run"}
    assert "tracking" not in config
    everything = json.dumps([tags, config, dict(run.data.metrics)])
    assert str(place[1].parents[1]) not in everything.replace(tags.get("mlflow.source.name", "-"), "")
    assert "/a/b/" not in Path(client.download_artifacts(found.run_id, "metrics.json", str(tmp_path))).read_text()


def test_a_repeated_run_is_counted_and_an_evaluation_trained_nothing(place: tuple[str, Path]) -> None:
    titles = []
    for trained in (True, False):
        found = record(place, experiment="repeated")
        found.add_run(REFERENCE, place[1], trained=trained)
        found.describe()
        run = data_of(found)
        titles.append((run.info.run_name, run.data.tags["trained_here"], run.data.tags[NOTE].split()[0]))
    assert titles == [("all@base run-0123", "true", "Trained"), ("all@base run-0123 (2)", "false", "Used")]


def test_a_name_that_the_user_chose_stays(place: tuple[str, Path]) -> None:
    found = record(place, name=None, experiment="chosen")
    found.add_run(REFERENCE, place[1], trained=True)
    assert data_of(found).info.run_name == "mine"
