"""The plan of a comparison: layers, parameters, budgets and folders of the sessions, and what is refused."""

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.app.test_parameters import flat
from tests.environments import ENVIRONMENTS, loader, parameters
from tests.environments import layer as layer_of

from mm_ldlm.app.config_loader import merge
from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.core import ConfigurationError, parse
from mm_ldlm.core.registry import contributed
from mm_ldlm.extras.comparison.config import BudgetConfig, ComparisonConfig, MemberConfig
from mm_ldlm.extras.comparison.plan import environment_of, params_of, plan

ROOT = Path("/project")
LAYERS = st.lists(st.sampled_from("abcdef"), unique=True, max_size=4)


def config(*members: Mapping[str, Any], **given: Any) -> ComparisonConfig:
    return parse(ComparisonConfig, {"members": list(members), "layers_above": ["test"], **given}, at="comparison")


def sessions(compared: ComparisonConfig, /, env: str = "test", **params: Any) -> list[dict[str, Any]]:
    return plan(compared, loader(env).for_environment(env, params), ROOT)["sessions"]


def test_learning_rates_cannot_be_chosen_without_a_validation_loss() -> None:
    with pytest.raises(ConfigurationError, match="validate_every"):
        sessions(config({"name": "a", "env": "mdlm"}, learning_rates=[1e-3]), training={"validate_every": 0})


# -- layers and parameters ---------------------------------------------------------------------------------------------


@given(own=LAYERS, current=LAYERS, above=st.sets(st.sampled_from("abcdef")))
def test_layers_of_a_member_lie_between_the_others_and_those_above(
    own: list[str], current: list[str], above: set[str]
) -> None:
    member = MemberConfig(name="m", env="+".join(own) or None)
    found = environment_of(member, current=current, base="base", above=sorted(above))
    layers = [layer for layer in found.split("+") if layer != "base"]
    assert (found == "base") == (not layers)
    assert sorted(layers) == sorted({*own, *current})
    assert [layer for layer in layers if layer in own] == own
    others = [layer for layer in current if layer not in own]
    assert [layer for layer in layers if layer not in own] == sorted(others, key=lambda layer: layer in above)
    for layer in layers if own else []:
        assert layer in own or (layers.index(layer) > layers.index(own[-1])) == (layer in above)


@pytest.mark.parametrize(
    ("budget", "label", "training"),
    [
        ({"tokens": 2000}, "tokens-2000", {"max_tokens": 2000, "max_steps": None, "epochs": None}),
        ({"seconds": 90.0}, "seconds-90", {"max_minutes": 1.5}),
    ],
)
def test_a_budget_limits_the_trainings_and_names_their_folder(
    budget: dict[str, Any], label: str, training: dict[str, Any]
) -> None:
    given = BudgetConfig(**budget)
    params = params_of(MemberConfig(name="m"), 3, given, {}, results=Path("/r"))
    assert (given.label, params["training"]) == (label, {"seed": 3, **training})


def test_every_member_and_seed_is_a_session_in_its_own_folder() -> None:
    members = ({"name": "a", "env": "mdlm"}, {"name": "b", "env": "l2t", "seeds": [7]})
    found = sessions(config(*members, seeds=[0, 3], budget={"tokens": 2000}))
    assert [(each["member"], each["seed"], each["environment"]) for each in found] == [
        ("a", 0, "mdlm+test"), ("a", 3, "mdlm+test"), ("b", 7, "l2t+test")
    ]  # fmt: skip
    for each in found:
        place = Path(each["folder"])
        assert place.parts[-3:] == ("tokens-2000", each["member"], f"seed-{each['seed']}")
        assert {Path(path).is_relative_to(place) for path in each["paths"].values()} == {True}
        assert each["params"]["training"]["seed"] == each["seed"]
        assert each["params"]["results"] == place.as_posix()
        assert not any(Path(store).is_relative_to(place) for stores in each["stores"].values() for store in stores)
    assert len({each["folder"] for each in found}) == len({each["fingerprint"] for each in found}) == len(found)


def test_every_learning_rate_is_a_session_of_its_own_beside_the_others() -> None:
    found = sessions(config({"name": "a", "env": "mdlm"}, seeds=[0, 3], learning_rates=[1e-3, 3e-3]))
    assert [each["params"]["training"] for each in found] == [
        {"seed": seed, "optimizer": {"lr": rate}} for rate in (1e-3, 3e-3) for seed in (0, 3)
    ]
    assert len({each["folder"] for each in found}) == len({each["fingerprint"] for each in found}) == 4
    assert {Path(each["folder"]).parts[-4] for each in found} == {"own-budget"}


def test_parameters_of_the_command_line_are_below_the_members_and_of_every_member() -> None:
    members = ({"name": "a", "env": "mdlm", "params": {"model.dim": 32, "training": {"seed": 0}}}, {"name": "b"})
    given: dict[str, Any] = {
        "model": {"dim": 64, "heads": 4},
        "comparison": {"jobs": 2},
        "results": "/elsewhere",
        "seed": 5,
    }
    found = sessions(config(*members), **given)
    assert [each["params"]["model"] for each in found] == [{"dim": 32, "heads": 4}, {"dim": 64, "heads": 4}]
    assert [each["params"]["seed"] for each in found] == [5, 5]
    assert all("comparison" not in each["params"] for each in found)
    assert found[0]["parameters"]["model"]["dim"] == 32


def test_the_fingerprint_covers_what_changes_a_result_and_nothing_else() -> None:
    def fingerprint(**params: Any) -> str:
        return str(sessions(config({"name": "a"}), **params)[0]["fingerprint"])

    first = fingerprint(seed=1)
    assert fingerprint(seed=1, reporting={"title": "T"}, tracking={"enabled": False}) == first
    for change in (
        {"seed": 2},
        {"seed": 1, "model": {"depth": 1}},
        {"seed": 1, "evaluation": {"bootstrap": {"replicates": 99}}},
    ):
        assert fingerprint(**change) != first


def test_only_members_that_read_latents_wait_for_them() -> None:
    found = sessions(config({"name": "text", "env": "mdlm"}, {"name": "both"}))
    assert [len(each["stores"]["embedding"]) > 0 for each in found] == [False, True]
    assert all(len(each["stores"]["ingestion"]) == 2 for each in found)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [{"training.seed": 3}, {"training": {"max_steps": 9}}, {"results": "/r"}, {"tracking": {"run_name": "x"}},
     {"comparison.jobs": 2}, {"training": 3}],
    ids=str,
)  # fmt: skip
def test_what_the_comparison_sets_is_no_parameter_of_a_member(params: Any, refuses: Callable[..., Any]) -> None:
    with refuses(ConfigurationError, "training.seed", "comparison.budget"):
        params_of(MemberConfig(name="m", params=params), 0, BudgetConfig(tokens=9), {}, results=Path("/r/m"))


def test_every_member_with_a_problem_is_named_and_none_hides_another(refuses: Callable[..., Any]) -> None:
    members = (
        {"name": "good", "env": "mdlm"},
        {"name": "unknown", "params": {"modle.dim": 3}},
        {"name": "unfit", "env": "mdlm", "params": {"objective": {"kind": "multimodal"}}},
    )
    with refuses(ConfigurationError, "'unknown'", "'unfit'"):
        sessions(config(*members))
    with pytest.raises(ConfigurationError, match=r"member 'missing' .*environment 'nowhere' is not known"):
        sessions(config({"name": "missing", "env": "nowhere"}))
    with refuses(ConfigurationError, "comparison.members"):
        sessions(config())


def test_trainings_that_end_within_their_warmup_are_refused_together(
    tmp_path: Path, write_dataset: Callable[..., Any], refuses: Callable[..., Any]
) -> None:
    write_dataset(tmp_path / "made", ["a b c d"] * 40, splits=["train"] * 30 + ["test"] * 10)
    warmed = {"name": "warmed", "env": "mdlm", "params": {"training.optimizer.warmup_steps": 5}}
    usual = {"name": "usual", "env": "mdlm"}

    def planned(tokens: int, *members: dict[str, Any]) -> list[dict[str, Any]]:
        training = {"batch": {"tokens": None, "examples": 10}, "optimizer": {"warmup_steps": 4}}
        return sessions(config(*members, budget={"tokens": tokens}), data=str(tmp_path / "data"), training=training)

    for store, name in zip(
        planned(1, usual)[0]["stores"]["ingestion"], ("records", "tokens"), strict=True
    ):  # without data
        shutil.copytree(tmp_path / "made" / name, store)
    with refuses(ConfigurationError, "usual (steps: 3, warm-up: 4), warmed (steps: 3"):
        planned(120, usual, warmed)
    with refuses(ConfigurationError, "found warmed (steps: 4, warm-up: 5)."):
        planned(160, usual, warmed)
    assert len(planned(200, warmed)) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"members": [{"name": "a"}, {"name": "A"}]},
        {"members": [{"name": "../a"}]},
        {"members": [{"name": "a", "seeds": []}]},
        {"members": [{"name": "a"}], "seeds": [1, 1]},
        {"members": [{"name": "a"}], "baseline": "b"},
        {"budget": {"tokens": 1, "seconds": 1.0}},
        {"budget": {}},
    ],
    ids=str,
)
def test_contradictions_are_refused(given: dict[str, Any], refuses: Callable[..., Any]) -> None:
    with refuses(ConfigurationError, "comparison."):
        parse(ComparisonConfig, given, at="comparison")


# -- the comparisons of conf/ ------------------------------------------------------------------------------------------

SUBJECT = (
    "model.", "objective.", "sampling.text.", "sampling.unconditional.text.", "sampling.tasks.", "sanity.",
    "comparison.", *(f"{name}." for name, path in contributed("sections").items() if ".families." in path),
)  # fmt: skip
"""Sections that members may differ in: the system, and its sampler, of which the kind and the steps are compared"""


@functools.cache
def resolved(layer: str) -> dict[str, dict[str, Any]]:
    """The parameters of every member of a comparison."""
    comparison = parse(ComparisonConfig, parameters(layer)["comparison"], at="comparison")
    found = {}
    for member in comparison.members:
        env = environment_of(member, current=[layer], base="base", above=comparison.layers_above)
        params = params_of(member, 0, None, {}, results=Path("/r"))
        found[member.name] = merge(parameters(env), {name: params[name] for name in params if name != "tracking"})
    return found


COMPARISONS = [name for name in ENVIRONMENTS if "members" in str(layer_of(name).get("comparison")) and name != "base"]
COMPARED = [name for name in COMPARISONS if "completion" not in str(layer_of(name))]
"""Comparisons of texts that are written from noise or from a latent"""


@pytest.mark.parametrize("layer", COMPARED)
def test_members_differ_in_the_system_alone(layer: str) -> None:
    members = resolved(layer)
    shared = [
        {key: value for key, value in flat(each).items() if not f"{key}.".startswith(SUBJECT)}
        for each in members.values()
    ]
    assert all(each == shared[0] for each in shared)
    typed = [check_parameters({name: each[name] for name in each if name != "results"}) for each in members.values()]
    processes = [getattr(each["objective"], "process", None) for each in typed]
    absorbing = [process for process in processes if getattr(process, "kind", "") == "absorbing"]
    assert len({(process.schedule, process.t_min) for process in absorbing}) == 1
    samplers = [each["sampling"].unconditional.text for each in typed]
    assert len({getattr(sampler, "steps", None) for sampler in samplers} - {None}) == 1
    assert len({sampler.temperature for sampler in samplers}) == 1
