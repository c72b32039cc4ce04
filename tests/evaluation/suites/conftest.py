"""A finished quick run, as the suites read it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.evaluation.suites import SUITES
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.inference.api import MMLDLM


@dataclass(frozen=True)
class Run:
    """A finished run: what a suite reads, and what the pipelines wrote."""

    given: Evaluation
    written: Path
    samples: Mapping[str, pd.DataFrame]

    def of(self, name: str) -> Evaluation:
        chosen = {task: self.samples[task] for task in SUITES.load(name).samples}
        return replace(self.given, samples=chosen)

    def metrics(self, name: str) -> dict[str, Any]:
        return json.loads((self.written / f"metrics_{name}.json").read_text())


@pytest.fixture(scope="module")
def run(finished: Path) -> Run:
    return run_of(finished)


def run_of(finished: Path) -> Run:
    data = finished / "data" / "test"
    reference = json.loads((data / "06_models" / "run.json").read_text())
    model = MMLDLM.from_run(data / "06_models" / "runs" / reference["name"])
    config = parameters(finished)
    tables = {path.stem.removeprefix("samples_"): pd.read_parquet(path)
              for path in (data / "07_model_output").glob("samples_*.parquet")}  # fmt: skip
    given = Evaluation(model, Dataset.open(data / "05_model_input" / "dataset"), {}, config["evaluation"], 0, config)
    return Run(given, data / "08_reporting", tables)


def parameters(project: Path) -> dict[str, Any]:
    from mm_ldlm.settings import CONFIG_LOADER_ARGS, CONFIG_LOADER_CLASS

    loader = CONFIG_LOADER_CLASS(str(project / "conf"), env="test", **CONFIG_LOADER_ARGS)
    return check_parameters(loader["parameters"])
