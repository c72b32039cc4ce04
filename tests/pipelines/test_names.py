"""The graph by names: each dataset arrives at the argument named after it, and each output has its own place."""

from __future__ import annotations

import importlib
import inspect

from kedro.pipeline.node import Node

from mm_ldlm.pipeline_registry import ALONE
from mm_ldlm.pipelines import MAIN
from mm_ldlm.pipelines.reporting.nodes import DATA_PLOTS

METRICS = ("inversion", "sts", "likelihood", "latents", "generation", "classification", "images")
ARGUMENTS = {
    **{f"metrics_{suite}": {suite} for suite in METRICS},
    "tokenizer_files": {"tokenizer", "files"},
    "sampling_model": {"model"},
    "evaluation_model": {"model"},
    "training_spec": {"spec"},
    "tracking_reference": {"tracking"},
    "preparation_report": {"preparation"},
    "validation_report": {"report", "validation_report"},
    "quarantine_validation": {"quarantine"},
    "quarantine_ingestion_workspace": {"quarantine_workspace"},
    "quarantine_validation_workspace": {"quarantine_workspace"},
    "comparison_plan": {"plan"},
    "comparison_runs": {"folder"},
    "comparison_outcomes": {"outcomes"},
    "comparison_results": {"results"},
    "comparison_report": {"report"},
    "sanity_report": {"report"},
}
"""Datasets whose argument has another name."""
OUTPUTS = {
    "prepare_records": ["records", "quarantine_ingestion", "vectors", "preparation_report"],
    "make_tokenizer": ["tokenizer_files"],
    "make_tokens": ["tokens"],
    "report_ingestion": ["ingestion_report"],
    "embed_records": ["latents"],
    "embed_vocabulary": ["token_vectors"],
    "embed_tokens": ["token_states"],
    "store_images": ["images"],
    "index_valid_examples": ["index"],
    "fit_normaliser": ["normaliser"],
    "fit_state_normaliser": ["state_normaliser"],
    "fit_image_normaliser": ["image_normaliser"],
    "cluster_vocabulary": ["token_clusters"],
    "commit_dataset": ["dataset"],
    "plan_training": ["training_spec"],
    "run_training": ["run"],
    "edit_texts": ["samples_infill", "samples_edit", "samples_interpolate"],
    "sample_images": ["samples_caption_to_image", "samples_image_to_caption", "samples_image_text"],
    "evaluate_inversion": ["inversion_rows", "metrics_inversion"],
    "evaluate_likelihood": ["likelihood_rows", "metrics_likelihood"],
    "collect_metrics": ["metrics"],
    "compare_runs": ["comparison"],
    "run_members": ["comparison_outcomes"],
    "collect_results": ["comparison_results", "comparison_table"],
    "judge_members": [],
    "judge_configuration": [],
}  # fmt: skip
"""Outputs of a node in the order in which its function returns them; other outputs have the name of the node."""
FOLDERS = {"quarantine_ingestion_workspace", "quarantine_validation_workspace"}


def nodes() -> list[Node]:
    pipelines = [importlib.import_module(f"mm_ldlm.pipelines.{name}.pipeline") for name in (*MAIN, *ALONE)]
    return [node for pipeline in pipelines for node in pipeline.create_pipeline().nodes]


def test_each_dataset_arrives_at_its_own_argument() -> None:
    for node in nodes():
        takes = list(inspect.signature(node.func).parameters)
        if takes[-1] == "data_plots":
            assert node.inputs[len(takes) - 1 :] == list(DATA_PLOTS)
        for dataset, argument in zip(node.inputs, takes, strict=False):
            name = dataset.removeprefix("params:")
            if argument != "data_plots":
                assert argument in ARGUMENTS.get(name, {name}), f"{node.name}: {dataset} arrives at '{argument}'"
        if folder := FOLDERS & set(node.inputs):
            assert folder == {f"quarantine_{node.namespace}_workspace"}, node.name


def test_each_output_has_its_own_place() -> None:
    for node in nodes():
        namespace, task = str(node.namespace), node.short_name.split("_", 1)[1]
        if isinstance(node._outputs, dict):
            for key, name in node._outputs.items():
                assert name in {key, f"plot_{key}", f"{key}_{namespace}", f"{namespace}_{key}"}, f"{node.name}: {key}"
            continue
        own = {"sampling": f"samples_{task}", "evaluation": f"metrics_{task}"}.get(namespace)
        own = f"{namespace}_model" if node.short_name == "load_model" else own
        if node.short_name in OUTPUTS or own is not None:
            assert node.outputs == OUTPUTS.get(node.short_name, [own]), node.name
        else:
            assert namespace in ("sanity", "export"), f"{node.name}: a new node has a line in OUTPUTS"
