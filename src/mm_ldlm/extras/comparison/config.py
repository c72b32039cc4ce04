"""Parameters of the section `comparison`."""

from dataclasses import field
from typing import Annotated, Any

from mm_ldlm.core import (
    Duration,
    PositiveFloat,
    PositiveInt,
    Seed,
    Workers,
    bounded,
    checked,
    config,
    nearest,
    refuse_if,
)

Name = Annotated[str, bounded(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Name of a folder and of rows of the table"""


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError("expected one or more distinct seeds")
    return seeds


Seeds = Annotated[tuple[Seed, ...], checked(_different)]


@config
class MemberConfig:
    """One model of the comparison.

    Attributes:
        env: environment layers, as in `--env`, that are added to the current environment; null adds none.
        params: parameters that differ, nested or with dots in their keys; they override all layers.
        seeds: seeds of this member, for example more of them if two members are close; null: the comparison's.
    """

    name: Name
    env: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    seeds: Seeds | None = None


@config
class BudgetConfig:
    """Budget of the training of every member: either tokens seen or seconds."""

    tokens: PositiveInt | None = None
    seconds: Duration | None = None

    def __post_init__(self) -> None:
        found = f"tokens={self.tokens} and seconds={self.seconds}"
        both_or_none = (self.tokens is None) == (self.seconds is None)
        refuse_if(both_or_none, f"give either tokens or seconds, found {found}", "tokens", "seconds")

    @property
    def label(self) -> str:
        """Name of the folder of runs under this budget."""
        return f"tokens-{self.tokens}" if self.tokens is not None else f"seconds-{self.seconds:g}"

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens seen" if self.tokens is not None else f"{self.seconds:g} seconds of training"


@config
class ComparisonConfig:
    """Parameters of the pipeline `comparison`.

    Attributes:
        members: the models. Each is trained once for each of its seeds (`training.seed`).
        seeds: seeds of every member that sets none.
        budget: budget of each training; null: the limits of the member itself.
        baseline: name of the member with which the others are compared; null: the first.
        learning_rates: rates from which each member takes the one with the lowest validation NLL of its first seed;
            empty: its `training.optimizer.lr`.
        layers_above: layers of `--env` that override a member's layers; all other layers of the current environment
            are overridden by them.
        jobs: number of sessions that run at the same time.
    """

    members: tuple[MemberConfig, ...] = ()
    seeds: Seeds = (0,)
    budget: BudgetConfig | None = None
    baseline: str | None = None
    learning_rates: tuple[PositiveFloat, ...] = ()
    layers_above: tuple[str, ...] = ()
    jobs: Workers = 1

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        lower = {name.lower() for name in names}  # some file systems ignore case
        refuse_if(len(lower) != len(names), f"expected unique names, found {names}", "members")
        hint = "" if self.baseline is None else nearest(self.baseline, names)
        found = f"({', '.join(names)}), found '{self.baseline}'.{hint}".removesuffix(".")
        refuse_if(self.baseline not in (None, *names), f"expected the name of a member {found}", "baseline")

    @property
    def reference(self) -> str:
        """Name of the member that the others are compared with."""
        return self.baseline or self.members[0].name
