from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import json
import re
import shutil
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from mm_ldlm.core.config_errors import dataclasses_in
from omegaconf import OmegaConf

import mm_ldlm.app.parameters
from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.app.parameters import check_files, check_parameters, flatten
from mm_ldlm.core.config import PositiveInt, config
from mm_ldlm.core.errors import CheckpointError, ConfigurationError
from mm_ldlm.core.kinds import Kinds
from mm_ldlm.settings import CONFIG_LOADER_ARGS


@config
class Inner:
    beta: tuple[float, float]
    depth: PositiveInt = 2

    def __post_init__(self) -> None:
        if self.beta[1] < self.beta[0]:
            raise ValueError(f"beta must rise, found {self.beta[0]:g} and {self.beta[1]:g}")


@config
class Room:
    lr: float
    inner: Inner


@pytest.fixture
def one_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {"room": "here:Room"})
    monkeypatch.setattr(mm_ldlm.app.parameters, "_load", lambda path: Room)


GOOD: dict[str, Any] = {"seed": 1, "room": {"lr": 1e-3, "inner": {"beta": [0.9, 0.95]}}}


@pytest.mark.usefixtures("one_room")
def test_sections_become_types() -> None:
    room = check_parameters(GOOD)["room"]
    assert room == Room(lr=1e-3, inner=Inner(beta=(0.9, 0.95), depth=2))
    assert check_parameters({**GOOD, "data": "elsewhere"})["room"] == room


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rooom": {}}, r"parameter 'rooom' is not known\. Did you mean 'room'\?"),
        ({"seed": "seven"}, r"parameter 'seed': expected int, found 'seven'"),
        ({"seed": True}, r"parameter 'seed': expected int, found True"),
        ({"seed": -1}, r"parameter 'seed': expected a number of at least 0 and below 2\*\*63, found -1"),
        ({"room": {"lr": "fast", "inner": {"beta": [0.9, 0.95]}}}, r"parameter 'room\.lr'.*found 'fast'"),
        ({"room": {"lr": 1, "inner": {"beta": [1, 2], "detph": 3}}}, r"'room\.inner\.detph' is not.*mean 'depth'"),
        ({"room": {"lr": 1, "inner": {"beta": [1, 2], "depth": 0}}}, r"parameter 'room\.inner\.depth'.*found 0"),
        ({"room": {"lr": 1, "inner": {}}}, r"parameter 'room\.inner\.beta' is missing"),
        ({"room": {"lr": 1, "inner": {"beta": [1, True]}}}, r"parameter 'room\.inner\.beta\.1': .* number, found True"),
        ({"room": {"lr": 1, "inner": {"beta": [2, 1]}}}, r"parameter 'room\.inner': beta must rise, found 2 and 1\.$"),
        ({"room": 3}, r"parameter 'room': expected a mapping"),
    ],
)
def test_pitfall_15_keys_that_nothing_reads_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_parameters({**GOOD, **change})


@pytest.mark.usefixtures("one_room")
def test_a_missing_section_or_seed_is_named() -> None:
    with pytest.raises(ConfigurationError, match="parameter 'room' is missing"):
        check_parameters({"seed": 0})
    with pytest.raises(ConfigurationError, match="parameter 'seed' is missing"):
        check_parameters({"room": GOOD["room"]})


@pytest.mark.usefixtures("one_room")
def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as error:
        check_parameters({"sed": 0, "room": {"lr": "x", "iner": 0}})
    message = str(error.value)
    assert len(message.splitlines()) == 3
    assert all(f"'{key}'" in message for key in ("sed", "seed", "room.lr", "room.iner", "room.inner"))


def test_flatten_gives_dotted_leaves() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": {}}) == {"a.b.c": 1, "a.d": [1, 2], "e": {}}


# -- the project's own configuration -----------------------------------------------------------------------------------


def environments(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "conf").iterdir() if path.is_dir())


def parameters(project: Path, environment: str, **runtime: Any) -> dict[str, Any]:
    if not runtime:
        return copy.deepcopy(plain_parameters(project, environment))
    loader = LayeredConfigLoader(project / "conf", env=environment, runtime_params=runtime, **CONFIG_LOADER_ARGS)
    loaded: dict[str, Any] = loader["parameters"]
    return loaded


@functools.cache
def plain_parameters(project: Path, environment: str) -> dict[str, Any]:
    """An environment without parameters of the run; read once, because several tests go through all environments."""
    loaded: dict[str, Any] = LayeredConfigLoader(project / "conf", env=environment, **CONFIG_LOADER_ARGS)["parameters"]
    return loaded


AXES = {
    "Data": "data",
    "Encoder": "features",
    "Model": "results",
    "Size": "results",
    "Objective": "results",
    "Comparison": "results",
    "Host": None,
}
"""First word of an environment's files → the part of the artifacts' path that it sets (conf/base/globals.yml)."""
COMBINED = ("openwebtext_1024+qwen3_32+mmdit_892m+l2t+gpu8", "tatoeba+e5+ar+multinode+test")


def heads(project: Path, environment: str) -> list[str]:
    """The comments that the parameter files of an environment open with."""
    folder = project / "conf" / environment
    files = [file for file in sorted(folder.rglob("*.yml")) if "parameters" in file.relative_to(folder).as_posix()]
    return [re.split(r"^[^#\n]", file.read_text(), maxsplit=1, flags=re.MULTILINE)[0] for file in files]


def axis(project: Path, environment: str) -> str:
    return next((word for word in AXES for head in heads(project, environment) if head.startswith(f"# {word}:")), "")


def pairs(project: Path) -> list[str]:
    """Each environment with the first one of each other axis, in the order of the axes; `test` goes with each, last."""
    found = [name for name in environments(project) if name not in ("base", "local")]
    order = {name: [*AXES, ""].index(axis(project, name)) for name in found}
    leading = {next(name for name in found if order[name] == place) for place in order.values()}
    return [
        f"{first}+{second}"
        for first in found
        for second in found
        if order[first] < order[second] and {first, second} & leading
    ]


def layer(project: Path, environment: str) -> dict[str, Any]:
    """The parameters that an environment's own files set."""
    folder = project / "conf" / environment
    found: dict[str, Any] = {}
    for file in {*folder.rglob("parameters*.yml"), *folder.rglob("parameters*/*.yml")}:
        found = merge(found, yaml.safe_load(file.read_text()) or {})
    return found


def test_every_environment_parses_alone_and_with_one_of_each_other_axis(project: Path) -> None:
    given = {name: parameters(project, name) for name in (*environments(project), *COMBINED)}
    layers = {name: layer(project, name) for name in environments(project)}
    both = {pair: merge(given[pair.split("+")[0]], layers[pair.split("+")[1]]) for pair in pairs(project)}
    given |= {pair: OmegaConf.to_container(OmegaConf.create(values), resolve=True) for pair, values in both.items()}
    problems = []
    for environment, values in given.items():
        try:
            typed = check_parameters(values)
        except ConfigurationError as error:
            other_model = of_another_model(project, environment) and "model and an objective that fit" in str(error)
            other_vectors = of_other_vectors(project, environment) and "vectors, " in str(error)
            if not (other_model or other_vectors):
                problems.append(f"--env={environment}: {error}")
        else:
            assert not of_another_model(project, environment), environment
            assert not of_other_vectors(project, environment), environment
            assert set(typed) == set(mm_ldlm.app.parameters.SECTIONS), environment
    assert not problems, "\n".join(problems)


def of_another_model(project: Path, environment: str) -> bool:
    """Whether another model meets a size or an objective of base's multimodal model: refused, with the reason.

    `digits` is an environment of data that sets the model too.
    """
    if environment == "classification_trunk+mmdit_892m":
        return False  # a head on the features of either model
    axes = {axis(project, name) for name in environment.split("+")}
    other = "Model" in axes or "digits" in environment.split("+")
    return other and bool(axes & {"Size", "Objective"})


def of_other_vectors(project: Path, environment: str) -> bool:
    """Whether texts with vectors of their own meet an encoder that computes others."""
    names = environment.split("+")
    others = [name for name in names if axis(project, name) == "Encoder"]
    return bool({"own_vectors", "layout"} & set(names)) and bool(others)


def test_wikitext103_with_atat_has_the_published_values(project: Path) -> None:
    typed = check_parameters(parameters(project, "wikitext103+atat"))
    objective, training, sampler = typed["objective"], typed["training"], typed["sampling"].unconditional.text
    assert (objective.kind, objective.process.kind, objective.process.schedule.name) == (
        "adaptive_masking", "absorbing", "log_linear"
    )  # fmt: skip
    assert (objective.estimator.dim, objective.estimator.depth, objective.estimator.heads) == (256, 2, 4)
    assert (objective.importance, objective.importance_weight) == ("full", 0.1)
    assert (training.max_steps, training.batch.examples, training.validate_every) == (50_000, 64, 5_000)
    assert (objective.curriculum.pace, objective.curriculum.steps) == ("linear", None)  # all 50,000 steps
    assert (sampler.kind, sampler.steps) == ("ddpm_cache", 128)
    assert not typed["model"].time_conditioning  # ddpm_cache refuses a model that reads the time
    assert typed["sanity"].max_steps == 100
    starter = check_parameters(parameters(project, "atat"))
    mdlm = check_parameters(parameters(project, "mdlm"))
    assert starter["training"] == mdlm["training"]
    assert dataclasses.replace(starter["model"], time_conditioning=True) == mdlm["model"]


def test_pitfall_24_every_overlay_keeps_the_siblings_of_what_it_sets(project: Path) -> None:
    base = parameters(project, "base")
    flat = flatten(base)
    # A layer may also change the globals that base refers to.
    by_globals = {key for key, value in flatten(layer(project, "base")).items() if "${globals:" in str(value)}
    for environment in environments(project):
        sets = layer(project, environment)
        named = {*flatten(sets), *other_kinds(base, sets), *by_globals}
        merged = flatten(parameters(project, environment))
        touched = {key for key in flat.keys() | merged.keys() if flat.get(key) != merged.get(key)}
        assert all(any(key == name or key.startswith(f"{name}.") for name in named) for key in touched), environment


def other_kinds(lower: Any, upper: Any, prefix: str = "") -> set[str]:
    """Paths of the mappings that `upper` gives another kind."""
    found: set[str] = set()
    for key in lower.keys() & upper.keys():
        if isinstance(lower[key], dict) and isinstance(upper[key], dict):
            kinds = {part["kind"] for part in (lower[key], upper[key]) if "kind" in part}
            found |= {f"{prefix}{key}"} if len(kinds) == 2 else other_kinds(lower[key], upper[key], f"{prefix}{key}.")
    return found


def test_the_layer_test_keeps_the_data_of_the_layers_before_it(project: Path) -> None:
    for environment in environments(project):
        if axis(project, environment) == "Data":
            own, small = (parameters(project, name)["ingestion"] for name in (environment, f"{environment}+test"))
            assert small["sources"] == own["sources"], environment
    (starter,) = parameters(project, "test")["ingestion"]["sources"]
    assert starter == {"kind": "starter", "num_train": 240, "num_validation": 24, "num_test": 24}
    trial = check_parameters(parameters(project, "own_csv+test", ingestion={"path": "FILE", "text_column": "review"}))
    (source,) = trial["ingestion"].with_path_in_source().sources
    assert (source.kind, source.paths, source.columns) == ("csv", ("FILE",), ("review",))
    assert (trial["training"].max_steps, trial["model"].dim) == (12, 96)


def test_every_environment_sets_the_part_of_the_paths_that_its_axis_owns(project: Path) -> None:
    """Otherwise two environments that are combined, or run one after the other, overwrite each other's artifacts."""
    taken: dict[tuple[str, str], str] = {}
    paths = {"data", "features", "results"}
    assert set(yaml.safe_load((project / "conf/base/globals.yml").read_text())) == {*paths, "starter"}
    for environment in environments(project):
        if environment in ("base", "local"):
            continue
        file = project / "conf" / environment / "globals.yml"
        found = yaml.safe_load(file.read_text()) if file.exists() else {}
        parts = {name: part for name, part in found.items() if name in paths}
        key = "data" if environment == "test" else AXES[axis(project, environment)]
        assert set(parts) == ({key} if key else set()), environment
        for part in parts.items():
            assert part not in taken, (environment, taken.get(part))
            taken[part] = environment


def test_pitfall_15_a_misspelt_key_in_any_section_is_refused(project: Path) -> None:
    for section in mm_ldlm.app.parameters.SECTIONS:
        with pytest.raises(ConfigurationError, match=rf"parameter '{section}\.no_such_key' is not known"):
            check_parameters(parameters(project, "base", **{section: {"no_such_key": 1}}))


@pytest.mark.parametrize("section", ["sampling", "evaluation"])
def test_a_checkpoint_is_named_by_its_step(project: Path, section: str) -> None:
    for name in (500, "500", "step-00000500", "best"):
        typed = check_parameters(parameters(project, "base", **{section: {"checkpoint": name}}))
        assert typed[section].checkpoint == str(name)
    with pytest.raises(ConfigurationError, match=rf"parameter '{section}\.checkpoint'.*found 'newest'"):
        check_parameters(parameters(project, "base", **{section: {"checkpoint": "newest"}}))


def test_every_overlay_opens_with_its_axis_and_its_command(project: Path) -> None:
    for environment in environments(project):
        if environment in ("base", "local"):
            continue
        assert axis(project, environment) or environment == "test", environment
        head = next((head for head in heads(project, environment) if environment in layers_named_in(head)), None)
        assert head is not None, environment
        assert layers_named_in(head) <= set(environments(project)), environment
        for word in ("time", "score"):
            assert word in head.lower(), (environment, word)


def layers_named_in(text: str) -> set[str]:
    """Every layer of every `--env` of a text."""
    return {layer for environment in re.findall(r"--env=(\S+)", text) for layer in environment.split("+")}


@pytest.mark.parametrize(
    ("environment", "changes", "message"),
    [
        ("base", {"objective": {"process": {"kind": "uniform"}}},
         r"sampler 'confidence' needs a process whose only (.|\n)*'evaluation\.inversion\.sweep\.0\.sampler'"),
        ("base", {"objective": {"process": None}}, r"'objective\.process': expected a mapping with the key 'kind'"),
        ("base", {"objective": {"kind": "mm_ldlm.models.mmdit:MMDiTConfig"}},
         r"'objective\.kind': expected an objective, found mm_ldlm\.models\.mmdit:MMDiTConfig, which is not one"),
        ("base", {"objective": {"length_weight": 0}}, None),  # tasks without a length are skipped, and the rest runs
        ("base", {"objective": {"length_weight": 0}, "sampling": {"tasks": ["l2t"]}},
         r"contains 'l2t', but this run has not learned the distribution of lengths"),
        ("base", {"objective": {"length_weight": 0}, "sampling": {"length": 5}},
         r"'evaluation\.inversion\.sweep\.0\.length': this run has not learned the distribution of lengths"),
        ("base", {"evaluation": {"inversion": {"sweep": [
            {"label": "a", "sampler": {"kind": "confidence"}, "length": "top-0"}
        ]}}}, r"length must be .* found 'top-0'"),
        ("latent_dit", {"objective": {"condition_dropout": 0}, "sampling": {
            "tasks": ["infill"], "infill": {"texts": ["a [MASK]"], "latents_of": ["a b"]}
        }}, None),
        ("latent_dit", {"objective": {"condition_dropout": 0}, "sampling": {
            "tasks": ["infill"], "infill": {"texts": ["a [MASK]"]}
        }}, r"contains 'infill', but this run cannot fill masked positions of a text without a latent"),
    ],
)  # fmt: skip
def test_an_objective_and_what_is_asked_of_its_run_are_compared(
    project: Path, environment: str, changes: dict[str, Any], message: str | None
) -> None:
    given = merge(parameters(project, environment), changes)
    if message is None:
        check_parameters(given)
        return
    with pytest.raises(ConfigurationError, match=message):
        check_parameters(given)


@pytest.mark.parametrize(
    ("environment", "changes", "message"),
    [
        ("ar", {"unconditional": {"text": {"kind": "blocks", "inner": {"kind": "confidence"}}}},
         r"parameter 'sampling\.unconditional\.text': sampler 'blocks' needs a diffusion model"),
        ("uniform", {"unconditional": {"text": {"kind": "confidence"}}}, r"'confidence' needs a process whose only"),
        ("base", {"text": {"kind": "autoregressive"}},
         r"parameter 'sampling\.text': sampler 'autoregressive' needs a model that predicts the next token"),
        ("mdlm", {"unconditional": {"text": {"kind": "self_correction"}}}, r"needs a process whose noise includes"),
        ("sedd", {"unconditional": {"text": {"skip_idle": True}}}, r"skip_idle need a process whose only noise"),
        ("mdlm", {"unconditional": {"text": {"guidance": 2.0}}}, r"guidance 2\.0 needs an unconditional prediction"),
        ("base", {"text": {"guidance": 2.0}}, None),
        ("base", {"text": {"guidance": 2.0}, "infill": {"texts": ["a [MASK]"]}}, r"'sampling\.text': guidance 2\.0"),
        ("base", {"text": {"guidance": 2.0}, "infill": {"texts": ["a [MASK]"]}, "tasks": ["infill", "l2t"]},
         r"'sampling\.text': guidance 2\.0"),
        ("mdlm", {"tasks": ["l2t"]}, r"'sampling\.tasks' contains 'l2t', but this run cannot write texts from latents"),
        ("base", {"tasks": ["unconditional"], "unconditional": {"order": "together"}}, None),
        ("l2t", {"tasks": ["unconditional"]}, r"contains 'unconditional', but this run cannot"),
        ("latent_dit", {"tasks": ["l2t"]}, None),
        ("mdlm", {"tasks": []}, None),
        ("base", {"length": 100_000}, r"'sampling\.length': expected a text of at most \d+ tokens.*found .* 100000"),
        ("mdlm", {"unconditional": {"length": 100_000}}, r"'sampling\.unconditional\.length': expected a text of"),
        ("mdlm", {"unconditional": {
            "length": 100_000, "text": {"kind": "blocks", "inner": {"kind": "confidence"}}
        }}, None),
        ("base", {"unconditional": {
            "length": 100_000, "text": {"kind": "blocks", "inner": {"kind": "confidence"}}
        }}, r"'sampling\.unconditional\.length': expected a text of"),
        ("base", {"length": "top-0"}, r"length must be .* found 'top-0'"),
        ("base", {"text": {"kind": "mm_ldlm.sampling.gaussian:DdimConfig"}}, r"expected a text sampler, found .*Ddim"),
        ("base", {"text": {"kind": "blocks", "inner": None}}, r"'sampling\.text\.inner': expected a mapping"),
    ],
)  # fmt: skip
def test_tasks_and_samplers_that_do_not_fit_the_run_are_refused_before_it(
    project: Path, environment: str, changes: dict[str, Any], message: str | None
) -> None:
    given = merge(parameters(project, environment), {"sampling": changes})
    if changes.get("unconditional", {}).get("order") == "together":
        given = merge(given, {"sampling": {"unconditional": {
            "text": {"kind": "ancestral", "steps": 20}, "latent": {"steps": 20, "draws": 1}
        }}})  # fmt: skip
    if message is None:
        check_parameters(given)
        return
    with pytest.raises(ConfigurationError, match=message):
        check_parameters(given)


def test_samplers_of_the_evaluation_are_checked_where_the_run_inverts(project: Path) -> None:
    sweep = [{"label": "x", "sampler": {"kind": "autoregressive"}}]
    changes = {"evaluation": {"inversion": {"sweep": sweep, "reference": None}}}
    check_parameters(merge(parameters(project, "mdlm"), changes))
    with pytest.raises(ConfigurationError, match=r"'evaluation\.inversion\.sweep\.0\.sampler': sampler 'autoregr"):
        check_parameters(merge(parameters(project, "base"), changes))


def test_model_and_objective_are_those_of_a_run_that_is_chosen_by_its_path(project: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run-1" / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMPLETE").touch()
    other = parameters(project, "mdlm")
    config = {key: other[key] for key in ("model", "objective")}
    (tmp_path / "run-1" / "config.json").write_text(json.dumps(config))
    base = parameters(project, "base")
    assert check_parameters(base)["model"].kind != other["model"]["kind"]
    for path in (checkpoint, checkpoint.parents[1]):
        typed = check_parameters({**base, "run": str(path)})
        assert (typed["model"].kind, typed["objective"].kind) == (other["model"]["kind"], other["objective"]["kind"])
    asked = merge(base, {"run": str(checkpoint), "sampling": {"tasks": ["l2t"]}})
    with pytest.raises(ConfigurationError, match=r"'sampling\.tasks' contains 'l2t', but "):
        check_parameters(asked)
    twice = merge(base, {"run": str(checkpoint), "evaluation": {"checkpoint": "best"}})
    with pytest.raises(
        ConfigurationError, match=r"'evaluation\.checkpoint': expected latest, .* step-00000005, found 'best'"
    ):
        check_parameters(twice)
    with pytest.raises(ConfigurationError, match=r"parameter 'run': expected str, found 3"):
        check_parameters({**base, "run": 3})
    (tmp_path / "run-1" / "config.json").write_text("[]")
    with pytest.raises(
        CheckpointError, match=r"config\.json: expected the model and the objective of a run, found \[\]"
    ):
        check_parameters({**base, "run": str(checkpoint)})


@pytest.mark.parametrize(
    ("environment", "encoder", "message"),
    [
        ("base", {"path": "/nowhere"}, r"parameter 'encoder\.path': /nowhere does not exist"),
        ("http", {"key_variable": "NO_KEY"}, r"parameter 'encoder\.key_variable': .* variable NO_KEY, found none"),
    ],
)
def test_what_the_encoder_lacks_is_named_before_the_first_node(
    project: Path, environment: str, encoder: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    typed = check_parameters(parameters(project, environment, encoder=encoder))
    with pytest.raises(ConfigurationError, match=message):
        check_files(typed, read={"encoder", "embedding"})
    check_files(typed, read={"encoder"})  # training names the encoder and does not use it
    without = check_parameters(
        parameters(project, f"{environment}+mdlm" if environment != "base" else "mdlm", encoder=encoder)
    )
    check_files(without, read={"encoder", "embedding"})


def test_a_key_set_in_base_stands_in_one_file(project: Path, tmp_path: Path) -> None:
    """Kedro refuses the same key in two files of an environment; held here so that the refusal is not lost."""
    copy = tmp_path / "conf"
    shutil.copytree(project / "conf", copy)
    (copy / "base" / "parameters" / "again.yml").write_text("seed: 3\n")
    with pytest.raises(ConfigurationError, match=r"Duplicate keys.*seed"):
        parameters(tmp_path, "base")


def configurations(section: Any, found: set[Any]) -> set[Any]:
    """`found` with the classes of a section, or of all its kinds, and of every configuration inside."""
    if isinstance(section, Kinds):
        inner = [section.find(kind, at="") for kind in section.known]
    elif section in found:  # a kind may contain itself: the inner sampler of `blocks`
        return found
    else:
        found = found | {section}
        hints = typing.get_type_hints(section, include_extras=True)
        inner = [each for field in dataclasses.fields(section) for each in dataclasses_in(hints[field.name])]
    for each in inner:
        found = configurations(each, found)
    return found


def test_pitfall_15_every_key_is_read_somewhere(project: Path) -> None:
    reads = Counter[str]()
    for file in (project / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                reads[node.attr] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                reads[node.value] += 1  # getattr(config, "name"), dictionaries made of a config
    found: set[Any] = set()
    for path in mm_ldlm.app.parameters.SECTIONS.values():
        found = configurations(mm_ldlm.app.parameters._load(path), found)
    unread = [
        f"{cls.__name__}.{field.name}" for cls in found for field in dataclasses.fields(cls) if not reads[field.name]
    ]
    assert sorted(unread) == []


def test_a_link_to_nothing_is_named_as_such_and_not_proposed(project: Path, tmp_path: Path) -> None:
    (tmp_path / "own.txt").symlink_to("nothing")
    typed = check_parameters(parameters(project, "own_text", ingestion={"path": str(tmp_path / "own.txt")}))
    with pytest.raises(ConfigurationError, match="is a symbolic link to a file that does not exist") as caught:
        check_files(typed, read={"ingestion"})
    assert "Did you mean" not in str(caught.value)
