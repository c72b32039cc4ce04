"""Runs that are refused before their first node, by what they consist of and where they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mm_ldlm.app.hooks.names import PIPELINES, TIMINGS, TRAINING_SPEC
from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.core.messages import show

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

_LISTS = frozenset({"comparison_outcomes", "sanity_report"})
"""JSON artifacts that are lists; all others are mappings."""
_ON_HOSTS = {"embedding", "training"}
"""Pipelines that several hosts run together."""


def trains(pipeline: Pipeline) -> bool:
    """Return whether this machine trains, so that it needs the devices and the memory."""
    return launches(pipeline) or any("sanity" in node.tags for node in pipeline.nodes)


def launches(pipeline: Pipeline) -> bool:
    """Return whether the run starts the ranks of a training on this host."""
    return any(TRAINING_SPEC in node.inputs for node in pipeline.nodes)


def refuse_beyond_samples(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Refuse pipelines that write data or train if a finished run is chosen by its path (`run`).

    A `run` in an environment is refused too, because the paths of the catalog depend on the command line only.
    """
    described: Any = catalog.get("run")
    if described._describe()["chosen"] is None:
        raise ConfigurationError(
            "parameter 'run': expected it on the command line (`--params run=PATH`), found it in an environment. "
            "Remove it from the files of parameters."
        )
    uses = {"sampling", "evaluation", "reporting"}
    if others := sorted({name for node in pipeline.nodes for name in node.tags & PIPELINES} - uses):
        raise ConfigurationError(
            f"parameter 'run': expected only pipelines that use a finished run, found {', '.join(others)}. Add "
            "`--pipelines=sampling,evaluation,reporting`, or leave `run` out."
        )


def later_than_test(layers: Sequence[str]) -> str:
    """Explain where `test` belongs, if a layer after it, other than `local`, may override it; else an empty text."""
    if "test" not in layers or not {*layers[layers.index("test") + 1 :]} - {"local"}:
        return ""
    above = ["local"] if layers[-1] == "local" else []
    order = [*(name for name in layers if name not in ("test", *above)), "test", *above]
    return f"\nThe environment 'test' shrinks only the layers before it: use --env={'+'.join(order)}."


def refuse_concurrent(runner: Any) -> None:
    """Refuse the runners that run nodes at the same time (docs/decisions/0125)."""
    if found := [name for name in ("ThreadRunner", "ParallelRunner") if name in str(runner)]:
        raise ConfigurationError(
            f"expected the runner SequentialRunner, found {found[0]}: the nodes use all cores themselves, share one "
            "model, and import libraries when they start. Leave --runner out; training.launch.processes and "
            "embedding.processes set the number of processes."
        )


def refuse_on_other_hosts(pipeline: Pipeline) -> None:
    """Refuse pipelines that run on one host, where this one is not the first of several (docs/decisions/0167)."""
    from mm_ldlm.distributed.environment import hosts

    found = hosts()
    if found.is_first:
        return
    if others := sorted({name for node in pipeline.nodes for name in node.tags & PIPELINES} - _ON_HOSTS):
        raise ConfigurationError(
            f"expected only embedding and training on host {found.node_rank} of {found.nodes or 'several'}, found "
            f"{', '.join(others)}. Run the others on one host, before or after: `NNODES=1 kedro run --pipelines=…`; "
            "ingestion also runs on a Ray cluster (docs/ray.md)."
        )


def refuse_other_json(name: str, data: Any, entry: Any) -> None:
    """Refuse a JSON artifact of another form than the project writes, which was edited or replaced by hand.

    Args:
        name: of the catalog entry `entry`, from which `data` was loaded.

    Raises:
        StoreError: it is no mapping (or no list), or the seconds of the pipelines are no numbers.
    """
    from kedro_datasets.json import JSONDataset

    if not isinstance(entry, JSONDataset):
        return
    expected, kind = ("a list", list) if name in _LISTS else ("a mapping", dict)
    if isinstance(data, kind):
        if name != TIMINGS or all(type(value) in (int, float) for value in dict(data).values()):
            return
        expected = "seconds by pipeline"
    raise StoreError(
        f"'{name}' ({entry._describe()['filepath']}): expected {expected}, found {show(data, 200)}. Remove the file, "
        "and run the pipeline that writes it again."
    )
