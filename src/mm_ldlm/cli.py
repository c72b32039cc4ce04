"""`kedro run` with readable ends: an error raised on purpose is printed as its message, not as a traceback."""

from __future__ import annotations

import difflib
import json
import logging
import signal
import sys
from collections.abc import Collection
from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.io import DatasetError

from mm_ldlm.errors import ConfigurationError, MMLDLMError, StoreError

log = logging.getLogger(__name__)


@click.group()
def cli() -> None:
    """Commands of this project that replace Kedro's own."""


def run(**options: Any) -> Any:
    """Run the pipeline."""
    # Kedro is giving up `--pipeline` for `--pipelines`; both stay good here, without a warning on every run.
    if options.get("pipeline") and not options.get("pipelines"):
        options["pipelines"], options["pipeline"] = [options["pipeline"]], None
    # `kill` ends as Ctrl-C does: the launcher stops its workers, the MLflow run is closed as KILLED.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    assert kedro_run.callback is not None
    try:
        refuse_unknown_names(options)
        return kedro_run.callback(**options)
    except Exception as error:
        if (known := purposeful(error) or unreadable(error)) is None:
            raise
        log.debug("where it was raised", exc_info=True)
        raise click.ClickException(str(known)) from None


def refuse_unknown_names(options: dict[str, Any]) -> None:
    """Raise ConfigurationError for a pipeline, node, dataset or tag of the command line that there is not."""
    from kedro.framework.project import pipelines

    if not pipelines:  # no project is configured
        return
    chosen = options.get("pipelines") or ["__default__"]
    for name in chosen:
        _refuse_unknown(name, list(pipelines), "pipeline")
    nodes = [node for pipeline in chosen for node in pipelines[pipeline].nodes]
    names, tags = [node.name for node in nodes], sorted({tag for node in nodes for tag in node.tags})
    data = sorted({name for node in nodes for name in (*node.inputs, *node.outputs)})
    for keys, what, known in (
        (("node_names", "from_nodes", "to_nodes"), "node", names),
        (("from_inputs", "to_outputs"), "dataset", data),
        (("tags",), "tag", tags),
    ):
        for name in (name for key in keys for name in options.get(key) or ()):
            _refuse_unknown(name, known, f"{what} of {', '.join(chosen)}")


def _refuse_unknown(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ConfigurationError(f"'{name}' is no {what}.{hint} There are: {', '.join(known)}.")


def purposeful(error: BaseException) -> MMLDLMError | None:
    """The error raised on purpose at or below `error`, which Kedro may have wrapped; None when it is a defect."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, MMLDLMError):
            return link
        link = link.__cause__
    return None


def unreadable(error: BaseException) -> StoreError | None:
    """What to do about a plain artifact (JSON, table) of the catalog that is missing or damaged; None for all else."""
    if not isinstance(error, DatasetError):
        return None
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    if not isinstance(first, (FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError)):
        return None
    from kedro.framework.project import pipelines

    name = str(error).partition(":")[0]
    makers = [made for made, pipeline in pipelines.items() if made != "__default__" and name in pipeline.all_outputs()]
    what = "is not there yet" if isinstance(first, FileNotFoundError) else f"cannot be read ({first})"
    place = f" ({first.filename})" if isinstance(first, FileNotFoundError) else ""
    return StoreError(f"'{name}'{place} {what}: run the pipeline that writes it first ({' or '.join(makers)}).")


cli.add_command(click.Command("run", params=kedro_run.params, callback=run, help=kedro_run.help))
