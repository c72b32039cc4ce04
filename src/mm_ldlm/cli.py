"""Command `kedro run` of the project: it prints expected errors as messages, and node names may omit the namespace."""

import copy
import logging
import re
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.io import DatasetError
from kedro.pipeline import Pipeline

from mm_ldlm.app.config_loader import MOST_BYTES, merge, parse_yaml
from mm_ldlm.app.console import messages_only
from mm_ldlm.app.hooks import ProjectHooks
from mm_ldlm.app.params_option import EXAMPLE, nested, parse_params
from mm_ldlm.core import (
    ConfigurationError,
    MMLDLMError,
    StoreError,
    mask,
    nearest,
    override,
    purposeful,
    reason_of,
    show,
)
from mm_ldlm.core.files import InputFile, write_problem

log = logging.getLogger(__name__)

NODE_OPTIONS = ("node_names", "from_nodes", "to_nodes")
"""Options of `kedro run` that take names of nodes."""
RUNNERS = ("SequentialRunner", "ParallelRunner", "ThreadRunner")
"""Kedro's runners; the hook refuses all but the first with the reason."""
TERMINATED, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT
"""Exit codes of a run that SIGTERM or Ctrl-C ended."""
CONTINUES = "finished stores and checkpoints are kept, and the same command continues"
ENDED = "expected the run to reach its end, found that a component called sys.exit before. Let it raise an error."
PLACES = ("data", "results", "run")
"""Parameters that name folders, which the commands of a message need as well"""
HELP = {
    "env": "Environment: a folder of conf/, or several joined by +, of which later ones override earlier ones. "
    "Defaults to local. Example: --env=tatoeba+mdlm",
    "runner": "SequentialRunner, the default; other runners are refused.",
    "node_names": "Run only these nodes. A name may omit its pipeline: run_training or training.run_training.",
    "from_nodes": "Run from these nodes onwards. Names may omit their pipeline.",
    "to_nodes": "Run up to these nodes. Names may omit their pipeline.",
    "params": "Parameters that override the environment's: KEY=VALUE, separated by commas, with dots in the keys. "
    f"Write a list in brackets and a text with a comma in quotes. Example: {EXAMPLE}",
    "config": "YAML file with the options of this command under `run:`, in which `params:` is a mapping. "
    "Options of the command line override the file's, and --params overrides its parameters one by one.",
}
"""Help of the options that differ from Kedro's."""
EXAMPLES = """\b
Examples:
  kedro run --env=test                               everything, from text to report, in about a minute
  kedro run --env=tatoeba+mdlm                       other data and another model
  kedro run --pipelines=training,sampling            two pipelines, on the artifacts that exist
  kedro run --params training.max_steps=2000         another value of a parameter
  kedro run --env=own_text --params ingestion.path=texts.txt     your own texts, one per line
  kedro run --pipelines=sampling --params run=FOLDER     another run
\b
Environments: docs/configuration.md. Pipelines: `kedro registry list`.
"""
"""End of the help of `kedro run`"""


@click.group()
def cli() -> None:
    """Commands of this project, which replace Kedro's commands of the same name."""


def run(**options: Any) -> Any:
    """Run pipelines with the options of Kedro's `run`; of an error of this project, print only the message."""
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
        sys.exit(ended.code or f"Error: {ENDED}")
    except KeyboardInterrupt:
        log.warning("interrupted; %s", CONTINUES)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if (known := purposeful(error) or unwritable(error) or unreadable(error)) is None:
            raise
        log.debug("traceback of the error", exc_info=True)
        message = mask(str(known))
        given = [f"--env={options['env']}"] if options.get("env") else []
        given += [override(key, value) for key, value in (options.get("params") or {}).items() if key in PLACES]
        if given:  # the commands that a message suggests then act on the artifacts of this run
            again = " ".join(["kedro run", *given])
            message = re.sub(r"kedro run(?! [^`\n]*--env)(?=`| --)", lambda _: again, message)
        raise click.ClickException(message) from None


def check_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the names in `options` and replace node names by full names.

    Raises:
        ConfigurationError: a pipeline, node, dataset, tag or runner of the command line does not exist, or several
            pipelines have a node of that name.
    """
    from kedro.framework.project import pipelines

    _refuse_unknown(options.get("runner") or RUNNERS[0], RUNNERS, "runner of Kedro")
    chosen = options.get("pipelines") or ["__default__"]
    for name in chosen:
        _refuse_unknown(name, list(pipelines), "pipeline")
    within, graph = ", ".join(chosen), sum((pipelines[name] for name in chosen), Pipeline([]))
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
    meant = [node for node in nodes if name in (node, node.rpartition(".")[2])]
    if len(meant) > 1:
        raise ConfigurationError(
            f"'{name}' names {len(meant)} nodes of {within}: {', '.join(meant)}. Write the full name of one of them."
        )
    if not meant:
        _refuse_unknown(name, [*nodes, *(node.rpartition(".")[2] for node in nodes)], f"node of {within}")
    return meant[0]


def _refuse_unknown(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        raise ConfigurationError(
            f"{show(name, 80)} is not a {what}.{nearest(name, known)} Choose one of: {', '.join(known)}."
        )


def unwritable(error: BaseException) -> MMLDLMError | None:
    """Make the error for a full disk or a folder that cannot be written to; None if `error` has another cause."""
    if isinstance(error, OSError) and (reason := write_problem(error)) is not None:
        return StoreError(reason)
    cause = error.__cause__ or error.__context__
    return None if cause is None else unwritable(cause)


def unreadable(error: BaseException) -> MMLDLMError | None:
    """Make the error for an artifact of the catalog that is damaged.

    Returns:
        The error with its remedy, or None if no dataset was being loaded.
    """
    from kedro.framework.project import pipelines, settings

    dataset = next((hooks.loading for hooks in settings.HOOKS if isinstance(hooks, ProjectHooks)), None)
    if dataset is None or not isinstance(error, DatasetError):
        return None
    writers = [name for name, made in pipelines.items() if name != "__default__" and dataset in made.all_outputs()]
    commands = " or ".join(f"`kedro run --pipeline={name}`" for name in writers)
    remedy = f"Run the pipeline that writes it again: {commands}" if commands else "Remove it: every run writes it"
    return StoreError(f"'{dataset}' cannot be read ({reason_of(error.__cause__ or error)}). {remedy}.")


# --- options ----------------------------------------------------------------------------------------------------------


def read_params(context: click.Context, _: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
    """Parse every `--params`, over the parameters of the file of `--config`; a later one overrides an earlier one."""
    with messages_only():
        return merge(context.meta.get("params", {}), parse_params(",".join(values)))


def read_config(context: click.Context, _: click.Parameter, file: str | None) -> str | None:
    """Read the file of `--config`, whose section `run` has defaults for the options of the command."""
    if file is not None:
        with messages_only():
            options = _options_in(file)
            context.meta["params"] = options.pop("params", {})
            context.default_map = options
    return file


def _options_in(file: str) -> dict[str, Any]:
    """Return the options in a file of `--config`.

    Raises:
        ConfigurationError: the file is not YAML, has no section `run` or others, or an option is unknown or cannot be
            read.
    """
    remedy = "Write for example: run: {env: test, params: {training: {max_steps: 100}}}."
    door = InputFile(Path(file), remedy=remedy, error=ConfigurationError)
    given = parse_yaml(door.read(most=MOST_BYTES), file=file)
    section = given.get("run") if isinstance(given, dict) and len(given) == 1 else None
    if not isinstance(section, dict):
        door.refuse("a mapping whose only key is 'run', with the options of `kedro run`", show(given))
    known = [str(each.name) for each in kedro_run.params if each.name != "config"]
    options = {}
    for name, value in section.items():
        _refuse_unknown(str(name), known, f"key of 'run' in {file}")
        if name == "params":
            value = nested(value) if isinstance(value, Mapping) else parse_params(str(value or ""))
        options[name] = ",".join(map(str, value)) if isinstance(value, list) else value
    return options


def _adapted(parameter: click.Parameter) -> click.Parameter:
    changed = copy.copy(parameter)
    if isinstance(changed, click.Option):
        changed.help = HELP.get(str(changed.name), changed.help)
    changed.callback = {"params": read_params, "config": read_config}.get(str(changed.name), changed.callback)
    if changed.name == "config":
        changed.is_eager = True  # the other options fall back to it
        changed.type = click.Path()  # `InputFile` refuses a path without a file
    if changed.name == "params":  # messages propose to add one
        changed.multiple, changed.default = True, ()
    return changed


cli.add_command(
    click.Command(
        "run", params=[_adapted(each) for each in kedro_run.params], callback=run, help=kedro_run.help,
        epilog=EXAMPLES,
    )
)  # fmt: skip
