"""Record of a run in MLflow beyond its numbers: what leads from its page back to the run folder and the data.

Every method sends what became known in the course of a run; the caller limits the time of a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.app.tracking import mlflow
from mm_ldlm.app.tracking.description import clean, note
from mm_ldlm.core.files import InputFile

NOTE = "mlflow.note.content"
"""Tag with the Markdown text that MLflow shows as the description of a run"""


class Record:
    """Tags, datasets, artifacts and description of one MLflow run.

    Args:
        name: name of the MLflow run so far; None if the user chose it, so that it stays.
        pipelines: what the run executes.
        command: the command line, for the description.
    """

    def __init__(self, uri: str, run_id: str, *, project: Path, name: str | None, pipelines: str, command: str) -> None:
        self.uri, self.run_id = uri, run_id
        self._project, self._name, self._pipelines, self._command = project, name, pipelines, command
        self._facts: dict[str, str] = {}
        self._headline: dict[str, float] = {}
        self._summary = f"Runs {pipelines}."
        self._datasets: set[str] = set()
        self._run: str | None = None

    def add_dataset(
        self, name: str, fingerprint: str, stores: Mapping[str, str], *, examples: Mapping[str, int]
    ) -> None:
        """Record the validated dataset and its stores with their fingerprints, once.

        Args:
            examples: number of examples by split.
        """
        if self.has_dataset(fingerprint):
            return
        self._datasets.add(fingerprint)
        mlflow.log_datasets(
            self.uri, self.run_id, {name: fingerprint}, context=", ".join(examples), profile=json.dumps(dict(examples))
        )
        mlflow.log_datasets(self.uri, self.run_id, stores, context="store of the dataset")
        tags = {"dataset_fingerprint": fingerprint} | {f"fingerprint.{key}": value for key, value in stores.items()}
        mlflow.annotate(self.uri, self.run_id, tags)
        sizes = ", ".join(f"{number:,} {split}" for split, number in examples.items())
        self._facts["dataset"] = f"{name}, fingerprint {fingerprint}, examples: {sizes}"

    def has_dataset(self, fingerprint: str) -> bool:
        """Return whether the dataset of this fingerprint is recorded."""
        return fingerprint in self._datasets

    def add_run(self, reference: Mapping[str, Any], folder: Path, *, trained: bool) -> None:
        """Record the run folder, its fingerprint and its configuration.

        Args:
            reference: the run reference of the catalog.
            trained: whether this run trained it, and not an earlier one.
        """
        if self._run == (name := str(reference["name"])):
            return
        self._run = name
        identity = {"run_folder": name, "pipelines": self._pipelines}
        tags = identity | {
            "run_fingerprint": str(reference.get("fingerprint", "")),
            "step": str(reference.get("step", "")),
            "checkpoint": str(reference.get("checkpoint", "")),
            "trained_here": str(trained).lower(),
        }
        before = mlflow.count_runs(self.uri, self.run_id, identity) if self._name is not None else 0
        title = None if self._name is None else f"{self._name} {name}" + (f" ({before + 1})" if before else "")
        mlflow.annotate(self.uri, self.run_id, tags, name=title)
        config = InputFile(folder / "config.json", remedy="Restore it.").json(dict)
        shown = clean({key: value for key, value in config.items() if key != "tracking"}, project=self._project)
        mlflow.log_text(self.uri, self.run_id, json.dumps(shown, indent=1), file="config.json")
        self._facts["run"] = f"{name}, fingerprint {tags['run_fingerprint']}, {tags['checkpoint']}"
        model, objective = (_kind(config.get(part)) for part in ("model", "objective"))
        done = "Trained" if trained else "Used"
        self._summary = (
            f"{done} {model} with the objective {objective} for {tags['step']} steps. Ran {self._pipelines}."
        )

    def add_metrics(self, metrics: Mapping[str, Any], *, first: Sequence[str]) -> None:
        """Record the numbers of `metrics.json`, those of `first` as headline numbers, and the file."""
        mlflow.log_metrics(self.uri, self.run_id, metrics, first=first)
        mlflow.log_text(self.uri, self.run_id, json.dumps(clean(dict(metrics)), indent=1), file="metrics.json")
        self._headline = {key: float(metrics[key]) for key in first}

    def describe(self) -> None:
        """Write the description: what was trained on what, the headline numbers and the command."""
        text = note(summary=self._summary, command=self._command, facts=self._facts, headline=self._headline)
        mlflow.annotate(self.uri, self.run_id, {NOTE: text})


def _kind(section: Any) -> str:
    if not isinstance(section, Mapping):
        return "an unknown kind"
    mode = f" ({section['mode']})" if "mode" in section else ""
    return f"`{section.get('kind')}`{mode}"
