"""Target: parameters and configuration files; what is accepted before the first node must also work in the worker."""

import copy
import dataclasses
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from . import material
from .damage import HOSTILE, damage_json
from .oracle import Wrong, check_result

CHOSEN: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("training.device", ("banana", "meta", "cuda:99", "cuda", "CPU", "", "cpu:1", "mps")),
    ("training.run_name", ("logs", "training_spec.json", "a" * 300, "x\x00", "a b", ".hidden", "\ud800", "é", "-",
    "run\n", "con", 5, "..\\x")),
    ("training.resume", ("no/such/run", "/etc", "../..", "", "x" * 5000, "\x00", "auto ", "AUTO", 3)),
    ("training.init_from", ("no/such", "/etc/hostname", "", "\x00", "~")),
    ("training.max_steps", (0, -1, 10**12, 2**63, 1e9, 1.5, "3", None)),
    ("training.epochs", (0, 1, 10**12, 2**63, 1.5, "3", None)),
    ("training.validation_batch", (10**8, 1, 0)),
    ("training.show_every_seconds", (1e-320, 1e308, 0, "1m")),
    ("training.launch.keep_logs", (0, 1, 10**12, 2**63)),
    ("training.threads", (0, 10**9, 2**31, -1)),
    ("training.batch.tokens", (1, 10**12, 2**63, 0)),
    ("training.batch.examples", (10**9, 2**40, 1)),
    ("training.batch.examples_per_device", (10**8, 1, 0, 2**40)),
    ("training.batch.tokens_per_device", (10**8, 1, 0, 2**40)),
    ("training.batch.accumulation", (10**9, 7, 2**40)),
    ("training.batch.length_multiple", (10**9, 2**31, 3)),
    ("training.batch.example_multiple", (10**9, 7)),
    ("training.batch.prefetch", (10**9, 0)),
    ("training.optimizer.lr", (1e6, 1e30, 1e308, 1e-320, 0, -1, "1e-3", float("nan"))),
    ("training.optimizer.betas", ([1, 1], [0, 0], [0.9], [0.9, 0.95, 1], "x", [2, 2])),
    ("training.optimizer.eps", (1e308, 1e-320)),
    ("training.optimizer.weight_decay", (1e30, 1e308)),
    ("training.optimizer.clip", (1e-320, 1e308)),
    ("training.ema.decay", (1, 0)),
    ("training.checkpoint.every_minutes", (1e-320, 1e308)),
    ("training.checkpoint.keep_last", (10**9, 1)),
    ("training.guard.spike_window", (10**9, 2**40, 1)),
    ("training.collective_timeout_minutes", (1e-9, 1e308, 1e12)),
    ("training.max_minutes", (1e-320, 1e308)),
    ("training.seed", (2**63, 2**64, 10**30, -1)),
    ("seed", (2**32, 2**63, 2**64, 10**30, 1.0, "7", None)),
    ("model.dim", (2147483648, 2**40, 1, 7, 10**6, 3)),
    ("model.depth", (10**9, 2**31, 1)),
    ("model.heads", (10**9, 5, 96)),
    ("model.mlp_ratio", (1e308, 1e-308, 0.001, 1e9)),
    ("model.dropout", (1, 0.999, -0.1)),
    ("model.latent_tokens", (10**9, 2**31)),
    ("objective.mode", ("l2t", "nonsense", "mixed", None)),
    ("objective.latent_weight", (1e308, 0, 1e38)),
    ("sampling.text.steps", (10**9, 2**63, 0, 1)),
    ("sampling.text.temperature", (1e30, 1e-30, 1e308, 1e-320, 1e38, 0)),
    ("sampling.text.top_p", (1e-320, 0, 1)),
    ("sampling.text.top_k", (10**12, 1)),
    ("sampling.text.guidance", (1e30, 1e308, -1e30, 0)),
    ("sampling.latent.steps", (10**9, 1)),
    ("sampling.latent.draws", (10**9, 2**40)),
    ("sampling.latent.guidance", (1e30, 1e38)),
    ("sampling.latent.eta", (1e30, 5)),
    ("sampling.search.candidates", (10**9, 2)),
    ("sampling.search.rounds", (10**9, 1)),
    ("sampling.length", (10**9, "top-2", 0, -1, "argmax ")),
    ("sampling.batch_tokens", (10**15, 1)),
    ("ingestion.language_filter", ("os:abort", "os:getcwd", "builtins:len", "json:loads", "x", ":", "a:b:c",
    "sys:exit", "antigravity:x")),
    ("ingestion.shard_rows", (1, 2**63, 10**18)),
    ("ingestion.sources", ([], [{}], [{"kind": "text"}], [{"kind": "starter", "num_train": 10**12}],
    [{"kind": "starter", "weight": 1e-320}],
                           [{"kind": "starter", "max_samples": 2**70}], [{"kind": "starter"}] * 3,
                           {"kind": "starter"})),
    ("tokenizer.max_length", (10**9, 2**31, 1, 0)),
    ("tokenizer.min_length", (10**9,)),
    ("tracking.uri", ("", "http://", "sqlite:///", "x" * 5000, "\x00", "file:///etc/hostname",
    "http://user:secret@127.0.0.1:9")),
)  # fmt: skip
"""Values that a check of types alone lets through, by parameter."""
FILES = (
    b"model: {dim: 32", b"- a\n- b\n", b"text", b"", b"\xff\xfe", b"a: \t- b", b"model: &a {x: *a}\n",
    b"model: ${model}\n", b"model: ${oc.env:HOME}\n",
    b"model: !!python/object/apply:os.abort []\n", b"model: {dim: 32}\nmodel: {dim: 64}\n", b"1: 2\n", b"null: 1\n",
    b"? [a]\n: b\n",
    b"seed: 0x10\n", b"seed: 1_000\n", b"seed: 2024-01-01\n", b"seed: !!binary aGk=\n", b"training: null\n",
    b"model:\n", b"x: " + b"[" * 3000,
    b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: &d [*c,*c]\nmodel: {dim: [*d,*d]}\n", b"\x00", b"seed: .nan\n",
    b"seed: 1e400\n",
    b"model: {<<: {dim: 32}}\n", b"seed: ${globals:nothing}\n", b"seed: ${runtime_params:x}\n",
    b"seed: ${no.such:1}\n", b"%YAML 9.9\n---\na: 1\n",
    b"--- \nseed: 1\n--- \nseed: 2\n", b"training:\n  ? max_steps\n", "größe: 1\n".encode("latin-1"),
    b"model.dim: 32\n", b"seed: \"\\ud800\"\n",
)  # fmt: skip
FILE_NAMES = ("parameters.yml", "parameters/x.yml", "globals.yml", "catalog.yml", "params.yml", "parameters.yaml",
"parameters.json", "logging.yml",
              "credentials.yml", "Parameters.yml", "parameters_x.yml", "sub/parameters.yml")  # fmt: skip
OVERRIDES = (
    "data={a}", "data=s3://bucket/x", "data=http://[::1", "seed=", "=", "model.dim", "model.dim=1=2", "a=[", "a={b: ",
    "x=" + "[" * 2000, "model={dim: 3", "seed=1,seed=2", "model.dim=3,model=4", "a" * 9000, "seed=\x00", "seed=\ud800",
    "seed=*a", "seed=&a 1", "a=${b}", "a=${oc.env:HOME}", "a=!!python/object:os.abort", "a.b.c.d.e=1,a.b=2", ",,,", "{", "}",
    '{"model": {"dim": 3}}', '{"seed": NaN}', "a." * 2000 + "b=1", "a." * 900 + "b=1," + "a." * 900 + "c=2",
    "tracking.uri=user:PASSWORD@host", "tracking.uri=http://user:a PASSWORD@host/",
    "tracking.uri=http://user:PASSWORD\uff20host", "tracking.uri=http://user:PASSWORD&#64;host",
)  # fmt: skip
"""Texts of `--params`"""
COMPONENTS = {
    "raises": "raise KeyError('import')", "exits": "raise SystemExit(3)", "nothing": "",
    "no_class": "Odd = 3", "odd_annotations": "class Odd:\n    x: 'no.such.Type' = 1",
    "property": "from mm_ldlm.core.typed import config\n@config\nclass Odd:\n    kind: str = 'odd'\n    @property\n"
    "    def build(self):\n        raise RuntimeError('property')",
    "odd_exception": "class Quiet(Exception):\n    def __str__(self):\n        raise ValueError('str')\nraise Quiet",
    "long_exception": "raise ValueError('x' * 10**6)", "metaclass": "class M(type):\n    def __getattr__(cls, name):\n"
    "        raise RuntimeError(name)\nclass Odd(metaclass=M):\n    pass",
    "post_init": "from mm_ldlm.core.typed import config\n@config\nclass Odd:\n    kind: str = 'odd'\n"
    "    def __post_init__(self):\n        raise OSError('odd')",
}  # fmt: skip
"""Modules of users, whose class `Odd` is chosen as a component"""
COMPONENT_KEYS = ("model", "objective", "encoder", "sampling.text", "sampling.latent", "objective.process")


def prepare() -> Any:
    """Load the parameters of `--env=test` and the model that samplers are tried on."""
    from mm_ldlm.app import parameters
    from mm_ldlm.app.config_loader import LayeredConfigLoader
    from mm_ldlm.data.corpus import ingestion  # noqa: F401
    from mm_ldlm.settings import CONFIG_LOADER_ARGS
    from mm_ldlm.training import worker  # noqa: F401

    loaded = LayeredConfigLoader(str(material.PROJECT / "conf"), env="test", **CONFIG_LOADER_ARGS)["parameters"]
    parameters.check_parameters(loaded)
    return {"plain": json.loads(json.dumps(loaded)), "model": material.model()}


def generate(draw: random.Random) -> dict[str, Any]:
    how = draw.choice(("chosen",) * 5 + ("damage", "damage", "section", "key", "file", "file", "override", "component"))
    key, values = draw.choice(CHOSEN)
    more: dict[str, dict[str, Any]] = {
        "chosen": {"key": key, "value": draw.choice(values)},
        "file": {"name": draw.choice(FILE_NAMES), "text": draw.choice(FILES).decode("latin-1"), "env": draw.choice(("odd", "test+odd"))},
        "override": {"text": draw.choice(OVERRIDES)},
        "component": {"code": draw.choice(list(COMPONENTS)), "key": draw.choice(COMPONENT_KEYS)},
    }  # fmt: skip
    return {"how": how, "draw": draw.randrange(2**32), **more.get(how, {})}


def run(parameters: dict[str, Any], folder: Path, pristine: dict[str, Any]) -> str:
    from mm_ldlm.app.config_loader import merge
    from mm_ldlm.app.parameters import check_machine, check_parameters
    from mm_ldlm.app.params_option import parse_params
    from mm_ldlm.core import MMLDLMError, TrainingDiverged
    from mm_ldlm.training.initial import refuse_missing_origin

    how, key, draw = parameters["how"], parameters.get("key", ""), random.Random(parameters["draw"])
    plain = copy.deepcopy(pristine["plain"])
    if how == "file":
        plain = load_file(parameters, folder)
    elif how == "override":
        plain = merge(plain, parse_params(parameters["text"]))
    elif how == "component":
        (folder / "odd_component.py").write_text(COMPONENTS[parameters["code"]])
        sys.path.insert(0, str(folder))
        place(plain, key, {"kind": "odd_component:Odd"})
    elif how == "chosen":
        place(plain, key, parameters["value"])
    else:
        key = change(plain, how, draw)
    typed = check_parameters(plain)
    check_machine(typed, read=typed.keys(), unused={"encoder", "training"})
    refuse_missing_origin(typed["training"], runs=folder)
    try:
        use(key, typed, folder, pristine["model"])
    except TrainingDiverged:
        return "refused"  # a matter of the numbers, not of a single parameter
    except MMLDLMError as error:
        if how == "chosen" and key.rpartition(".")[2] not in str(error):
            found = f"{key} = {parameters['value']!r:.80} was accepted, then: {type(error).__name__}: {error}"
            raise Wrong("late refusal", found) from None
        raise
    return "success"


def place(plain: dict[str, Any], key: str, value: Any) -> None:
    """Set a parameter by its path, and what excludes it to null."""
    *path, last = key.split(".")
    for name in path:
        plain = plain[name]
    if key.startswith("training.batch.") and last in ("examples", "examples_per_device", "tokens_per_device"):
        plain |= {name: None for name in ("tokens", "examples") if name != last}
    plain[last] = value


def change(plain: dict[str, Any], how: str, draw: random.Random) -> str:
    """Change a section in place; return its name."""
    section = draw.choice([name for name in plain if name != "comparison"])
    if how == "section":
        plain[section] = draw.choice(HOSTILE)
    elif how == "damage":
        plain[section] = damage_json(plain[section], draw)
    else:
        odd: Any = (1, None, True, 1.5, (1, 2), "", "\ud800", "x" * 5000, "a.b", "kind", b"x", "\x00", "__class__")
        target = plain if draw.random() < 0.3 or not isinstance(plain[section], dict) else plain[section]
        target[draw.choice(odd)] = draw.choice(HOSTILE)
    return section


def load_file(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Load an environment that contains one odd file, or a pipe under its name."""
    from kedro.config import MissingConfigException

    from mm_ldlm.app.config_loader import LayeredConfigLoader
    from mm_ldlm.settings import CONFIG_LOADER_ARGS

    (folder / "conf").mkdir()
    for name in ("base", "test"):
        (folder / "conf" / name).symlink_to(material.PROJECT / "conf" / name)
    path = folder / "conf" / "odd" / parameters["name"]
    path.parent.mkdir(parents=True)
    if parameters["draw"] % 8:
        path.write_bytes(parameters["text"].encode("latin-1"))
    else:
        os.mkfifo(path)
    loader = LayeredConfigLoader(str(folder / "conf"), env=parameters["env"], **CONFIG_LOADER_ARGS)
    for kind in ("globals", "catalog", "credentials"):
        try:
            loader[kind]
        except MissingConfigException:
            continue
    return loader["parameters"]


def use(key: str, typed: dict[str, Any], folder: Path, model: Any) -> None:
    """Do what a worker would do with what was accepted, with everything that the case did not choose made small."""
    section = key.partition(".")[0]
    if section in ("training", "model", "objective", "seed"):
        _train(key, typed, folder)
    elif section == "sampling":
        sampling, one = typed["sampling"], typed["sampling"].unconditional
        latents = np.eye(model.dim, dtype=np.float32)[:2]
        search = sampling.search if sampling.search.enabled else None
        check_result(model.invert(latents, sampler=sampling.text, length=sampling.length, search=search))
        check_result(model.embed(["the dog"], sampler=sampling.latent))
        check_result(model.generate(2, order=one.order, sampler=one.text, latent_sampler=one.latent, length=one.length))
    elif section in ("ingestion", "tokenizer"):
        from mm_ldlm.data.corpus.ingestion import ingest

        ingest(
            typed["ingestion"], seed=0, workspace=folder / "records", quarantine=folder / "quarantine",
            tokens=typed["tokenizer"],
        )  # fmt: skip


def _train(key: str, typed: dict[str, Any], folder: Path) -> None:
    from mm_ldlm.training.spec import TrainingSpec
    from mm_ldlm.training.worker import train

    spec, training = TrainingSpec.read(material.runs() / "training_spec.json"), typed["training"]
    small = {"max_steps": 2, "device": "cpu", "log_every": 1, "diagnose_every": 0, "batch": spec.training.batch}
    small["optimizer"] = dataclasses.replace(training.optimizer, warmup_steps=0)
    if key == "training.max_steps" and (training.max_steps or 0) > 100:
        small["max_minutes"] = 0.01
    chosen = ".".join(key.split(".")[:2])
    training = dataclasses.replace(training, **{n: v for n, v in small.items() if chosen != f"training.{n}"})
    training = dataclasses.replace(training, batch=training.batch.of_processes(1))  # as the plan does
    model = typed["model"] if key.startswith("model") else spec.model
    changed = dataclasses.replace(spec, training=training, model=model, objective=typed["objective"])
    train(dataclasses.replace(changed, dataset=str(material.dataset())), root=folder / "runs")
