"""Plan a comparison: one session for every member and seed, with its parameters resolved and checked.

A hook makes the plan before the first node, where configurations can be loaded, and saves it to the catalog; afterwards
only the plan is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from kedro.framework.hooks import hook_impl

from mm_ldlm.core import ConfigurationError, parse
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.manifest import NAME as MANIFEST
from mm_ldlm.extras.comparison.config import BudgetConfig, ComparisonConfig, MemberConfig
from mm_ldlm.training.config import TrainingConfig

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

PLAN = "comparison_plan"
PIPELINES = ("validation", "training", "sampling", "evaluation", "reporting")
"""Pipelines of every session"""
PATHS = ("run", "runs", "dataset", "metrics", "report")
"""Catalog entries of a session that the comparison reads afterwards"""
_NO_RESULT = ("comparison", "export", "reporting", "tracking", "results")
"""Sections that do not affect the results of a session"""


@dataclass(frozen=True)
class Session:
    """One member with one seed: an ordinary `kedro run`.

    Attributes:
        environment: value of `--env`.
        params: value of `--params`, nested.
        fingerprint: fingerprint of the resolved parameters that determine the results.
        parameters: sections that the table shows or that determine the length of the training.
        folder: folder of everything that the session writes.
        paths: catalog entry → its file or folder.
        stores: pipeline → folders of the stores that it must have written before the session.
        learning_rate: entry of `comparison.learning_rates` that the session tries; None: the rate of its parameters.
    """

    member: str
    seed: int
    environment: str
    params: dict[str, Any]
    fingerprint: str
    parameters: dict[str, Any]
    folder: str
    paths: dict[str, str]
    stores: dict[str, list[str]]
    learning_rate: float | None = None

    @property
    def label(self) -> str:
        rate = "" if self.learning_rate is None else f", learning rate {self.learning_rate:g}"
        return f"{self.member}, seed {self.seed}{rate}"


class ComparisonHooks:
    """Hooks that save the plan of a comparison to the catalog."""

    @hook_impl
    def after_context_created(self, context: "KedroContext") -> None:
        self._context = context

    @hook_impl
    def before_pipeline_run(self, pipeline: "Pipeline", catalog: "CatalogProtocol") -> None:
        if PLAN in pipeline.inputs():
            loader: Any = self._context.config_loader
            catalog.save(PLAN, plan(catalog.load("params:comparison"), loader, self._context.project_path))


def plan(config: ComparisonConfig, loader: Any, project: Path) -> dict[str, Any]:
    """Resolve and check the parameters of every member; make a session for each member, learning rate and seed.

    Args:
        loader: the configuration loader of the current run.

    Raises:
        ConfigurationError: there is no member, or parameters of members are refused; the message has all reasons.
    """
    if not config.members:
        raise ConfigurationError("parameter 'comparison.members': expected at least one member, found none. List them.")
    entries = loader["catalog"]
    folder = project / entries["comparison_runs"]["filepath"] / (config.budget.label if config.budget else "own-budget")
    sessions: list[Session] = []
    problems: list[str] = []
    for member in config.members:
        layers = environment_of(member, current=loader.layers()[1:], base=loader.base_env, above=config.layers_above)
        where = f"comparison, member '{member.name}' (--env={layers})"
        try:
            for rate, seed in product(dict.fromkeys(config.learning_rates) or (None,), member.seeds or config.seeds):
                place = folder / member.name / ("" if rate is None else f"lr-{rate:g}") / f"seed-{seed}"
                params = params_of(member, seed, config.budget, loader.runtime_params or {}, results=place, rate=rate)
                sessions.append(_session(member, seed, rate, layers, params, loader, project))
        except ConfigurationError as error:  # the other seeds would be refused for the same reasons
            problems.append(f"{where}: {error}")
            continue
        if config.learning_rates and not sessions[-1].parameters["training"]["validate_every"]:
            problems.append(
                f"{where}: parameter 'training.validate_every': expected a number of steps, because "
                "comparison.learning_rates are chosen by validation, found 0. Set it."
            )
    if problems:
        raise ConfigurationError("\n".join(problems))
    refuse_short_trainings(sessions)
    return {
        "project": str(project),
        "conf_source": str(loader.conf_source),
        "reports": str((project / entries["comparison_report"]["filepath"]).parent),
        "sessions": [asdict(session) for session in sessions],
    }


def refuse_short_trainings(sessions: Sequence[Session]) -> None:
    """Refuse runs that would end before their warm-up does; sessions without data are not checked."""
    from mm_ldlm.training.spec import limits

    short = dict[str, tuple[int, int]]()
    for session in sessions:
        if all((Path(folder) / MANIFEST).is_file() for folder in session.stores["ingestion"]):
            training = parse(TrainingConfig, session.parameters["training"], at="training")
            records, tokens = map(ShardStore.open, session.stores["ingestion"])
            train = np.flatnonzero(pc.equal(records.gather("split", slice(None)), "train"))
            lengths = tokens.gather("length", train).to_numpy()
            max_length = session.parameters["tokenizer"]["max_length"]
            steps = min(limits(training, lengths, seed=session.seed, max_length=max_length)[1].values())
            if steps < training.optimizer.warmup_steps:
                short[session.member] = steps, training.optimizer.warmup_steps
    if short:
        found = ", ".join(f"{name} (steps: {steps}, warm-up: {most})" for name, (steps, most) in short.items())
        raise ConfigurationError(
            f"comparison.budget: expected runs at least as long as their warm-up, found {found}. Raise the "
            f"budget, or set training.optimizer.warmup_steps to at most {min(short.values())[0]}."
        )


def _session(
    member: MemberConfig, seed: int, rate: float | None, layers: str, params: dict[str, Any], loader: Any, project: Path
) -> Session:
    from mm_ldlm.app.parameters import check_machine, check_parameters
    from mm_ldlm.data.features import LATENTS, planned

    own = loader.for_environment(layers, params)
    parameters = own["parameters"]
    typed = check_parameters(parameters)
    check_machine(typed, read=typed.keys(), unused={"training", "encoder"})
    paths = {
        name: (project / entry["filepath"]).as_posix() for name, entry in own["catalog"].items() if "filepath" in entry
    }
    features = planned(typed)
    return Session(
        member=member.name,
        seed=seed,
        learning_rate=rate,
        environment=layers,
        params=params,
        fingerprint=fingerprint({name: value for name, value in parameters.items() if name not in _NO_RESULT}),
        parameters={name: parameters[name] for name in ("model", "objective", "training", "tokenizer")},
        folder=params["results"],
        paths={name: paths[name] for name in PATHS},
        stores={
            "ingestion": [paths["records"], paths["tokens"]],
            "embedding": [
                paths[LATENTS] if name == LATENTS else f"{paths['features']}/{feature.folder}"
                for name, feature in features.items()
            ],
        },
    )


def environment_of(member: MemberConfig, *, current: Sequence[str], base: str, above: Sequence[str]) -> str:
    """Join the layers of the current environment and of a member; a layer of both takes the member's place."""
    own = member.env.split("+") if member.env else []
    others = [layer for layer in current if layer not in own]
    lower, upper = ([layer for layer in others if (layer in above) == high] for high in (False, True))
    return "+".join([*lower, *own, *upper]) or base


def params_of(
    member: MemberConfig,
    seed: int,
    budget: BudgetConfig | None,
    given: Mapping[str, Any],
    *,
    results: Path,
    rate: float | None = None,
) -> dict[str, Any]:
    """Merge the `--params` of the current run, the parameters of the member, and those that the comparison sets.

    Raises:
        ConfigurationError: the member sets a parameter of the comparison: seed, budget, learning rate, folder, or name
            in MLflow.
    """
    from mm_ldlm.app.config_loader import merge
    from mm_ldlm.app.params_option import nested

    training: dict[str, Any] = {"seed": seed}
    if budget is not None and budget.tokens is not None:
        training |= {"max_tokens": budget.tokens, "max_steps": None, "epochs": None}
    elif budget is not None and budget.seconds is not None:
        training |= {"max_minutes": budget.seconds / 60}
    name = f"{member.name}, seed {seed}"
    if rate is not None:
        training |= {"optimizer": {"lr": rate}}
        name += f", learning rate {rate:g}"
    fixed = {"training": training, "tracking": {"run_name": name}, "results": results.as_posix()}
    own = nested(member.params)
    if "comparison" in own or merge(own, fixed) != merge(fixed, own):
        raise ConfigurationError(
            "expected parameters that the comparison does not set itself, found some of "
            f"{', '.join(f'training.{key}' for key in training)}, tracking.run_name, results or comparison. Use "
            "comparison.seeds, comparison.budget, comparison.learning_rates and the name of the member instead."
        )
    shared = {name: value for name, value in given.items() if name not in ("comparison", "results")}
    return merge(shared, merge(own, fixed))
