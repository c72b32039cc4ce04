"""A finished quick run, as the suites read it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.inference.runs import BagEncoder, make

from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.held_out import held_out
from mm_ldlm.evaluation.config import (
    BootstrapConfig,
    EvaluationConfig,
    InversionConfig,
    LikelihoodConfig,
    SweepPoint,
)
from mm_ldlm.evaluation.suites import SUITES
from mm_ldlm.evaluation.suites.base import Evaluation
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.search import SearchConfig


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
    config = parameters(finished)
    precision = config["evaluation"].precision
    model = MMLDLM.from_run(data / "06_models" / "runs" / reference["name"], precision=precision)
    tables = {path.stem.removeprefix("samples_"): pd.read_parquet(path)
              for path in (data / "07_model_output").glob("samples_*.parquet")}  # fmt: skip
    given = Evaluation(model, Dataset.open(data / "05_model_input" / "dataset"), {}, config["evaluation"], 0, config)
    return Run(given, data / "08_reporting", tables)


@pytest.fixture
def evaluation(write_dataset: Any, tmp_path: Path) -> Evaluation:
    """What a suite reads of a small model: two samples for each of 12 held-out sentences and one of no sentence, and more
    texts from noise than there are held-out sentences, of which one is empty.
    """
    texts = [f"w{i % 20} w{3 * i % 20}" + " w7" * (i % 3) + f" w{i // 20}" for i in range(40)]
    splits = ["test" if i % 2 else "train" for i in range(40)]
    dataset = write_dataset(tmp_path, texts, splits, latents=BagEncoder().encode(texts))
    held, model = held_out(dataset, count=12, seed=0, split="test"), make()
    made = model.invert(held.latents, samples=2, temperature=1.0, length="sample", keep="all")
    table = made.to_frame().assign(id=np.repeat(held.ids, 2), tokens=made.tokens, cosine=[np.nan, 0.5, 0.5] * 8)
    free = model.generate(24)
    samples = {
        "l2t": pd.concat([table, table[:1].assign(id=None)]),
        "unconditional": pd.DataFrame({"text": [*free.texts[:-1], " "], "tokens": free.tokens}),
    }
    points = [
        SweepPoint(
            label=kind, sampler=text_sampler(kind, steps=2, temperature=1.0), length=length, search=SearchConfig()
        )
        for kind, length in (("random", 4), ("ancestral", "argmax"))
    ]
    points.append(SweepPoint(label="search", sampler=points[0].sampler, search=SearchConfig(candidates=2)))
    config = EvaluationConfig(
        inversion=InversionConfig(sweep=tuple(points), sweep_sentences=5, baseline_rows=7),
        likelihood=LikelihoodConfig(sentences=4, draws=2), bootstrap=BootstrapConfig(replicates=20),
    )  # fmt: skip
    return Evaluation(model, dataset, samples, config, seed=3)


def parameters(project: Path) -> dict[str, Any]:
    from mm_ldlm.settings import CONFIG_LOADER_ARGS, CONFIG_LOADER_CLASS

    loader = CONFIG_LOADER_CLASS(str(project / "conf"), env="test", **CONFIG_LOADER_ARGS)
    return check_parameters(loader["parameters"])
