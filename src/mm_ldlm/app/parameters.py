"""Check all parameters: parse each section to its type, and compare the sections with one another.

The check runs before the first node, so that a long run does not fail at a misspelt key of its last pipeline. A
configuration may have `input_files()`, which yields (key, path) of files that have to exist, `missing()`, which
explains what this machine lacks, and `device`.
"""

import dataclasses
import functools
import glob
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.core import (
    ConfigurationError,
    Kinds,
    MMLDLMError,
    Registry,
    Seed,
    check,
    config,
    foreign_code,
    nearest,
    parse,
    parse_kind,
    path_of,
    reason_of,
    refuse_unwritable,
    show,
    summarise,
)
from mm_ldlm.core.files import problem
from mm_ldlm.training.checkpoints.reference import CHOSEN, chosen_run, config_of, split_path

SECTIONS = Registry(
    "section",
    {
        "ingestion": "mm_ldlm.data.corpus.config:IngestionConfig",
        "tokenizer": "mm_ldlm.data.corpus.tokenizer:TokenizerConfig",
        "encoder": "mm_ldlm.data.encoders:ENCODERS",
        "embedding": "mm_ldlm.data.latents.config:ExtractConfig",
        "validation": "mm_ldlm.data.validation.findings:ValidationConfig",
        "normaliser": "mm_ldlm.data.latents.normaliser:NormaliserConfig",
        "model": "mm_ldlm.models.base:MODELS",
        "objective": "mm_ldlm.objectives.base:OBJECTIVES",
        "training": "mm_ldlm.training.config:TrainingConfig",
        "sampling": "mm_ldlm.pipelines.sampling.config:SamplingConfig",
        "evaluation": "mm_ldlm.evaluation.config:EvaluationConfig",
        "reporting": "mm_ldlm.evaluation.config:ReportingConfig",
    },
    group="sections",
)
"""Top-level key → the configuration that its mapping becomes, or the kinds that its key `kind` chooses from.

A section may be absent where all its keys have defaults in code; the sections of families and extras may.
"""
KEYS = Registry("keys of a section", {}, group="keys")
"""SECTION.NAME → a configuration of further keys of a section of the core, which an extra reads"""
SCALARS = {"seed": Seed} | dict.fromkeys(("data", "results", "run", "sts", "texts"), str | None)
"""Top-level keys that are plain values. `data` (root of the data folder), `results` (the folder of everything that
depends on the model), `run` (the path of a run or a checkpoint to sample), `sts` and `texts` (the folders of the files
of the environments sts and sentences) are given at run time only."""
LIGHT = ("mm_ldlm.data.", "mm_ldlm.training.")
"""Rooms whose sections are checked first. Mistakes in them are refused before the configurations of other sections
import torch, which takes as long as everything else."""
CHECKS = Registry(
    "check of parameters",
    {
        "tasks": "mm_ldlm.pipelines.sampling.tasks:problems",
        "sweep": "mm_ldlm.evaluation.config:problems",
        "features": "mm_ldlm.pipelines.embedding:problems",
    },
    group="checks",
)
"""Functions that list contradictions between sections: from the typed sections by name to refusals."""


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parse every section; return typed values by top-level key. With `run`, model and objective come from the run.

    Raises:
        CheckpointError: `run` is not the path of a run or of one of its checkpoints.
        ConfigurationError: keys are unknown, missing or invalid; the message lists each by its full path, one per line,
            and from the third on by the path only.
    """
    refuse_unwritable(parameters, at="")
    known = [*SECTIONS, *SCALARS]
    problems = [
        f"parameter '{key}' is not known.{nearest(key, known)} Valid keys: {', '.join(known)}."
        for key in parameters
        if key not in known
    ]
    typed: dict[str, Any] = {}
    light = {*SCALARS, *(key for key, path in SECTIONS.known.items() if path.startswith(LIGHT))}
    for keys in ([key for key in known if key in light], [key for key in known if key not in light]):
        for key in keys:
            try:
                if key in SCALARS:
                    name = f"parameter '{key}'"
                    typed[key] = check(parameters.get(key), SCALARS[key], name=name, error=ConfigurationError)
                else:
                    section = section_of(key)
                    parser = parse_kind if isinstance(section, Kinds) else parse
                    typed[key] = parser(section, parameters.get(key, {}), at=key)
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError(summarise(problems))
    if parameters.get("run") is not None:
        typed |= _of_run(parameters["run"], typed)
    if contradictions := _contradictions(typed):
        raise ConfigurationError(summarise(contradictions))
    return typed


@functools.cache
def section_of(name: str) -> Any:
    """Load the configuration of a section, with the keys that extras add to it."""
    found, added = SECTIONS.load(name), [KEYS.load(each) for each in KEYS if each.partition(".")[0] == name]
    return config(type(found.__name__, (*added, found), {})) if added else found


def _of_run(path: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model and the objective of a run that is chosen by its path, in place of the configured ones.

    Raises:
        CheckpointError: there is no such run.
        ConfigurationError: the path names a checkpoint, and a section another one; or its config.json is not readable.
    """
    chosen = chosen_run(path)[CHOSEN]
    found = {key: getattr(section, "checkpoint", None) for key, section in typed.items()}
    named = [key for key, name in found.items() if isinstance(name, str) and name != "latest"]
    if chosen is not None and named:
        raise ConfigurationError(
            f"parameter '{named[0]}.checkpoint': expected latest, because 'run' names the checkpoint {chosen}, found "
            f"{show(found[named[0]])}. Leave it out, or give the folder of the run as 'run'."
        )
    config = config_of(split_path(path)[0])
    return {
        key: parse_kind(SECTIONS.load(key), config[key], at=f"{key} (of the run {path})")
        for key in ("model", "objective")
    }


def _contradictions(typed: Mapping[str, Any]) -> list[str]:
    """List contradictions between sections; a model that the objective cannot train is the only one listed.

    Model, objective and samplers may come from another package, which can raise anything.
    """
    try:
        typed["objective"].capabilities(typed["model"])
        return [problem for name in CHECKS for problem in CHECKS.load(name)(typed)]
    except MMLDLMError as error:
        return [str(error)]
    except Exception as error:
        kinds = f"model {typed['model'].kind} and objective {typed['objective'].kind}"
        return [f"{kinds} cannot be checked ({reason_of(error)}). Correct the class that raises this error."]


def check_machine(typed: Mapping[str, Any], *, read: Collection[str], unused: Collection[str] = ()) -> None:
    """Check that this machine has the files, packages and devices that the sections of a run name.

    Args:
        read: the sections that the run reads.
        unused: sections whose devices and encoders the run does not use here.

    Raises:
        ConfigurationError: something is missing; the message lists each with its parameter.
    """
    problems = [
        line
        for name in typed
        if name in read
        for at, each in _configurations(typed[name], name)
        for line in _problems(at, each, used=name not in unused)
    ]
    if problems:
        raise ConfigurationError(summarise(problems))


def _configurations(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Yield every configuration in a section, at any depth, with its path."""
    inner: dict[Any, Any] = {}
    if dataclasses.is_dataclass(value):
        yield at, value
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        inner = dict(value)
    elif isinstance(value, tuple):
        inner = dict(enumerate(value))
    for key, item in inner.items():
        yield from _configurations(item, path_of(at, key))


def _problems(at: str, each: Any, *, used: bool) -> list[str]:
    """List what this machine lacks for a configuration, whose class may come from another package."""
    with foreign_code(lambda reason: ConfigurationError(
        f"parameter '{at}': its files and devices cannot be checked ({reason}). Correct the class of its kind."
    )):  # fmt: skip
        absent = [*_absent_files(at, each)]
        return absent or [*(_lacking(at, each) if used else ())]


def _absent_files(at: str, each: Any) -> Iterator[str]:
    for key, path in each.input_files() if hasattr(each, "input_files") else ():
        fault = problem(path)
        if fault in (None, "is a folder") or (glob.has_magic(path) and any(glob.iglob(path, recursive=True))):
            continue
        yield (
            f"parameter '{at}.{key}': {show(path)} {fault} (relative to {Path.cwd()}). Correct it or put the file "
            "there."
        )


def _lacking(at: str, each: Any) -> Iterator[str]:
    if hasattr(each, "missing") and (lacking := each.missing()) is not None:
        yield lacking if lacking.startswith("parameter") else f"parameter '{at}': {lacking}"
    device = getattr(each, "device", None)
    if isinstance(device, str) and device.startswith("cuda"):
        import torch

        gpus = torch.cuda.device_count()
        if int(device.partition(":")[2] or 0) >= gpus:
            yield f"parameter '{at}.device': {device} is not on this machine, which has {gpus} GPUs. Set it to cpu."
