"""Check of all parameters: each section is parsed to its type, and the sections are compared with one another.

The check runs before the first node, so that a long run does not fail at a misspelt key of its last pipeline.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from mm_ldlm.core.config import parse, parse_kind, refuse_unwritable, to_dict
from mm_ldlm.core.credentials import mask_values
from mm_ldlm.core.errors import CheckpointError, ConfigurationError
from mm_ldlm.core.files import problem
from mm_ldlm.core.kinds import Kinds, Registry
from mm_ldlm.core.messages import escape, nearest, shorten, show, summarise
from mm_ldlm.data.encoders.base import given_dim, no_encoder
from mm_ldlm.data.features import LATENTS, from_encoder
from mm_ldlm.pipelines.sampling.tasks import TASKS, problems, task_of
from mm_ldlm.sampling.lengths import refuse_long
from mm_ldlm.training.checkpoints.reference import CHOSEN, chosen_run, config_of

SECTIONS = Registry(
    "section",
    {
        "tracking": "mm_ldlm.app.tracking.config:TrackingConfig",
        "ingestion": "mm_ldlm.data.corpus.config:IngestionConfig",
        "tokenizer": "mm_ldlm.data.corpus.tokenizer:TokenizerConfig",
        "encoder": "mm_ldlm.data.encoders:ENCODERS",
        "embedding": "mm_ldlm.data.latents.config:ExtractConfig",
        "validation": "mm_ldlm.data.latents.config:ValidationConfig",
        "normaliser": "mm_ldlm.data.latents.normaliser:NormaliserConfig",
        "model": "mm_ldlm.models.registry:MODELS",
        "objective": "mm_ldlm.objectives.registry:OBJECTIVES",
        "training": "mm_ldlm.training.config:TrainingConfig",
        "sanity": "mm_ldlm.training.sanity:SanityConfig",
        "sampling": "mm_ldlm.pipelines.sampling.config:SamplingConfig",
        "evaluation": "mm_ldlm.evaluation.config:EvaluationConfig",
        "reporting": "mm_ldlm.evaluation.config:ReportingConfig",
    },
    group="sections",
)
"""Top-level key → the configuration that its mapping becomes, or the kinds that its key `kind` chooses from.

The sections of families, extras and other packages may be absent from the parameters; their defaults are in code.
"""
SCALARS: dict[str, type] = {"seed": int, "data": str, "results": str, "run": str}
"""Top-level keys that are plain values. `data` (root of the data folder), `results` (the folder of everything that
depends on the model) and `run` (the path of a run or a checkpoint to sample) are given at run time only."""


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parse every section; return typed values by top-level key. With `run`, model and objective are those of the run.

    Raises:
        CheckpointError: `run` is not the path of a run or of one of its checkpoints.
        ConfigurationError: keys are unknown, missing or invalid; the message lists each by its full path, one per line,
            and from the third on by the path alone.
    """
    refuse_unwritable(parameters, at="")
    typed: dict[str, Any] = {}
    problems: list[str] = []
    for key in parameters:
        if key not in SECTIONS and key not in SCALARS:
            known = [*SECTIONS, *SCALARS]
            problems.append(f"parameter '{key}' is not known.{nearest(key, known)} Known here: {', '.join(known)}.")
    for key, kind in SCALARS.items():
        if key in parameters and (not isinstance(parameters[key], kind) or isinstance(parameters[key], bool)):
            problems.append(f"parameter '{key}': expected {kind.__name__}, found {show(parameters[key])}.")
    if "seed" not in parameters:
        problems.append("parameter 'seed' is missing and has no default.")
    elif isinstance(parameters["seed"], int) and not 0 <= parameters["seed"] < 2**63:
        problems.append(
            f"parameter 'seed': expected a number of at least 0 and below 2**63, found {show(parameters['seed'])}."
        )
    for key in SECTIONS:
        if key not in parameters and key in SECTIONS.core:
            problems.append(f"parameter '{key}' is missing: no file under conf/base/parameters sets it.")
            continue
        try:
            section = SECTIONS.load(key)
            parser = parse_kind if isinstance(section, Kinds) else parse
            typed[key] = parser(section, parameters.get(key, {}), at=key)
        except ConfigurationError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError(summarise(problems))
    if "run" in parameters:
        typed |= _of_run(parameters["run"], typed)
    if contradictions := list(cross_checks(typed)):
        raise ConfigurationError(summarise(contradictions))
    return typed


def _of_run(path: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model and the objective of a run that is chosen by its path, in place of those of the parameters.

    Raises:
        CheckpointError: there is no such run.
        ConfigurationError: the path names a checkpoint, and a section another one; or its config.json is not readable.
    """
    chosen = chosen_run(path)[CHOSEN]
    if chosen is not None and (
        named := [key for key in ("sampling", "evaluation") if key in typed and typed[key].checkpoint != "latest"]
    ):
        raise ConfigurationError(
            f"parameter '{named[0]}.checkpoint': expected latest, because 'run' names the checkpoint {chosen}, found "
            f"{show(typed[named[0]].checkpoint)}. Leave it out, or give the folder of the run as 'run'."
        )
    config = config_of(path)
    kinds = {"model": config["model"], "objective": config["objective"]}
    return {key: parse_kind(SECTIONS.load(key), value, at=f"{key} (of the run {path})") for key, value in kinds.items()}


def cross_checks(typed: Mapping[str, Any]) -> list[str]:
    """List contradictions between sections: a model that the objective cannot train, a task or a sampler of the
    sections `sampling` and `evaluation` that does not fit the run.
    """
    if not {"model", "objective", "sampling", "evaluation", "tokenizer"} <= typed.keys():
        return []
    try:
        capabilities = typed["objective"].capabilities(typed["model"])
    except ConfigurationError as error:
        return [str(error)]
    found = _vector_checks(typed)
    found += problems(typed, capabilities)
    sampling, max_length = typed["sampling"], typed["tokenizer"].max_length
    refused: dict[str, str | None] = {}
    if capabilities.refuse_task("l2t", order=sampling.unconditional.order, length=sampling.length) is None:
        for place, point in enumerate(typed["evaluation"].inversion.sweep):
            key = f"evaluation.inversion.sweep.{place}"
            refused[f"{key}.sampler"] = capabilities.refuse_sampler(point.sampler, "l2t", given_latent=True)
            refused[f"{key}.length"] = capabilities.refuse_length(point.length, "l2t", order="") or refuse_long(
                point.length, max_length=max_length, sampler=point.sampler, process=capabilities.process
            )
    return found + [f"parameter '{key}': {reason}" for key, reason in refused.items() if reason is not None]


def _vector_checks(typed: Mapping[str, Any]) -> list[str]:
    """List contradictions between sources with vectors, the encoder, and what needs an encoder."""
    encoder, sources = typed["encoder"], typed["ingestion"].sources
    given = given_dim(encoder) is not None
    found = [
        f"parameter 'ingestion.sources.{place}': expected a source with vectors, because encoder.kind is "
        f"'{encoder.kind}', found none in '{source.label}'. Set its vector_column (a column of a table) or vectors "
        "(the .npy file of a text file), or choose an encoder that embeds texts."
        for place, source in enumerate(sources)
        if given and not source.has_vectors
    ]
    found += [
        f"parameter 'ingestion.sources.{place}': the source '{source.label}' contains vectors, but encoder.kind is "
        f"'{encoder.kind}', which would compute others. Set encoder to {{kind: precomputed, name: …, dim: …, "
        "normalised: …}, or remove the source's vectors."
        for place, source in enumerate(sources)
        if not given and source.has_vectors
    ]
    reason = no_encoder(encoder)
    computed = from_encoder(objective=typed["objective"], model=typed["model"])
    needed = [name for name in computed if name != LATENTS]
    if reason is not None and needed:
        found.append(
            f"parameter 'encoder.for_new_texts': the model or the objective reads {', '.join(needed)}, which "
            f"an encoder computes, but {reason} Otherwise set model.token_vectors to random, or choose another "
            "objective."
        )
    return found


def check_files(typed: Mapping[str, Any], *, read: Collection[str], runs: Path | None = None) -> None:
    """Check that the files and folders named by the sections that the run reads exist, and that its encoder can be
    used.

    Args:
        read: the sections that the run reads.
        runs: folder of the runs, which `training.resume` and `training.init_from` are relative to; None: the run does
            not train.

    Raises:
        ConfigurationError: paths are missing, or what the encoder needs of this machine; the message lists each with
            its parameter.
    """
    missing = [
        f"parameter '{key}': {show(path)} {problem(path)} (looked from {Path.cwd()}).{_nearest_file(path)} "
        f"Correct it or put the file there{_or_another(key, typed)}."
        for key, path in _named_files(typed, read)
        if not _exists(path)
    ]
    if runs is not None:
        missing += _without_checkpoint(typed["training"], typed["model"], runs)
    if "reporting" in read:
        missing += [
            f"parameter 'reporting.compare.{place}': expected a run folder, a folder with a metrics.json, or the id of "
            f"an MLflow run (32 hexadecimal digits), found {show(name)}. Correct it or remove it from the list."
            for place, name in enumerate(typed["reporting"].compare)
            if not _exists(name) and not re.fullmatch(r"[0-9a-f]{32}", name)
        ]
    if "embedding" in read and "encoder" in typed:
        computed = from_encoder(objective=typed["objective"], model=typed["model"])
        lacking = typed["encoder"].missing() if computed else None
        missing += [lacking] if lacking else []
    missing += [
        f"parameter '{section}.engine.kind': {lacking}"
        for section in ("ingestion", "embedding")
        if section in read and section in typed and (lacking := typed[section].engine.missing()) is not None
    ]
    if missing:
        raise ConfigurationError(summarise(missing))


def _named_files(typed: Mapping[str, Any], read: Collection[str]) -> Iterator[tuple[str, str]]:
    """List (parameter, path) of every file or folder of the sections in `read`; a path may be a glob."""
    if "ingestion" in read:
        ingestion = typed["ingestion"]
        for place, source in enumerate(ingestion.with_path_in_source().sources):
            at = "ingestion" if ingestion.path is not None and source.paths else f"ingestion.sources.{place}"
            yield from ((f"{at}.{key}", path) for key, path in source.files)
    if "ingestion" in read and "tokenizer" in typed and typed["tokenizer"].path is not None:
        yield "tokenizer.path", typed["tokenizer"].path
    if "evaluation" in read:
        evaluation = typed["evaluation"]
        for place, source in enumerate(evaluation.sts.sets):
            if source.path and source.format != "hub":
                yield f"evaluation.sts.sets.{place}.path", source.path
        yield from ((f"evaluation.sts.files.{name}", path) for name, path in evaluation.sts.files.items())
        for place, text in enumerate(evaluation.likelihood.other_texts):
            yield f"evaluation.likelihood.other_texts.{place}.path", text.path
    if "sampling" in read:
        for name in TASKS:
            key, files = task_of(name, typed).files
            yield from ((f"{key}.{place}", file) for place, file in enumerate(files))


def _or_another(key: str, typed: Mapping[str, Any]) -> str:
    """Return how the command line gives another file; an empty text for a file that no single parameter replaces."""
    if not re.fullmatch(r"ingestion\.sources\.\d+\.path", key):
        return ""
    named = [source for source in typed["ingestion"].with_path_in_source().sources if source.paths]
    return ", or give another one by `--params ingestion.path=FILE`" if len(named) == 1 else ""


def _exists(path: str) -> bool:
    """Return whether a path or a glob leads to something; False for a name that no file system accepts."""
    try:
        return Path(path).exists() or (glob.has_magic(path) and any(glob.iglob(path, recursive=True)))
    except (OSError, ValueError):
        return False


def _nearest_file(path: str) -> str:
    """Return a hint at the file or folder whose name is most like that of a path, in the same folder."""
    try:
        return nearest(Path(path).name, sorted(each.name for each in islice(Path(path).parent.iterdir(), 1000)))
    except (OSError, ValueError):
        return ""


def _without_checkpoint(training: Any, model: Any, runs: Path) -> Iterator[str]:
    """Explain which of `training.resume` and `training.init_from` name no checkpoint, or one of another model."""
    from mm_ldlm.training.checkpoints import folder
    from mm_ldlm.training.initial import weights_of
    from mm_ldlm.training.resuming import went_back

    for key, named in (("resume", training.resume), ("init_from", training.init_from)):
        if named in ("auto", "never", None):
            continue
        try:
            path = runs / named
            if key == "init_from" and weights_of(path, options=to_dict(model)) is not None:
                continue
            if not path.is_dir() and key == "resume" and went_back(path):
                continue  # the run continues from a later one
            if not path.is_dir() and path.parent.name == "checkpoints" and path.parent.is_dir():
                folder.find(path.parent, which=path.name.removeprefix("step-"))  # lists the steps that there are
            if not path.is_dir():
                yield (
                    f"parameter 'training.{key}': expected the folder of a run or a checkpoint, found none at "
                    f"{show(named)} (relative to {runs}).{_nearest_file(str(runs / named))} Correct the name, or set "
                    "an absolute path."
                )
            else:
                folder.find(path)
        except (OSError, ValueError, CheckpointError) as error:
            yield f"parameter 'training.{key}': {shorten(escape(str(error)))}"


def check_machine(typed: Mapping[str, Any], *, read: Collection[str], trains: bool) -> None:
    """Check that the machine has the devices that the sections of the run name.

    Args:
        read: the sections that the run reads.
        trains: whether the run trains here; otherwise it may plan a training for other machines.

    Raises:
        ConfigurationError: there is no such GPU.
    """
    needs = {"training": trains, "encoder": "embedding" in read, "sampling": True, "evaluation": True}
    wanted = {f"{name}.device": typed[name].device for name, needed in needs.items() if needed and name in read}
    if not wanted:
        return
    import torch

    gpus = torch.cuda.device_count()
    if absent := [
        f"parameter '{key}': {device} is not on this machine, which has {gpus} GPUs. Set it to "
        f"{'auto or cpu' if key.startswith(('training', 'encoder')) else 'null or cpu'}."
        for key, device in wanted.items()
        if device is not None and device.startswith("cuda") and int(device.partition(":")[2] or 0) >= gpus
    ]:
        raise ConfigurationError(summarise(absent))


def flatten(parameters: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Flatten parameters to leaves by dotted path, for MLflow; lists are not flattened, credentials are masked."""
    flat: dict[str, Any] = {}
    for key, value in parameters.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, prefix=f"{path}."))
        else:
            flat[path] = mask_values(value, key=str(key))
    return flat
