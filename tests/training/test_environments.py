"""Every environment of conf/ trains, is killed and resumed bit for bit, samples and evaluates; foreign options are
refused.

The parameters are those of the environment, resolved with the layer `test` above it. The data are the small synthetic
task of `helpers`, whatever corpus and encoder the environment names, and the model keeps its kind and its options but
not its size. The run is a single process on the CPU, also for environments that describe a host.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import helpers
import pytest

from mm_ldlm import MMLDLM
from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.app.parameters import check_parameters
from mm_ldlm.core.config import Kinds, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.dataset import commit
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.pipelines.evaluation import nodes as evaluation
from mm_ldlm.pipelines.sampling import nodes as sampling
from mm_ldlm.settings import CONFIG_LOADER_ARGS
from mm_ldlm.training.plan import plan
from mm_ldlm.training.sanity import SanityConfig, as_table, check_sanity
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.worker import train

CONF = Path(__file__).parents[2] / "conf"
COMBINED = ("wikitext103+atat", "openwebtext_1024+qwen3_32+mmdit_892m+l2t+gpu8")
"""Combinations that the environments' own files name, and that set what no single environment does."""
NORMAL = ("test", "atat")
"""Environments of the tests that are not slow: base's model, and a second network with a state of its own."""
SINGLE = sorted(
    folder.name for folder in CONF.iterdir() if folder.name not in ("base", "local") and any(folder.rglob("*.yml"))
)
EVERY = [name if name in NORMAL else pytest.param(name, marks=pytest.mark.slow) for name in (*SINGLE, *COMBINED)]
STEPS, KILLED_AFTER = 6, 4
"""Steps of the run, which has a checkpoint after every second one, and those done when it is killed."""
SMALL: dict[str, Any] = {
    "model": {"dim": 16, "depth": 2, "heads": 2, "conditioning_dim": 16, "length_hidden_dim": 16, "latent_tokens": 2},
    "objective": {"estimator": {"dim": 16, "depth": 1, "heads": 2}, "label": "label"},
}
"""Sizes, and the label of the synthetic task; only those that the kind has are set."""
QUICK: dict[str, Any] = {
    "max_steps": STEPS, "max_minutes": None, "max_tokens": None, "batch": {"tokens": None, "examples": 16},
    "checkpoint": {"every_steps": 2, "every_minutes": None, "background": False, "keep_last": 5,
                   "keep_every": None, "best_metric": None},
    "launch": {"processes": 1, "nodes": 1}, "device": "cpu", "preflight": False, "run_name": "run",
}  # fmt: skip


SAMPLE: dict[str, Any] = {
    "l2t": sampling.sample_l2t, "t2l": sampling.sample_t2l, "unconditional": sampling.sample_unconditional,
}  # fmt: skip
"""Tasks of the sampling pipeline that need no texts of the user."""


class Encoder:
    """Stands in for the encoder of the environment, whose weights may not be here."""

    dim = helpers.DIM

    def encode(self, sentences: Any) -> Any:
        return helpers.Rows(len(sentences)).field("latents", slice(None))


@cache
def parameters(environment: str) -> dict[str, Any]:
    """The parameters as Kedro resolves them, with `test` as the last layer."""
    return loaded(environment if environment == "test" else f"{environment}+test")


def loaded(layers: str) -> dict[str, Any]:
    found: dict[str, Any] = LayeredConfigLoader(CONF, env=layers, **CONFIG_LOADER_ARGS)["parameters"]
    return found


def shrunk(section: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The section with the sizes of those keys that it sets."""
    return merge(section, {key: value for key, value in sizes.items() if section.get(key) is not None})


def planned(environment: str, root: Path) -> tuple[TrainingSpec, Any]:
    """The spec of the environment for the synthetic task under `root`, and the dataset."""
    given = parameters(environment)
    check_parameters(given)
    helpers.write_stores(root, splits=("validation", "test", *["train"] * 6))
    model = shrunk(given["model"], SMALL["model"])
    objective = shrunk(given["objective"], SMALL["objective"])
    stores = {name: root / name for name in (*helpers.STORES, "records", "token_vectors")}
    dataset = commit(root / "dataset", stores=stores)
    spec = plan(
        dataset, runs=root / "runs", model=model, objective=objective, training=merge(given["training"], QUICK),
        encoder={"name": "none"}, seed=int(given["seed"]), tracking={},
    )  # fmt: skip
    return spec, dataset


def train_until_killed(spec: TrainingSpec, root: Path) -> None:
    """Train in this process, which ends by SIGKILL at the beginning of a step."""

    def fatal(objective: Any) -> Any:
        """The same object, because an objective may be a module with parameters in the checkpoint."""
        kind = objective.kind

        def kind_or_kill(generator: Any, *, step: int) -> Any:
            if step == KILLED_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
            return kind(generator, step=step)

        objective.kind = kind_or_kill
        return objective

    train(spec, root=root, wrap_objective=fatal)


def kill_while_training(spec: TrainingSpec, root: Path) -> None:
    """Train in a process of its own until it is killed; a server that has imported torch starts the processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mm_ldlm.training.worker", "mm_ldlm.models.mmdit", "mm_ldlm.objectives.multimodal"])
    process = context.Process(target=train_until_killed, args=(spec, root))
    process.start()
    process.join(timeout=300)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("environment", EVERY)
def test_it_trains_is_killed_and_resumed_bit_for_bit_samples_and_evaluates(environment: str, tmp_path: Path) -> None:
    spec, dataset = planned(environment, tmp_path)
    for root in ("whole", "parts"):
        (tmp_path / root).mkdir()
    whole = train(spec, root=tmp_path / "whole")
    kill_while_training(spec, tmp_path / "parts")
    left = sorted(path.name for path in (tmp_path / "parts" / "run" / "checkpoints").glob("step-*"))
    assert left[-1] == f"step-{KILLED_AFTER:08d}", "the kill comes after a checkpoint and before the end"
    assert train(spec, root=tmp_path / "parts").ending == "finished"
    for name in ("model", "ema", "optimizer"):
        a, b = (helpers.tensors(tmp_path / root / "run", STEPS, name) for root in ("whole", "parts"))
        assert helpers.same_bits(a, b), name

    given = parameters(environment)
    run = MMLDLM.from_run(whole.directory, encoder=Encoder())
    if "classify" in run.capabilities:  # it writes nothing, and has a suite of its own
        metrics = evaluation.evaluate_classification(run, dataset, given["evaluation"], seed=0)
        assert "skipped" not in metrics
        return
    if "image_text" in run.capabilities:
        assert run.images.generate(2, steps=2).pixels.shape == (2, *helpers.IMAGE)
    else:
        tasks = given["sampling"]["tasks"] or tuple(SAMPLE)
        sampled = [task for task in tasks if task in SAMPLE and task in run.capabilities]
        assert sampled, "the environment names a task that its run can do"
        assert len(SAMPLE[sampled[-1]](run, dataset, quick_sampling(given["sampling"]), seed=0))
    rows, metrics = evaluation.evaluate_likelihood(run, dataset, given["evaluation"], seed=0)
    if "score" in run.capabilities or "score_given_latent" in run.capabilities:
        assert len(rows)
        assert rows.select_dtypes("number").notna().all(axis=None)
    else:
        assert "skipped" in metrics


@pytest.mark.parametrize("environment", EVERY)
def test_every_learnable_weight_receives_a_gradient_and_the_other_sanity_checks_pass(
    environment: str, tmp_path: Path
) -> None:
    """All but the overfitting, for which nine steps are too few."""
    spec, _ = planned(environment, tmp_path)
    (tmp_path / "runs").mkdir(exist_ok=True)
    found = check_sanity(spec, root=tmp_path / "runs", config=SanityConfig(max_steps=9, max_seconds=120))
    assert {"gradients", "movement", "frozen"} <= {check.name for check in found}
    rest = [check for check in found if check.name != "overfit one batch"]
    assert all(check.ok for check in rest), as_table(rest)


def quick_sampling(section: dict[str, Any]) -> dict[str, Any]:
    """The environment's samplers with fewer rows and no search."""
    few = {"rows": 4, "search": {"candidates": 1, "rounds": 0}, "unconditional": {"count": 3}, "neighbours": False}
    return merge(section, few)


@pytest.mark.parametrize(("section", "kinds"), [("model", MODELS), ("objective", OBJECTIVES)])
@pytest.mark.parametrize("environment", [*SINGLE, *COMBINED])
def test_options_of_other_families_are_refused(environment: str, section: str, kinds: Kinds) -> None:
    given = parameters(environment)[section]
    keys = {kind: _keys(kinds, kind) for kind in kinds.known}
    own = keys[given["kind"]]
    foreign = sorted({key for kind in keys for key in keys[kind]} - own)
    assert foreign
    for key in foreign:
        with pytest.raises(ConfigurationError, match=rf"'{section}\.{key}' is not known"):
            parse_kind(kinds, {**given, key: 1}, at=section)


@cache
def _keys(kinds: Kinds, kind: str) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(parse_kind(kinds, {"kind": kind}, at="x")))
