from __future__ import annotations

from typing import Any

import pytest
from kedro.pipeline import Pipeline
from mm_ldlm.app.hooks.unread import unread

from mm_ldlm.pipeline_registry import register_pipelines

PIPELINES = register_pipelines()


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (["training"], {"normaliser.kind": "standard"}, "'normaliser' is read only by validation"),
        (["training"], {"token_clusters": {"count": 8}}, "'token_clusters' is read only by validation"),
        (["validation", "training"], {"normaliser": {"kind": "standard"}}, None),
        (["training"], {"training.max_steps": 3, "seed": 1}, None),
        (["training"], {"training.max_steps": 3, "sampling.steps": 1}, "'sampling' is read only by sampling"),
        (["reporting"], {"training.max_steps": 3}, "'training' is read only by training, sanity"),
        (["training"], {"tracking.enabled": False, "data": "data/other", "run_name": "a"}, None),
        (["comparison"], {"training.max_steps": 3}, None),
        (["__default__"], {"normaliser.kind": "standard", "sampling": {}, "evaluation": {}}, None),
        (["training"], {}, None),
    ],
)
def test_parameters_that_no_pipeline_of_the_run_reads_are_named_with_their_pipelines(
    names: list[str], given: dict[str, Any], expected: str | None
) -> None:
    found = unread(given, sum((PIPELINES[name] for name in names), Pipeline([])), PIPELINES)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert expected in found


def test_of_several_only_those_without_effect_are_named() -> None:
    found = unread({"normaliser.kind": "a", "training.lr": 1, "validation.x": 1}, PIPELINES["training"], PIPELINES)
    assert found is not None
    assert found == (
        "some parameters of the command line have no effect in this run: 'normaliser' is read only by validation; "
        "'validation' is read only by validation. Run a pipeline that reads them as well, or leave them out."
    )
