"""The pipeline `evaluation`: its graph fits its nodes, and it skips what a run does not support."""

from __future__ import annotations

import types

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from mm_ldlm.evaluation import samples
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.pipelines.evaluation import nodes
from mm_ldlm.pipelines.evaluation.pipeline import create_pipeline
from mm_ldlm.sampling.config import TASKS


def test_the_parameters_of_base_are_of_the_right_type(project):
    import yaml

    from mm_ldlm.core.config import parse
    from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig

    folder = project / "conf" / "base" / "parameters"
    evaluation = yaml.safe_load((folder / "evaluation.yml").read_text())["evaluation"]
    found = parse(EvaluationConfig, evaluation, at="evaluation")
    assert found.inversion.reference in [point.label for point in found.inversion.sweep]
    parse(ReportingConfig, yaml.safe_load((folder / "reporting.yml").read_text())["reporting"], at="reporting")


def run_suites(capabilities, names, samples):
    """Run some nodes on a model of which only the capabilities are asked."""
    values = {
        "evaluation_model": types.SimpleNamespace(capabilities=capabilities, parts=None),
        "dataset": "unused",
        **dict.fromkeys((f"samples_{task}" for task in TASKS), samples),
        "params:evaluation": {},
        "params:seed": 0,
    }
    catalog = DataCatalog({name: MemoryDataset(value, copy_mode="assign") for name, value in values.items()})
    pipeline = create_pipeline().filter(node_names=[f"evaluation.evaluate_{name}" for name in names])
    return {name: value.load() for name, value in SequentialRunner().run(pipeline, catalog).items()}


EMPTY = pd.DataFrame({"id": pd.Series(dtype="string"), "text": pd.Series(dtype="string")})


def test_samples_without_truth_are_left_out_with_the_reason():
    able = Capabilities(uses=frozenset({"l2t", "t2l", "unconditional"}), trained_as="everything")
    found = run_suites(able, ("inversion", "latents", "generation"), EMPTY)
    for name in ("metrics_inversion", "metrics_latents"):
        assert "sampling was configured without" in found[name]["skipped"]
    assert "unconditional samples" in found["metrics_generation"]["skipped"]
    assert len(found["inversion_rows"]) == 0


def test_a_suite_that_the_run_cannot_do_is_skipped_in_the_words_of_its_capabilities():
    unable = Capabilities(uses=frozenset(), trained_as="objective toy")
    skipped = {"inversion": "l2t", "latents": "t2l", "generation": "unconditional", "images": "caption_to_image"}
    found = run_suites(unable, tuple(skipped), EMPTY)
    for suite, use in skipped.items():
        assert found[f"metrics_{suite}"] == {"skipped": unable.refusal(use)}


def test_the_model_is_loaded_by_one_node_and_taken_by_all_others():
    pipeline = create_pipeline()
    assert [node.name for node in pipeline.nodes if "run" in node.inputs] == ["evaluation.load_model"]
    assert all("evaluation_model" in node.inputs for node in pipeline.nodes if node.short_name != "load_model")


def test_an_unknown_key_is_refused_by_its_path(tmp_path):
    from mm_ldlm.core.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"evaluation\.sts\.set.*Did you mean 'sets'"):
        nodes.load_model({"name": "x"}, tmp_path, None, {"sts": {"set": []}})


@pytest.mark.parametrize(
    ("ids", "skipped"), [(["a", None], False), (["a", "b"], False), ([None, None], True), ([], True), (None, True)]
)
def test_samples_without_any_held_out_sentence_are_explained(ids: list[str | None] | None, skipped: bool) -> None:
    """A text of the user's own beside held-out sentences does not leave these unevaluated."""
    table = pd.DataFrame(
        {"text": ["x"] * len(ids or [])} | ({} if ids is None else {"id": pd.Series(ids, dtype="string")})
    )
    assert (samples.without_truth(table) is not None) == skipped
