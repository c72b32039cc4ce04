"""Check of all parameters: each section is parsed to its type, and the sections are compared with one another.

The check runs before the first node, so that a long run does not fail at a misspelt key of its last pipeline.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.config import parse, parse_kind
from mm_ldlm.errors import ConfigurationError
from mm_ldlm.kinds import Kinds
from mm_ldlm.sampling.config import TASKS
from mm_ldlm.sampling.lengths import refuse_long

SECTIONS = {
    "tracking": "mm_ldlm.tracking.config:TrackingConfig",
    "ingestion": "mm_ldlm.corpus.config:IngestionConfig",
    "tokenizer": "mm_ldlm.corpus.tokenizer:TokenizerConfig",
    "encoder": "mm_ldlm.encoders:EncoderConfig",
    "embedding": "mm_ldlm.latents.config:ExtractConfig",
    "token_states": "mm_ldlm.latents.token_states:TokenStatesConfig",
    "images": "mm_ldlm.latents.images:ImagesConfig",
    "validation": "mm_ldlm.latents.config:ValidationConfig",
    "normaliser": "mm_ldlm.latents.normaliser:NormaliserConfig",
    "image_normaliser": "mm_ldlm.latents.normaliser:NormaliserConfig",
    "token_clusters": "mm_ldlm.latents.config:TokenClustersConfig",
    "model": "mm_ldlm.models.registry:MODELS",
    "objective": "mm_ldlm.objectives.registry:OBJECTIVES",
    "training": "mm_ldlm.training.config:TrainingConfig",
    "sanity": "mm_ldlm.training.sanity:SanityConfig",
    "sampling": "mm_ldlm.sampling.config:SamplingConfig",
    "evaluation": "mm_ldlm.evaluation.config:EvaluationConfig",
    "reporting": "mm_ldlm.evaluation.config:ReportingConfig",
    "comparison": "mm_ldlm.comparison.config:ComparisonConfig",
}
"""Top-level key → the configuration that its mapping becomes, or the kinds that its key `kind` chooses from."""
SCALARS: dict[str, type] = {"seed": int, "data": str, "results": str}
"""Top-level keys that are plain values. `data` (root of the data folder) and `results` (the folder of everything that
depends on the model) are given at run time only."""


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parse every section; return typed values by top-level key.

    Raises:
        ConfigurationError: keys are unknown, missing or invalid; the message lists each by its full path, one per line.
    """
    typed: dict[str, Any] = {}
    problems: list[str] = []
    for key in parameters:
        if key not in SECTIONS and key not in SCALARS:
            near = difflib.get_close_matches(key, [*SECTIONS, *SCALARS], n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            problems.append(f"parameter '{key}' is not known.{hint} Known here: {', '.join([*SECTIONS, *SCALARS])}.")
    for key, kind in SCALARS.items():
        if key in parameters and (not isinstance(parameters[key], kind) or isinstance(parameters[key], bool)):
            problems.append(f"parameter '{key}': expected {kind.__name__}, found {parameters[key]!r}.")
    if "seed" not in parameters:
        problems.append("parameter 'seed' is missing and has no default.")
    elif isinstance(parameters["seed"], int) and parameters["seed"] < 0:
        problems.append(f"parameter 'seed': expected a number of at least 0, found {parameters['seed']}.")
    for key, path in SECTIONS.items():
        if key not in parameters:
            problems.append(f"parameter '{key}' is missing: no file under conf/base/parameters sets it.")
            continue
        try:
            section = _load(path)
            parser = parse_kind if isinstance(section, Kinds) else parse
            typed[key] = parser(section, parameters[key], at=key)
        except ConfigurationError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError("\n".join(problems))
    if contradictions := list(cross_checks(typed)):
        raise ConfigurationError("\n".join(contradictions))
    return typed


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
    found: list[str] = []
    sampling, max_length = typed["sampling"], typed["tokenizer"].max_length
    refused: dict[str, str | None] = {}
    for task in TASKS if sampling.tasks is None else sampling.tasks:
        use, order = sampling.use(task), sampling.unconditional.order
        reason = capabilities.refuse_task(use, order=order, length=sampling.length_of(task))
        chosen = sampling.text_sampler(task)
        if reason is None and sampling.requests(task) and chosen is not None:
            key, sampler, given_latent = chosen
            refused[key] = refused.get(key) or capabilities.refuse_sampler(sampler, use, given_latent=given_latent)
            # A text that its latent is drawn with or from fits the model, whatever the sampler could write.
            fits = use == "unconditional" and capabilities.joint_orders and order != "latent_first"
            section = {"unconditional": "unconditional.", "image_to_caption": "images."}.get(task, "")
            key = f"sampling.{section}length"
            refused[key] = refused.get(key) or refuse_long(
                sampling.length_of(task), max_length=max_length, sampler=None if fits else sampler,
                process=capabilities.process,
            )  # fmt: skip
        elif reason is not None and sampling.tasks is not None:
            found.append(
                f"parameter 'sampling.tasks' contains '{task}', but {reason} Remove the task, or set sampling.tasks to "
                "null, which stands for every task that the run supports."
            )
    if capabilities.refuse_task("l2t", order=sampling.unconditional.order, length=sampling.length) is None:
        for place, point in enumerate(typed["evaluation"].inversion.sweep):
            key = f"evaluation.inversion.sweep.{place}"
            refused[f"{key}.sampler"] = capabilities.refuse_sampler(point.sampler, "l2t", given_latent=True)
            refused[f"{key}.length"] = capabilities.refuse_length(point.length, "l2t", order="") or refuse_long(
                point.length, max_length=max_length, sampler=point.sampler, process=capabilities.process
            )
    return found + [f"parameter '{key}': {reason}" for key, reason in refused.items() if reason is not None]


def check_files(typed: Mapping[str, Any], *, read: Collection[str]) -> None:
    """Check that the files named by the sections that the run reads exist.

    Raises:
        ConfigurationError: files are missing; the message lists each with its parameter.
    """
    evaluation, sampling = (typed[key] if key in read else None for key in ("evaluation", "sampling"))
    named: list[tuple[str, str]] = []
    if evaluation:
        named += [
            (f"evaluation.sts (set '{source.name}')", source.path)
            for source in evaluation.sts.sources
            if source.path and source.format != "hub"
        ]
        named += [
            (f"evaluation.likelihood.other_texts (text '{text.name}')", text.path)
            for text in evaluation.likelihood.other_texts
        ]
    if sampling:
        named += [(f"sampling.{key}.files", file) for key in ("l2t", "t2l") for file in getattr(sampling, key).files]
    if missing := [
        f"parameter '{key}': {path} does not exist (looked from {Path.cwd()}). Correct it or put the file there."
        for key, path in named
        if not Path(path).exists()
    ]:
        raise ConfigurationError("\n".join(missing))


def flatten(parameters: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Flatten parameters to leaves by dotted path, for MLflow and the report; lists are not flattened."""
    flat: dict[str, Any] = {}
    for key, value in parameters.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, prefix=f"{path}."))
        else:
            flat[path] = value
    return flat


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
