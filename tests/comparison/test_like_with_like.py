"""Members of the comparisons in conf/ differ in what the comparison is about, and in nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.app.config_loader import LayeredConfigLoader
from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.core.config import parse
from mm_ldlm.extras.comparison.config import ComparisonConfig
from mm_ldlm.extras.comparison.members import environment_of, nested
from mm_ldlm.settings import CONFIG_LOADER_ARGS

CONF = Path(__file__).parents[2] / "conf"
SUBJECT = (
    "model.", "objective.", "sampling.text.", "sampling.unconditional.text.", "sampling.tasks.", "sanity.",
    "comparison.",
)  # fmt: skip
"""Sections that members may differ in: the system, and its sampler, of which the kind and the steps are compared."""


@cache
def members(layer: str) -> dict[str, dict[str, Any]]:
    """The resolved parameters of every member of a comparison."""
    own = LayeredConfigLoader(CONF, env=layer, **CONFIG_LOADER_ARGS)["parameters"]["comparison"]
    config = parse(ComparisonConfig, own, at="comparison")
    found = {}
    for member in config.members:
        env = environment_of(member, current=[layer], base="base", above=config.layers_above)
        loader = LayeredConfigLoader(CONF, env=env, runtime_params=nested(member.params), **CONFIG_LOADER_ARGS)
        found[member.name] = loader["parameters"]
    return found


def flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in section.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


@pytest.mark.parametrize("layer", ["compare_text", "compare_latent", "compare_atat"])
def test_members_differ_in_the_system_alone(layer: str) -> None:
    resolved = members(layer)
    shared = {
        name: {key: value for key, value in flat(given).items() if not f"{key}.".startswith(SUBJECT)}
        for name, given in resolved.items()
    }
    first = next(iter(shared))
    for name, given in shared.items():
        assert given == shared[first], f"{name} and {first}"

    typed = {name: check_parameters(given) for name, given in resolved.items()}
    processes = [getattr(sections["objective"], "process", None) for sections in typed.values()]
    absorbing = [process for process in processes if getattr(process, "kind", "") == "absorbing"]
    assert absorbing
    assert all(process == absorbing[0] for process in absorbing), "schedule and t_min"

    samplers = [sections["sampling"].unconditional.text for sections in typed.values()]
    steps = {sampler.steps for sampler in samplers if hasattr(sampler, "steps")}
    assert len(steps) == len({sampler.temperature for sampler in samplers}) == 1
    assert {sampler.kind for sampler in samplers} <= (
        {"confidence"} if layer == "compare_latent" else {"ancestral", "joint_states", "autoregressive", "uncertainty"}
    )


def test_the_latent_comparison_trains_one_model_in_one_and_in_all_directions() -> None:
    resolved = members("compare_latent")
    both, one = (flat({key: resolved[name][key] for key in ("model", "objective")}) for name in ("multimodal", "l2t"))
    assert {key for key in both if both[key] != one[key]} == {"objective.mode"}
