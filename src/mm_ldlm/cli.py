"""Command `kedro run` of the project: it prints expected errors as messages, and node names may omit the namespace."""

from __future__ import annotations

import copy
import logging
import re
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.io import DatasetError
from kedro.pipeline import Pipeline
from kedro.utils import load_obj

from mm_ldlm.app.config_loader import merge, parse_yaml
from mm_ldlm.app.console import messages_only
from mm_ldlm.app.hooks import ProjectHooks
from mm_ldlm.core.credentials import mask
from mm_ldlm.core.errors import ConfigurationError, StoreError, purposeful
from mm_ldlm.core.files import InputFile, write_problem
from mm_ldlm.core.messages import nearest, shorten, show
from mm_ldlm.core.overrides import nested, parse_params

log = logging.getLogger(__name__)

NODE_OPTIONS = ("node_names", "from_nodes", "to_nodes")
"""Options of `kedro run` that take names of nodes."""
RUNNER = "SequentialRunner"
"""The only runner of Kedro that this project works with"""
PLACES = ("data", "results", "run")
"""Parameters that choose the artifacts of a run."""
TERMINATED, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT
"""Exit codes of a run that SIGTERM or Ctrl-C ended."""
CONTINUES = "finished stores and checkpoints are kept, and the same command continues"
HELP = {
    "env": "Environment: a folder of conf/, or several joined by +, each of which overrides those before it. "
    "Defaults to local. Example: --env=tatoeba+mdlm",
    "node_names": "Run only these nodes. A name may omit its pipeline: run_training or training.run_training.",
    "from_nodes": "Run from these nodes onwards. Names may omit their pipeline.",
    "to_nodes": "Run up to these nodes. Names may omit their pipeline.",
    "params": "Parameters that override those of the environment: KEY=VALUE, separated by commas, dots in the keys. "
    "Write a list in brackets and a text with a comma in quotes. "
    "Example: --params 'training.max_steps=2000,sampling.l2t.files=[a.npy,b.npy]'",
    "config": "YAML file with the options of this command under `run:`, in which `params:` is a mapping. "
    "Options of the command line override those of the file, and --params overrides its parameters one by one.",
}
"""Help of the options that differ from Kedro's."""


@click.group()
def cli() -> None:
    """Commands of this project, which replace Kedro's commands of the same name."""


def run(**options: Any) -> Any:
    """Run pipelines with the options of Kedro's `run`; print only the message of an error raised on purpose."""
    # Kedro deprecates `--pipeline` in favour of `--pipelines`; here both work, without a warning on every run.
    if options.get("pipeline") and not options.get("pipelines"):
        options["pipelines"], options["pipeline"] = [options["pipeline"]], None
    # SIGTERM ends the run like Ctrl-C: the launcher stops its workers, and the MLflow run is closed as KILLED.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    assert kedro_run.callback is not None
    try:
        return kedro_run.callback(**check_names(options))
    except SystemExit as ended:
        if ended.code == TERMINATED:
            log.warning("ended by SIGTERM; %s", CONTINUES)
        raise
    except KeyboardInterrupt:
        log.warning("interrupted; %s", CONTINUES)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if (known := purposeful(error) or unreadable(error, _dataset_being_loaded()) or unwritable(error)) is None:
            raise
        log.debug("traceback of the error", exc_info=True)
        raise click.ClickException(mask(on_the_same_artifacts(str(known), options))) from None


def on_the_same_artifacts(message: str, options: Mapping[str, Any]) -> str:
    """Add `--env`, and `data`, `results` and `run` of `--params`, to the commands that a message suggests.

    The commands then act on the artifacts of this run. `run` is added only where it is accepted.
    """
    if (environment := options.get("env")) is not None:
        message = re.sub(r"kedro run(?! [^`\n]*--env\b)(?=`| --)", f"kedro run --env={environment}", message)
    params = options.get("params")
    places = {name: str(params[name]) for name in PLACES if params.get(name)} if isinstance(params, Mapping) else {}
    return re.sub(r"(?<=`)kedro run(?: [^`\n]*)?(?=`)", lambda command: _with_places(command[0], places), message)


def _with_places(command: str, places: Mapping[str, str]) -> str:
    """Add the parameters `places` to a suggested command, except those that it has or that need quotes."""
    found = re.search(r"--pipelines?=([\w,]+)", command)
    reads = found is not None and set(found[1].split(",")) <= {"sampling", "evaluation", "reporting"}
    added = [
        f"{name}={value}"
        for name, value in places.items()
        if re.fullmatch(r"[\w./+-]+", value) and f"{name}=" not in command and (reads or name != "run")
    ]
    if not added:
        return command
    if "--params" in command:
        return re.sub(r"(--params[ =]['\"]?)", rf"\g<1>{','.join(added)},", command, count=1)
    return f"{command} --params {','.join(added)}"


def check_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the names in `options` and replace node names by full names.

    Raises:
        ConfigurationError: a pipeline, node, dataset or tag of the command line does not exist, or several pipelines
            have a node of that name.
    """
    from kedro.framework.project import pipelines

    if not pipelines:  # no project is configured
        return dict(options)
    chosen = options.get("pipelines") or ["__default__"]
    for name in chosen:
        _refuse_unknown(name, list(pipelines), "pipeline")
    _refuse_unknown_runner(options.get("runner"))
    within = ", ".join(chosen)
    graph = sum((pipelines[name] for name in chosen), Pipeline([]))
    for option in ("from_inputs", "to_outputs"):
        for name in options.get(option) or ():
            _refuse_unknown(name, sorted(graph.datasets()), f"dataset of {within}")
    for name in options.get("tags") or ():
        _refuse_unknown(name, sorted({tag for node in graph.nodes for tag in node.tags}), f"tag of {within}")
    nodes = [node.name for node in graph.nodes]
    full = {
        option: [full_node_name(name, nodes, within=within) for name in options.get(option) or ()]
        for option in NODE_OPTIONS
    }
    return {**options, **{option: names for option, names in full.items() if names}}


def full_node_name(name: str, nodes: Collection[str], *, within: str) -> str:
    """Return the full name ("training.run_training") of a node whose name may omit the namespace.

    Raises:
        ConfigurationError: there is no such node, or several nodes have this name without a namespace.
    """
    if name in nodes:
        return name
    meant = [node for node in nodes if _without_namespace(node) == name]
    if len(meant) > 1:
        raise ConfigurationError(
            f"'{name}' names {len(meant)} nodes of {within}: {', '.join(meant)}. Write the full name of one of them."
        )
    if not meant:
        _refuse_unknown(name, nodes, f"node of {within}")
    return meant[0]


def _without_namespace(name: str) -> str:
    return name.rpartition(".")[2]


def _refuse_unknown(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        hint = nearest(name, {*known, *map(_without_namespace, known)})
        raise ConfigurationError(f"'{name}' is not a {what}.{hint} Choose one of: {', '.join(known)}.")


def _refuse_unknown_runner(name: str | None) -> None:
    try:
        load_obj(name or RUNNER, "kedro.runner")
    except (AttributeError, ImportError, ValueError):
        raise ConfigurationError(f"--runner: expected {RUNNER}, found {show(name)}. Leave --runner out.") from None


def unreadable(error: BaseException, dataset: str | None) -> StoreError | None:
    """Make the error for an artifact of the catalog that is missing or damaged (JSON, table), or only made in memory.

    Args:
        dataset: the catalog entry that was being loaded when `error` was raised.

    Returns:
        The error with its remedy, or None if `error` has another cause.
    """
    if dataset is None or not isinstance(error, DatasetError):
        return None
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    from kedro.framework.project import pipelines

    if isinstance(first, DatasetError) and "MemoryDataset" in str(first):  # made by a node that does not run
        makers = {node.name for graph in pipelines.values() for node in graph.nodes if dataset in node.outputs}
        return StoreError(
            f"'{dataset}' is kept in memory alone, so the node that makes it has to run too. Add it: "
            f"{' or '.join(f'`--nodes={node},…`' for node in sorted(makers))}."
        )
    import pyarrow as pa

    damaged = isinstance(first, (OSError, EOFError, ValueError, pa.ArrowException))  # JSON, UTF-8, a table, a figure
    if not damaged or (isinstance(first, OSError) and write_problem(first) is not None):
        return None
    writers = [name for name, made in pipelines.items() if name != "__default__" and dataset in made.all_outputs()]
    what = (
        "does not exist yet" if isinstance(first, FileNotFoundError) else f"cannot be read ({shorten(str(first), 300)})"
    )
    place = f" ({first.filename})" if isinstance(first, FileNotFoundError) and first.filename else ""
    commands = " or ".join(f"`kedro run --pipeline={name}`" for name in writers)
    if not commands:
        return StoreError(f"'{dataset}'{place} {what}. Remove the file: every run writes it.")
    return StoreError(f"'{dataset}'{place} {what}. Run the pipeline that writes it first: {commands}.")


def unwritable(error: BaseException) -> StoreError | None:
    """Make the error for a full disk or a folder that cannot be written to; None if `error` has another cause."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and (reason := write_problem(link)) is not None:
            return StoreError(reason)
        link = link.__cause__ or link.__context__
    return None


def _dataset_being_loaded() -> str | None:
    from kedro.framework.project import settings

    return next((hooks.loading for hooks in settings.HOOKS if isinstance(hooks, ProjectHooks)), None)


def read_params(context: click.Context, _: click.Parameter, value: Any) -> dict[str, Any]:
    """Parse `--params`, over the parameters of the file of `--config`."""
    below = (context.default_map or {}).get("params") or {}
    with messages_only():
        return merge(below, value if isinstance(value, Mapping) else parse_params(value or ""))


def read_config(context: click.Context, _: click.Parameter, file: str | None) -> str | None:
    """Read the file of `--config`, whose section `run` has defaults for the options of the command."""
    if file is not None:
        with messages_only():
            context.default_map = {**(context.default_map or {}), **_options_in(Path(file))}
    return file


def _options_in(file: Path) -> dict[str, Any]:
    """Return the options in a file of `--config`.

    Raises:
        ConfigurationError: the file is no YAML, has no section `run` or others, or an option is unknown or cannot be
            read.
    """
    remedy = "Give a YAML file with the options of `kedro run`."
    raw = InputFile(file, remedy=remedy, error=ConfigurationError, name=f"--config: {file}").read()
    given = parse_yaml(raw, file=str(file))
    section = given.get("run") if isinstance(given, Mapping) else None
    if not isinstance(section, Mapping):
        raise ConfigurationError(
            f"{file}: expected a mapping with the key 'run', which has the options of `kedro run`, found "
            f"{show(given)}. " + "Write for example: run: {env: test, params: {training: {max_steps: 100}}}."
        )
    if others := [str(name) for name in given if name != "run"]:
        raise ConfigurationError(
            f"{file}: expected the key 'run' alone, found {show(', '.join(others))} beside it, which nothing reads. "
            "Move it below 'run', or remove it."
        )
    known = [str(each.name) for each in kedro_run.params if each.name != "config"]
    options = {}
    for name, value in section.items():
        _refuse_unknown(str(name), known, f"key of 'run' in {file}")
        if name == "params":
            params = value or {}
            value = nested(params) if isinstance(params, Mapping) else parse_params(str(params), option=str(file))
        elif isinstance(value, list):  # as on the command line
            value = ",".join(map(str, value))
        options[name] = value
    return options


_READ = {"params": read_params, "config": read_config}
"""Options that are read differently than by Kedro."""


def _with_own_help(parameter: click.Parameter) -> click.Parameter:
    changed = copy.copy(parameter)
    if isinstance(changed, click.Option):
        changed.help = HELP.get(str(changed.name), changed.help)
    changed.callback = _READ.get(str(changed.name), changed.callback)
    changed.is_eager = changed.name == "config"  # the other options fall back to it
    return changed


cli.add_command(
    click.Command("run", params=[_with_own_help(each) for each in kedro_run.params], callback=run, help=kedro_run.help)
)
