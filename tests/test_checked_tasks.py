"""What the check of all parameters asks of a run, task by task, and which words its refusals contain."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mm_ldlm.app.parameters
from mm_ldlm.app.config_loader import LayeredConfigLoader, merge
from mm_ldlm.app.parameters import check_files, check_machine, check_parameters, cross_checks, flatten
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.evaluation.config import EvaluationConfig
from mm_ldlm.sampling.config import TASKS, SamplingConfig
from mm_ldlm.settings import CONFIG_LOADER_ARGS

BLOCKS = {"kind": "blocks", "inner": {"kind": "confidence"}}


@functools.cache
def loaded(project: Path, environment: str) -> dict[str, Any]:
    found: dict[str, Any] = LayeredConfigLoader(project / "conf", env=environment, **CONFIG_LOADER_ARGS)["parameters"]
    return found


@pytest.mark.parametrize(
    ("environment", "sampling", "message"),
    [
        ("digits", {"images": {"length": 100_000, "caption": {"kind": "confidence"}}},
         r"^parameter 'sampling\.images\.length': expected a text of at most \d+ tokens"),
        ("digits", {"length": 100_000}, None),
        ("digits", {"images": {"length": 1, "caption": {"kind": "confidence"}}}, None),
        ("base", {"unconditional": {"order": "latent_first", "length": 100_000, "text": BLOCKS}}, None),
        ("base", {"unconditional": {"order": "text_first", "length": 100_000, "text": BLOCKS}},
         r"^parameter 'sampling\.unconditional\.length': expected a text of at most"),
        ("base", {"length": 100_000, "text": BLOCKS, "unconditional": {"length": 3}}, None),
        ("own_vectors", {"infill": {"texts": ["a [MASK]"]}}, None),
        ("own_vectors", {"infill": {"texts": ["a [MASK]"], "latents_of": ["a b"]}},
         r"^parameter 'sampling\.infill\.latents_of': the encoder embeds these texts, but the vectors of the encoder"),
        ("own_vectors", {"interpolate": {"starts": ["a"], "ends": ["b"]}},
         r"^parameter 'sampling\.interpolate\.starts': the encoder embeds these texts"),
        ("own_vectors", {"l2t": {"texts": ["a"]}, "tasks": ["unconditional"]}, None),
    ],
)  # fmt: skip
def test_what_a_task_of_the_sampling_cannot_do_is_refused_under_its_own_key(
    environment: str, sampling: dict[str, Any], message: str | None, project: Path
) -> None:
    given = merge(loaded(project, environment), {"sampling": sampling})
    if message is None:
        check_parameters(given)
        return
    with pytest.raises(ConfigurationError, match=message) as error:
        check_parameters(given)
    assert len(str(error.value).splitlines()) == 1


class Capabilities:
    """Capabilities that refuse what a test names, and note every question."""

    joint_orders = ("text_first", "latent_first")
    process = None
    fields = stores = ()

    def __init__(self, **refused: Any) -> None:
        self.refused, self.asked = refused, []  # type: ignore[var-annotated]

    def capabilities(self, model: Any) -> Capabilities:
        self.asked.append(model)
        return self

    def refuse_task(self, use: str, *, order: str, length: Any) -> str | None:
        self.asked.append((use, order, length))
        return self.refused.get(use)

    def refuse_sampler(self, sampler: Any, use: str, *, given_latent: bool) -> str | None:
        self.asked.append((sampler.kind, use, given_latent))
        return self.refused.get(sampler.kind)

    def refuse_length(self, length: Any, use: str, *, order: str) -> str | None:
        self.asked.append((length, use))
        return self.refused.get("length")


@pytest.fixture
def typed(project: Path) -> dict[str, Any]:
    """The sections of base, with other samplers, lengths and texts for each task."""
    text, free = {"kind": "confidence", "steps": 3}, {"kind": "ancestral", "steps": 5}
    sampling = merge(loaded(project, "base")["sampling"], {
        "text": text, "length": 7, "infill": {"texts": ["a"], "latents_of": ["b"]},
        "l2t": {"texts": ["a"]}, "edit": {"sources": ["a"], "targets": ["b"]},
        "interpolate": {"starts": ["a"], "ends": ["b"]}, "unconditional": {"text": free, "length": 9},
    })  # fmt: skip
    sweep = [{"label": "x", "sampler": {"kind": "threshold"}, "length": 4}]
    evaluation = merge(loaded(project, "base")["evaluation"], {"inversion": {"sweep": sweep, "reference": None}})
    found = check_parameters(loaded(project, "base"))
    return found | {
        "sampling": parse(SamplingConfig, sampling, at="sampling"),
        "evaluation": parse(EvaluationConfig, evaluation, at="evaluation"),
    }


def test_each_task_is_compared_with_its_own_sampler_and_length(typed: dict[str, Any]) -> None:
    asked = Capabilities()
    assert cross_checks({**typed, "objective": asked}) == []
    assert asked.asked.pop(0) is typed["model"]
    sampling = typed["sampling"]
    uses = [sampling.use(task) for task in TASKS]
    assert [entry for entry in asked.asked if entry[0] in uses and len(entry) == 3] == [
        *((sampling.use(task), "text_first", sampling.length_of(task)) for task in TASKS), ("l2t", "text_first", 7)
    ]  # fmt: skip
    assert {entry for entry in asked.asked if entry[0] in ("confidence", "ancestral", "threshold")} == {
        ("confidence", "l2t", True), ("confidence", "infill_given_latent", True), ("confidence", "edit", True),
        ("confidence", "interpolate", True), ("ancestral", "unconditional", False), ("threshold", "l2t", True),
    }  # fmt: skip
    assert (4, "l2t") in asked.asked


@pytest.mark.parametrize(
    ("refused", "tasks", "problems"),
    [
        ({"confidence": "it is slow."}, None, ["parameter 'sampling.text': it is slow."]),
        ({"ancestral": "it is slow."}, None, ["parameter 'sampling.unconditional.text': it is slow."]),
        ({"threshold": "it is slow."}, None, ["parameter 'evaluation.inversion.sweep.0.sampler': it is slow."]),
        ({"length": "it is long."}, None, ["parameter 'evaluation.inversion.sweep.0.length': it is long."]),
        ({"l2t": "it has none.", "threshold": "x", "length": "x"}, None, []),
        ({"edit": "it cannot."}, None, []),
        ({"edit": "it cannot."}, ["l2t"], []),
        ({"edit": "it cannot.", "confidence": "it is slow."}, ["edit", "unconditional"],
         ["parameter 'sampling.tasks' contains 'edit', but it cannot. Remove the task, or set sampling.tasks to null, "
          "which stands for every task that the run supports."]),
    ],
)  # fmt: skip
def test_only_what_is_asked_of_the_run_is_refused(
    refused: dict[str, str], tasks: list[str] | None, problems: list[str], typed: dict[str, Any]
) -> None:
    sampling = dataclasses.replace(typed["sampling"], tasks=None if tasks is None else tuple(tasks))
    assert cross_checks({**typed, "sampling": sampling, "objective": Capabilities(**refused)}) == problems


@pytest.mark.parametrize("section", ["model", "objective", "sampling", "evaluation", "tokenizer"])
def test_sections_are_compared_where_all_of_them_are_there(section: str, typed: dict[str, Any]) -> None:
    without = {key: value for key, value in typed.items() if key != section}
    if section != "objective":
        without["objective"] = SimpleNamespace(capabilities=lambda model: pytest.fail("asked"))
    assert cross_checks(without) == []


# -- a run that is chosen by its path ----------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["sampling", "evaluation"])
def test_a_path_to_a_checkpoint_leaves_no_choice_to_a_section(section: str, project: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run-1" / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMPLETE").touch()
    base = loaded(project, "base")
    (tmp_path / "run-1/config.json").write_text(json.dumps({key: base[key] for key in ("model", "objective")}))
    chosen = merge(base, {section: {"checkpoint": "best"}})
    with pytest.raises(ConfigurationError, match=rf"^parameter '{section}\.checkpoint': expected latest, .* 'best'"):
        check_parameters({**chosen, "run": str(checkpoint)})
    check_parameters({**chosen, "run": str(tmp_path / "run-1")})
    (tmp_path / "run-1/config.json").write_text(json.dumps({"model": {"kind": "nothing"}, "objective": {}}))
    with pytest.raises(
        ConfigurationError, match=rf"'model \(of the run {tmp_path / 'run-1'}\)\.kind': expected a model"
    ):
        check_parameters({**base, "run": str(tmp_path / "run-1")})


# -- files and devices -------------------------------------------------------------------------------------------------


def test_only_files_of_this_machine_are_looked_for(project: Path, tmp_path: Path) -> None:
    """A set of the hub has a name there, and `**` goes into folders at any depth."""
    sets = [{"format": "hub", "name": "mine", "path": "owner/no-such-file"}, {"format": "starter", "name": "starter"}]
    evaluation = merge(loaded(project, "base")["evaluation"], {"sts": {"sets": sets}})
    check_files({"evaluation": parse(EvaluationConfig, evaluation, at="evaluation")}, read={"evaluation"})
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c.npy").touch()
    for path, there in (
        (f"{tmp_path}/**/c.npy", True),
        (f"{tmp_path}/**/d.npy", False),
        (f"{tmp_path}/a/*/c.n?y", True),
    ):
        sampling = merge(loaded(project, "base")["sampling"], {"l2t": {"files": [path]}})
        found = {"sampling": parse(SamplingConfig, sampling, at="sampling")}
        if there:
            check_files(found, read={"sampling"})
        else:
            with pytest.raises(ConfigurationError, match=r"^parameter 'sampling\.l2t\.files\.0': "):
                check_files(found, read={"sampling"})


@pytest.mark.parametrize(
    ("section", "words"),
    [("training", "auto or cpu"), ("encoder", "auto or cpu"), ("sampling", "null or cpu"),
     ("evaluation", "null or cpu")],
)  # fmt: skip
def test_a_device_that_is_absent_is_replaced_by_a_value_that_its_key_accepts(
    section: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    sections = {name: SimpleNamespace(device=None) for name in ("training", "encoder", "sampling", "evaluation")}
    sections[section].device = "cuda:2"
    with pytest.raises(ConfigurationError) as error:
        check_machine(sections, read={section, "embedding"}, trains=True)
    assert str(error.value) == (
        f"parameter '{section}.device': cuda:2 is not on this machine, which has 2 GPUs. Set it to {words}."
    )


def test_the_memory_is_compared_with_the_smallest_data_that_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("mm_ldlm.training.memory.smallest_shape", lambda **given: asked.append(given) or "the shape")
    monkeypatch.setattr(
        "mm_ldlm.training.memory.refuse_beyond_memory", lambda *given, **named: asked.append((given, named))
    )
    monkeypatch.setattr("mm_ldlm.training.memory.refuse_large_batch", asked.append)
    training = SimpleNamespace(device="cpu")
    typed = {
        "training": training, "model": "the model", "tokenizer": SimpleNamespace(max_length=31),
        "encoder": SimpleNamespace(dim=17, device="cpu"), "images": SimpleNamespace(size=(2, 3, 1)),
    }  # fmt: skip
    check_machine(typed, read={"training", "model"}, trains=True)
    assert asked == [
        {"max_length": 31, "latent_dim": 17, "image_size": (2, 3, 1)},
        (("the model", "the shape", training), {"tokens": 0}),
    ]
    asked.clear()
    check_machine(typed, read={"encoder", "embedding"}, trains=True)
    assert asked == [typed["encoder"]]
    for read, trains in (({"training", "model"}, False), ({"training"}, True), ({"model"}, True), (set(), True)):
        asked.clear()
        check_machine(typed, read=read, trains=trains)
        assert asked == []


def test_parameters_are_flattened_to_their_leaves() -> None:
    assert flatten({"a": {"b": {}, "c": {"token": "x"}}, "d": [{"password": "y"}], "password": ["z"]}, prefix="p.") == {
        "p.a.b": {}, "p.a.c.token": "***", "p.d": [{"password": "***"}], "p.password": ["***"]
    }  # fmt: skip
    assert mm_ldlm.app.parameters._load("mm_ldlm.sampling.config:TASKS") is TASKS
