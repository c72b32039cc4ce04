"""The plan of a comparison: environments, parameters, budgets and folders of the sessions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.comparison.config import BudgetConfig, ComparisonConfig, MemberConfig
from mm_ldlm.extras.comparison.members import Session, environment_of, nested, sessions_of
from mm_ldlm.settings import CONFIG_LOADER_ARGS


@pytest.fixture
def planned(project: Path, tmp_path: Path) -> Any:
    """`planned(comparison, current=(), params={})`: the sessions, with the project's own configuration."""

    def plan(comparison: dict[str, Any], /, *, current: tuple[str, ...] = (), **params: Any) -> list[Session]:
        return sessions_of(
            parse(ComparisonConfig, {"layers_above": ["test"], **comparison}, at="comparison"),
            current=current,
            base="base",
            params=params,
            folder=tmp_path / "runs",
            project=tmp_path,
            load=lambda env, given: LayeredConfigLoader(
                project / "conf", env=env, runtime_params=dict(given), **CONFIG_LOADER_ARGS
            ),
            check=check_parameters,
            merge=merge,
        )

    return plan


@pytest.mark.parametrize(
    ("current", "env", "expected"),
    [
        ((), None, "base"),
        ((), "mdlm", "mdlm"),
        (("tatoeba", "test"), "mdlm", "tatoeba+mdlm+test"),
        (("test",), None, "test"),
        (("mdlm", "local"), "ar", "mdlm+ar+local"),
        (("mdlm", "test"), "e5+mdlm", "e5+mdlm+test"),
    ],
)
def test_layers_of_a_member_join_those_of_the_current_environment(current: Any, env: str | None, expected: str) -> None:
    member = MemberConfig(name="m", env=env)
    assert environment_of(member, current=current, base="base", above=("test", "local")) == expected


def test_parameters_with_dots_are_nested() -> None:
    given = {"model.dim": 64, "model": {"heads": 2}, "training.optimizer.lr": 0.1, "training": {"optimizer.eps": 0.2}}
    assert nested(given) == {
        "model": {"dim": 64, "heads": 2},
        "training": {"optimizer": {"lr": 0.1, "eps": 0.2}},
    }


def test_every_member_and_seed_is_a_session_in_its_own_folder(planned: Any, tmp_path: Path) -> None:
    members = [{"name": "mdlm", "env": "mdlm"}, {"name": "small", "env": "ar", "params": {"model.dim": 96}}]
    found = planned({"members": members, "seeds": [0, 3]}, current=("test",), training={"max_steps": 7})
    assert [(each.member, each.seed, each.environment) for each in found] == [
        ("mdlm", 0, "mdlm+test"), ("mdlm", 3, "mdlm+test"), ("small", 0, "ar+test"), ("small", 3, "ar+test")
    ]  # fmt: skip
    assert len({each.folder for each in found}) == len({each.fingerprint for each in found}) == 4
    small = found[-1]
    assert small.folder == str(tmp_path / "runs/own-budget/small/seed-3")
    assert small.parameters["model"]["dim"] == 96
    assert small.params["training"] == {"max_steps": 7, "seed": 3}
    for name, part in (("run", "06_models/run.json"), ("report", "08_reporting/report.html")):
        assert small.paths[name] == f"{small.folder}/{part}"
    assert small.stores["ingestion"] == [
        str(tmp_path / "data/test/02_intermediate/records"), str(tmp_path / "data/test/03_primary/tokens")
    ]  # fmt: skip


def test_a_member_may_have_seeds_of_its_own(planned: Any) -> None:
    members = [{"name": "mdlm", "env": "mdlm"}, {"name": "ar", "env": "ar", "seeds": [5, 2]}]
    found = planned({"members": members, "seeds": [0]}, current=("test",))
    assert [(each.member, each.seed) for each in found] == [("mdlm", 0), ("ar", 5), ("ar", 2)]
    assert found[1].params["training"]["seed"] == 5


def test_only_members_that_read_latents_wait_for_them(planned: Any) -> None:
    members = [
        {"name": "base"},
        {"name": "ar", "env": "ar"},
        {"name": "hdlm", "env": "hdlm"},
        {"name": "ccdd", "env": "ccdd"},
    ]
    found = planned({"members": members})
    names = [[Path(path).name for path in each.stores["embedding"]] for each in found]
    assert names == [["latents", "token_vectors"], [], ["token_vectors"], ["token_states"]]


@pytest.mark.parametrize(
    ("budget", "folder", "training"),
    [
        ({"tokens": 500}, "tokens-500", {"seed": 0, "max_tokens": 500, "max_steps": None, "epochs": None}),
        ({"seconds": 90}, "seconds-90", {"seed": 0, "max_minutes": 1.5}),
        (None, "own-budget", {"seed": 0}),
    ],
)
def test_a_budget_limits_the_training_and_names_the_folder(
    planned: Any, budget: Any, folder: str, training: dict[str, Any]
) -> None:
    (found,) = planned({"members": [{"name": "ar", "env": "ar"}], "budget": budget})
    assert Path(found.folder).parts[-3] == folder
    assert found.params["training"] == training


def test_the_fingerprint_covers_what_changes_a_result_and_nothing_else(planned: Any) -> None:
    def of(**params: Any) -> str:
        (found,) = planned({"members": [{"name": "ar", "env": "ar"}]}, **params)
        return str(found.fingerprint)

    assert of() == of(tracking={"enabled": False}) == of(reporting={"title": "another"}) == of(export={"path": "x"})
    assert of() == of(comparison={"jobs": 3}) == of(results="elsewhere")
    assert of() != of(evaluation={"likelihood": {"sentences": 3}})
    assert of() != of(model={"dim": 96})


def test_parameters_of_the_command_line_are_those_of_every_member_but_for_the_comparison(planned: Any) -> None:
    given = {"comparison": {"jobs": 3}, "results": "elsewhere", "sampling": {"rows": 7}, "tracking": {"enabled": False}}
    for found in planned({"members": [{"name": "ar", "env": "ar"}, {"name": "b"}], "seeds": [4]}, **given):
        assert found.params == {
            "sampling": {"rows": 7}, "training": {"seed": 4}, "results": found.folder,
            "tracking": {"enabled": False, "run_name": f"{found.member}, seed 4"},
        }  # fmt: skip


def test_another_kind_in_a_members_parameters_replaces_that_of_the_command_line(planned: Any) -> None:
    member = {"name": "ar", "env": "ar", "params": {"model": {"kind": "causal", "dim": 96}}}
    (found,) = planned({"members": [member]}, model={"kind": "dit", "conditioning_dim": 8})
    assert found.parameters["model"] == {"kind": "causal", "dim": 96, "depth": 7, "heads": 6, "mlp_ratio": 4.0}


def test_all_members_are_checked_before_anything_runs(planned: Any) -> None:
    members = [
        {"name": "good", "env": "ar"},
        {"name": "layer", "env": "mdml"},
        {"name": "key", "env": "ar", "params": {"model.dmi": 64}},
        {"name": "pair", "env": "ar", "params": {"objective": {"kind": "text_diffusion"}}},
    ]
    with pytest.raises(ConfigurationError) as refused:
        planned({"members": members, "seeds": [0, 1]})
    text = str(refused.value)
    assert "member 'layer'" in text
    assert "Did you mean 'mdlm'?" in text
    assert "member 'key' (--env=ar): parameter 'model.dmi' is not known. Did you mean 'dim'?" in text
    assert "member 'pair'" in text
    assert "member 'good'" not in text
    assert text.count("model.dmi") == 1, "once, not for each seed"


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"training": None}, "training"),
        ({"training.seed.x": 3}, r"training\.seed\.x"),
        ({"tracking": 3}, "tracking"),
        ({"comparison.jobs": 3}, r"comparison\.jobs"),
    ],
)
def test_a_section_or_a_part_of_what_the_comparison_sets_is_refused_too(planned: Any, params: Any, found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"member 'ar'.*does not set itself, found {found}"):
        planned({"members": [{"name": "ar", "env": "ar", "params": params}]})


@pytest.mark.parametrize(
    "params", [{"model": 5, "model.dim": 6}, {"model.dim": 6, "model": 5}, {"model": {"dim": 5}, "model.dim": 6}]
)
def test_a_parameter_that_is_set_twice_is_refused(planned: Any, params: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"member 'ar': expected 'model(\.dim)?' once, found"):
        planned({"members": [{"name": "ar", "env": "ar", "params": params}]})


@pytest.mark.parametrize("params", [{"model": {1: 2}}, {"": 1}, {"model.": 1}, {"model": {"a": {None: 1}}}])
def test_a_key_that_is_no_name_is_refused(params: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"params.*: expected strings as keys, found"):
        parse(ComparisonConfig, {"members": [{"name": "ar", "params": params}]}, at="comparison")


def test_every_budget_has_its_own_folder() -> None:
    seconds = [0.5, 90.0, 90.25, 1234567.0, 1234568.0, 1e7]
    assert len({BudgetConfig(seconds=each).label for each in seconds}) == len(seconds)


@pytest.mark.parametrize("key", ["training.seed", "training.max_tokens", "tracking.run_name", "results", "comparison"])
def test_what_the_comparison_sets_is_not_a_parameter_of_a_member(planned: Any, key: str) -> None:
    member = {"name": "ar", "env": "ar", "params": {key: {} if key == "comparison" else 3}}
    with pytest.raises(ConfigurationError, match=f"member 'ar'.*found {key}"):
        planned({"members": [member], "budget": {"tokens": 50}})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"members": [{"name": "a"}, {"name": "A"}]}, "expected different names"),
        ({"members": [{"name": "a/b"}]}, "expected letters, digits"),
        ({"members": [{"name": "a"}], "baseline": "b"}, "expected the name of a member"),
        ({"members": [{"name": "a"}], "seeds": [1, 1]}, "each once"),
        ({"members": [{"name": "a", "seeds": []}]}, "members.*seeds: expected at least one"),
        ({"members": [{"name": "a"}], "budget": {"tokens": 5, "seconds": 5}}, "either tokens or seconds"),
        ({"members": [{"name": "a"}], "budget": {}}, "either tokens or seconds"),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(ComparisonConfig, given, at="comparison")


def test_a_comparison_without_members_is_refused(planned: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"comparison\.members.*found none"):
        planned({})
