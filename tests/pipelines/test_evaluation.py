"""The graph of `evaluation` fits its nodes, and runs on a model that is not there to train."""

from __future__ import annotations

import inspect

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from mm_ldlm.pipelines.evaluation import nodes
from mm_ldlm.pipelines.evaluation.pipeline import create_pipeline


def test_every_node_gets_as_many_inputs_as_it_takes():
    for node in create_pipeline().nodes:
        takes = len(inspect.signature(node.func).parameters)
        assert len(node.inputs) == takes, node.name
        assert node.tags == {"evaluation"}


def test_the_parameters_of_base_are_of_the_right_type(project):
    import yaml

    from mm_ldlm.config import parse
    from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig

    folder = project / "conf" / "base" / "parameters"
    evaluation = yaml.safe_load((folder / "evaluation.yml").read_text())["evaluation"]
    found = parse(EvaluationConfig, evaluation, at="evaluation")
    assert found.inversion.reference in [point.label for point in found.inversion.sweep]
    parse(ReportingConfig, yaml.safe_load((folder / "reporting.yml").read_text())["reporting"], at="reporting")


def test_samples_without_truth_are_left_out_with_the_reason(monkeypatch, tmp_path):
    import pandas as pd

    class Network:
        class objective:
            modes = ("l2t", "t2l")

    class Model:
        network = Network

    monkeypatch.setattr("mm_ldlm.inference.MMLDLM.from_run", lambda *_, **__: Model())
    empty = pd.DataFrame({"id": pd.Series(dtype="string"), "text": pd.Series(dtype="string")})
    pipeline = create_pipeline().filter(node_names=["evaluate_inversion", "evaluate_latents", "evaluate_generation"])
    values = {
        "run": {"name": "x"},
        "runs": tmp_path,
        "samples_l2t": empty,
        "samples_t2l": empty,
        "samples_unconditional": empty,
        "params:evaluation": {},
        "params:seed": 0,
    } | dict.fromkeys(("records", "tokens", "latents", "index"), "unused")
    catalog = DataCatalog({name: MemoryDataset(value) for name, value in values.items()})
    found = SequentialRunner().run(pipeline, catalog)
    for name in ("metrics_inversion", "metrics_latents"):
        assert "sampling was not asked" in found[name].load()["skipped"]
    assert "no unconditional samples" in found["metrics_generation"].load()["skipped"]
    assert len(found["inversion_rows"].load()) == 0


def test_an_unknown_key_is_refused_by_its_path(tmp_path):
    from mm_ldlm.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"evaluation\.sts\.set.*Did you mean 'sets'"):
        nodes._start({"name": "x"}, tmp_path, {"sts": {"set": []}})
