"""The plan of a comparison: every member and seed as one session, with its parameters resolved and checked.

The plan is made before the first node, where the configuration can be loaded, and saved to the catalog; from there on
nothing but the plan is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.features import LATENTS, planned
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.extras.comparison.config import BudgetConfig, ComparisonConfig, MemberConfig

PIPELINES = ("validation", "training", "sampling", "evaluation", "reporting")
"""Pipelines of every session."""
PATHS = ("run", "runs", "dataset", "metrics", "report")
"""Catalog entries of a session that the comparison reads afterwards."""
_NO_RESULT = ("comparison", "export", "reporting", "tracking", "results")
"""Sections that do not change what a session finds out."""


@dataclass(frozen=True)
class Session:
    """One member with one seed: an ordinary `kedro run`.

    Attributes:
        environment: of `--env`.
        params: of `--params`, nested.
        fingerprint: of the resolved parameters that determine the results.
        parameters: what the table shows of them: model and objective.
        folder: holds everything that the session writes.
        paths: catalog entry → its file or folder.
        stores: pipeline → folders of the stores that it has to have written before.
    """

    member: str
    seed: int
    environment: str
    params: dict[str, Any]
    fingerprint: str
    parameters: dict[str, Any]
    folder: str
    paths: dict[str, str]
    stores: dict[str, list[str]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.member}, seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Loader(Protocol):
    """A configuration loader: type of configuration ("parameters", "catalog") → configuration."""

    def __getitem__(self, key: str) -> Any: ...


def sessions_of(
    config: ComparisonConfig,
    *,
    current: Sequence[str],
    base: str,
    params: Mapping[str, Any],
    folder: Path,
    project: Path,
    load: Callable[[str, Mapping[str, Any]], Loader],
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    merge: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]],
) -> list[Session]:
    """Resolve and check the parameters of every member; one session for each member and seed, members first.

    Args:
        current: layers of the current environment above `base`, lowest first.
        params: `--params` of the current run.
        folder: of all sessions.
        load: environment and params → its configuration.
        check: parameters → typed sections; raises ConfigurationError.
        merge: how one layer changes another (`config_loader.merge`).

    Raises:
        ConfigurationError: there is no member, or the parameters of some are refused; each with its reasons.
    """
    if not config.members:
        raise ConfigurationError("parameter 'comparison.members': expected at least one member, found none. List them.")
    found: list[Session] = []
    problems: list[str] = []
    for member in config.members:
        try:
            own = nested(member.params)
        except ConfigurationError as error:
            problems.append(f"comparison, member '{member.name}': {error}")
            continue
        set_here = {*_leaves(fixed(member, 0, config.budget)), "results", "comparison"}
        if taken := sorted(name for name in _leaves(own) if any(_overlap(name, other) for other in set_here)):
            problems.append(
                f"comparison, member '{member.name}': expected parameters that the comparison does not set itself, "
                f"found {', '.join(taken)}. Use comparison.seeds, comparison.budget and the name of the member instead."
            )
            continue
        environment = environment_of(member, current=current, base=base, above=config.layers_above)
        for seed in config.seeds_of(member):
            place = folder / (config.budget.label if config.budget else "own-budget") / member.name / f"seed-{seed}"
            changes = merge(_shared(params), merge(own, fixed(member, seed, config.budget)))
            given = {**changes, "results": place.as_posix()}
            try:
                loader = load(environment, given)
                parameters = loader["parameters"]
                typed = check(parameters)
            except ConfigurationError as error:
                problems.append(f"comparison, member '{member.name}' (--env={environment}): {error}")
                break  # the other seeds would be refused for the same reasons
            paths = {name: entry["filepath"] for name, entry in loader["catalog"].items() if "filepath" in entry}
            found.append(
                Session(
                    member=member.name,
                    seed=seed,
                    environment=environment,
                    params=given,
                    fingerprint=fingerprint({k: v for k, v in parameters.items() if k not in _NO_RESULT}),
                    parameters={"model": parameters["model"], "objective": parameters["objective"]},
                    folder=place.as_posix(),
                    paths={name: (project / paths[name]).as_posix() for name in PATHS},
                    stores={
                        "ingestion": [(project / paths[name]).as_posix() for name in ("records", "tokens")],
                        "embedding": [
                            (
                                project / (paths[name] if name == LATENTS else f"{paths['features']}/{feature.folder}")
                            ).as_posix()
                            for name, feature in planned({**typed, "seed": parameters["seed"]}).items()
                        ],
                    },
                )
            )
    if problems:
        raise ConfigurationError("\n".join(problems))
    return found


def environment_of(member: MemberConfig, *, current: Sequence[str], base: str, above: Sequence[str]) -> str:
    """Join the layers of the current environment and of a member; a layer of both stands where the member has it."""
    own = member.env.split("+") if member.env else []
    others = [layer for layer in current if layer not in own]
    lower, upper = ([layer for layer in others if (layer in above) == high] for high in (False, True))
    return "+".join([*lower, *own, *upper]) or base


def fixed(member: MemberConfig, seed: int, budget: BudgetConfig | None) -> dict[str, Any]:
    """Parameters that the comparison itself sets: the seed of the training, its budget, the name of the MLflow run."""
    training: dict[str, Any] = {"seed": seed}
    if budget is not None and budget.tokens is not None:
        training |= {"max_tokens": budget.tokens, "max_steps": None, "epochs": None}
    elif budget is not None and budget.seconds is not None:
        training |= {"max_minutes": budget.seconds / 60}
    return {"training": training, "tracking": {"run_name": f"{member.name}, seed {seed}"}}


def nested(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters with dots in their keys to nested mappings: {"model.dim": 64} becomes {"model": {"dim": 64}}.

    Raises:
        ConfigurationError: a key is set to a value and to a mapping, or to two values.
    """
    found: dict[str, Any] = {}
    for key, value in params.items():
        inner = nested(value) if isinstance(value, Mapping) else value
        first, _, rest = key.partition(".")
        addition = nested({rest: inner}) if rest else inner
        found[first] = _joined(found[first], addition, at=first) if first in found else addition
    return found


def _leaves(params: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Paths of all values of nested parameters, and of the sections that they are in."""
    found: set[str] = set()
    for key, value in params.items():
        inner = _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else set[str]()
        found |= inner or {f"{prefix}{key}"}
    return found


def _overlap(one: str, two: str) -> bool:
    """Return whether two dotted paths are the same, or one is in the section that the other names."""
    return f"{one}.".startswith(f"{two}.") or f"{two}.".startswith(f"{one}.")


def _joined(one: Any, two: Any, *, at: str) -> Any:
    """Merge two nested mappings of one member's parameters, which must set different keys."""
    if not (isinstance(one, dict) and isinstance(two, dict)):
        raise ConfigurationError(f"expected '{at}' once, found {one!r} and {two!r}. Remove one of them.")
    return {**one, **{key: _joined(one[key], value, at=f"{at}.{key}") if key in one else value
                      for key, value in two.items()}}  # fmt: skip


def _shared(params: Mapping[str, Any]) -> dict[str, Any]:
    """The `--params` of the current run that hold for its members: not those of the comparison itself."""
    return {key: value for key, value in params.items() if key not in ("comparison", "results")}
