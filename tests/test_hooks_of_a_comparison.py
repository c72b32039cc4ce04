"""The hooks with the project's own configuration: the plan of a comparison, folders of locks, and what a run needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DatasetError
from kedro.pipeline import Pipeline, node
from mm_ldlm.app.hooks.refusals import launches, refuse_on_other_hosts, trains

from mm_ldlm.app.config_loader import LayeredConfigLoader
from mm_ldlm.app.hooks import ProjectHooks
from mm_ldlm.app.hooks import project as hooks_of_project
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.comparison.config import ComparisonConfig
from mm_ldlm.settings import CONFIG_LOADER_ARGS


@pytest.fixture
def hooks(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`hooks(env, **params)`: the hooks of a run in this environment, in a project folder of its own."""
    settings = SimpleNamespace(CONFIG_LOADER_CLASS=LayeredConfigLoader, CONFIG_LOADER_ARGS=CONFIG_LOADER_ARGS)
    monkeypatch.setattr("kedro.framework.project.settings", settings)

    def make(env: str, **params: Any) -> ProjectHooks:
        made = ProjectHooks()
        loader = LayeredConfigLoader(project / "conf", env=env, runtime_params=params, **CONFIG_LOADER_ARGS)
        made.after_context_created(SimpleNamespace(project_path=tmp_path, config_loader=loader))  # type: ignore[arg-type]
        return made

    return make


def comparison(**given: Any) -> ComparisonConfig:
    return parse(ComparisonConfig, {"layers_above": ["test"], **given}, at="comparison")


def test_the_plan_of_a_comparison_has_the_layers_and_parameters_of_the_run(
    hooks: Any, project: Path, tmp_path: Path
) -> None:
    made = hooks("e5+test", sampling={"rows": 7}, comparison={"jobs": 2})
    config = comparison(members=[{"name": "a", "env": "ar"}, {"name": "m", "env": "mdlm"}], seeds=[3],
                        budget={"tokens": 50})  # fmt: skip
    plan = made._plan_comparison(config)
    assert (plan["project"], plan["conf_source"]) == (str(tmp_path), str(project / "conf"))
    paths = {Path(plan["reports"]).name, Path(plan["reports"]).parent.name}
    assert "08_reporting" in paths
    assert Path(plan["reports"]).is_relative_to(tmp_path)
    for session, (name, env) in zip(plan["sessions"], (("a", "ar"), ("m", "mdlm")), strict=True):
        assert (session["member"], session["seed"], session["environment"]) == (name, 3, f"e5+{env}+test")
        folder = Path(session["folder"])
        assert folder.parts[-4:] == ("comparison", "tokens-50", name, "seed-3")
        assert folder.is_relative_to(tmp_path)
        assert session["params"]["sampling"] == {"rows": 7}
        assert "comparison" not in session["params"]
        assert all(Path(path).is_relative_to(folder) for path in session["paths"].values())
        stores = [Path(path) for paths in session["stores"].values() for path in paths]
        assert stores
        assert all(path.is_relative_to(tmp_path) and not path.is_relative_to(folder) for path in stores)


@pytest.mark.parametrize(
    ("member", "message"),
    [({"params": {"evaluation.sts.files.mine": "nowhere.csv"}}, r"evaluation\.sts\.files\.mine': 'nowhere\.csv' does"),
     ({"params": {"model.dmi": 3}}, r"model\.dmi' is not known"),
     ({"env": "ra"}, "environment 'ra' is not known")],
)  # fmt: skip
def test_members_that_could_not_run_are_refused_before_the_first_one(member: Any, message: str, hooks: Any) -> None:
    config = comparison(members=[{"name": "good", "env": "ar"}, {"name": "bad", "env": "ar", **member}])
    with pytest.raises(ConfigurationError, match=rf"^comparison, member 'bad'.*{message}"):
        hooks("test")._plan_comparison(config)


def test_the_folders_of_the_locks_are_those_of_the_environment(hooks: Any, tmp_path: Path) -> None:
    plain, other = hooks("base")._folders(), hooks("test", results="mine")._folders()
    assert list(plain) == list(other) == ["data", "features", "results"]
    assert plain["data"] == plain["features"] == plain["results"] == tmp_path / "data"
    assert other["data"] == tmp_path / "data" / "test"
    assert other["results"] == tmp_path / "mine"
    assert ProjectHooks()._folders() is None, "without a project there is nothing to lock"


def nodes(*pairs: tuple[str, str]) -> Pipeline:
    return Pipeline([node(lambda x: x, entry, f"out {tag}", name=tag, tags=tag) for tag, entry in pairs])


@pytest.mark.parametrize(
    ("pairs", "starts", "needs"),
    [
        ((), False, False),
        ((("training", "training_spec"),), True, True),
        ((("training", "params:training"),), False, False),
        ((("sanity", "dataset"),), False, True),
        ((("evaluation", "run"), ("sampling", "run")), False, False),
        ((("ingestion", "x"), ("training", "training_spec")), True, True),
    ],
)
def test_a_run_needs_the_devices_where_it_starts_ranks_or_checks_a_training(
    pairs: Any, starts: bool, needs: bool
) -> None:
    assert (launches(nodes(*pairs)), trains(nodes(*pairs))) == (starts, needs)


@pytest.mark.parametrize(
    ("number", "hosts", "shown"), [("1", "3", "host 1 of 3"), ("2", "3", "host 2 of 3"), ("0", "3", None)]
)
def test_the_pipelines_of_one_host_are_all_named(
    number: str, hosts: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNODES", hosts)
    monkeypatch.setenv("NODE_RANK", number)
    run = nodes(("training", "a"), ("validation", "b"), ("embedding", "c"), ("ingestion", "d"))
    refuse_on_other_hosts(nodes(("training", "a"), ("embedding", "c")))
    if shown is None:
        refuse_on_other_hosts(run)
        return
    with pytest.raises(ConfigurationError, match=rf"training on {shown}, found ingestion, validation\. Run the others"):
        refuse_on_other_hosts(run)


def test_the_first_cause_of_a_wrapped_error_is_found() -> None:
    first, middle, last = OSError("disk"), DatasetError("wrapped"), DatasetError("again")
    middle.__cause__, last.__cause__ = first, middle
    assert hooks_of_project._first(last) is hooks_of_project._first(first) is first


def test_what_is_saved_and_loaded_reaches_the_locks_and_the_record(hooks: Any) -> None:
    made, seen = hooks("test"), list[Any]()
    write = node(lambda x: x, "records", "latents", name="embed", tags="embedding")
    made._locks.saved = lambda name: seen.append(("locks", name))
    made._tracked = SimpleNamespace(
        saved=lambda name, data: seen.append(("saved", name, data)),
        loaded=lambda name, data: seen.append(("loaded", name, data)),
        close=lambda status, *, reason: seen.append((status, reason)),
    )
    made._locks.release = lambda: seen.append("released")
    made.before_dataset_loaded("records", write)
    assert made.loading == "records"
    made.after_dataset_loaded("records", "r")
    made.after_dataset_saved("latents", "l", write)
    made.on_pipeline_error(ValueError("why"))
    made._close_killed()
    assert seen == [
        ("loaded", "records", "r"), ("locks", "latents"), ("saved", "latents", "l"),
        "released", ("FAILED", "ValueError: why"), "released", ("KILLED", None),
    ]  # fmt: skip
    assert made._reported == set(), "latents are no report"


def test_parameters_of_the_run_of_a_member_and_of_the_comparison_are_merged(hooks: Any) -> None:
    """Another kind replaces a section as a layer does, and other keys join it."""
    made = hooks("test", training={"max_steps": 40}, model={"kind": "dit", "conditioning_dim": 8})
    member = {
        "name": "a",
        "env": "ar",
        "params": {"training.validate_every": 5, "model": {"kind": "causal", "dim": 96}},
    }
    (session,) = made._plan_comparison(comparison(members=[member], seeds=[3]))["sessions"]
    assert session["params"]["training"] == {"max_steps": 40, "validate_every": 5, "seed": 3}
    assert session["params"]["model"] == {"kind": "causal", "dim": 96}
    assert session["parameters"]["model"]["kind"] == "causal"


def test_a_member_without_layers_in_a_run_without_layers_is_the_base(hooks: Any) -> None:
    (session,) = hooks("base")._plan_comparison(comparison(members=[{"name": "a"}]))["sessions"]
    assert session["environment"] == "base"


def test_every_member_with_a_problem_is_named(hooks: Any) -> None:
    members = [{"name": "twice", "params": {"model": 5, "model.dim": 6}}, {"name": "seed", "params": {"results": "x"}},
               {"name": "layer", "env": "ra"}, {"name": "good", "env": "ar"}]  # fmt: skip
    with pytest.raises(ConfigurationError) as refused:
        hooks("test")._plan_comparison(comparison(members=members))
    named = [line.split("'")[1] for line in str(refused.value).splitlines() if line.startswith("comparison, member")]
    assert named == ["twice", "seed", "layer"]
