"""Target: parameters and configuration files; what is accepted before the first node must also work in the worker."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from . import material
from .damage import HOSTILE, damage_json
from .oracle import Wrong
from .results import check_result

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
    ("training.parameter_gradients", (True, "maybe", 2)),
    ("training.launch.keep_logs", (0, 1, 10**12, 2**63)),
    ("training.launch.log_megabytes", (0, 10**12, 0.5)),
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
    ("sampling.length", (10**9, "top-1000000000", "top-0", 0, -1, "top-x", "argmax ")),
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


def prepare() -> Any:
    """Load the parameters of `--env=test`, the model that samplers are tried on, and the helpers of training."""
    from mm_ldlm.app import parameters
    from mm_ldlm.app.config_loader import LayeredConfigLoader
    from mm_ldlm.data.corpus import ingestion  # noqa: F401
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.settings import CONFIG_LOADER_ARGS
    from mm_ldlm.training import worker  # noqa: F401

    conf = material.TESTS.parent / "conf"
    loaded = LayeredConfigLoader(str(conf), env="test", **CONFIG_LOADER_ARGS)["parameters"]
    parameters.check_parameters(loaded)
    model = MMLDLM.from_run(material.run_folder(), encoder=material.encoder(), device="cpu")
    return {
        "plain": json.loads(json.dumps(loaded)),
        "model": model,
        "helpers": material.module("training/helpers.py"),
        "conf": conf,
    }


def generate(draw: random.Random) -> dict[str, Any]:
    how = draw.choice(("chosen", "chosen", "chosen", "chosen", "leaf", "leaf", "section", "key", "file"))
    key, values = draw.choice(CHOSEN)
    found: dict[str, Any] = {"how": how, "draw": draw.randrange(2**32)}
    if how == "chosen":
        found |= {"key": key, "value": draw.choice(values)}
    elif how == "file":
        found |= {
            "name": draw.choice(FILE_NAMES),
            "text": draw.choice(FILES).decode("latin-1"),
            "layered": draw.random() < 0.3,
        }
    return found


def run(parameters: dict[str, Any], folder: Path, pristine: dict[str, Any]) -> str:
    from mm_ldlm.app.parameters import check_files, check_parameters
    from mm_ldlm.core.errors import MMLDLMError, TrainingDiverged

    draw = random.Random(parameters["draw"])
    plain = copy.deepcopy(pristine["plain"])
    key = ""
    if parameters["how"] == "file":
        plain = _load_file(parameters, folder, pristine["conf"])
    else:
        key = change(plain, parameters, draw)
    typed = check_parameters(plain)
    check_files(typed, read=typed.keys())
    try:
        _use(key, plain, typed, folder, pristine, draw)
    except TrainingDiverged:
        return "refused"  # a matter of the numbers, not of a single parameter
    except MMLDLMError as error:
        name = key.rpartition(".")[2]
        if parameters["how"] == "chosen" and name not in str(error):
            raise Wrong(
                "late refusal",
                f"{key} = {parameters['value']!r:.80} was accepted, then: {type(error).__name__}: {error}",
            ) from None
        raise
    return "success"


def change(plain: dict[str, Any], parameters: dict[str, Any], draw: random.Random) -> str:
    """Change the parameters in place; return the key of the changed section or value."""
    how = parameters["how"]
    if how == "chosen":
        *path, last = parameters["key"].split(".")
        place = plain
        for name in path:
            place = place[name]
        place[last] = parameters["value"]
        if parameters["key"].startswith("training.batch.examples") or last == "tokens_per_device":
            place |= {name: None for name in ("tokens", "examples") if name != last}
        return str(parameters["key"])
    section = draw.choice([name for name in plain if name != "comparison"])
    if how == "section":
        plain[section] = draw.choice(HOSTILE)
    elif how == "key":
        odd: Any = draw.choice(
            (1, None, True, 1.5, (1, 2), "", "\ud800", "x" * 5000, "a.b", "kind", b"x", "\x00", "__class__")
        )
        target = plain if draw.random() < 0.3 or not isinstance(plain[section], dict) else plain[section]
        target[odd] = draw.choice(HOSTILE)
    else:
        plain[section] = damage_json(plain[section], draw)
    return section


def _load_file(parameters: dict[str, Any], folder: Path, conf: Path) -> dict[str, Any]:
    """Load an environment that contains one odd file."""
    from kedro.config import MissingConfigException

    from mm_ldlm.app.config_loader import LayeredConfigLoader
    from mm_ldlm.settings import CONFIG_LOADER_ARGS

    (folder / "conf").mkdir()
    for name in ("base", "test"):
        (folder / "conf" / name).symlink_to(conf / name)
    path = folder / "conf" / "odd" / parameters["name"]
    path.parent.mkdir(parents=True)
    path.write_bytes(parameters["text"].encode("latin-1"))
    loader = LayeredConfigLoader(
        str(folder / "conf"), env="test+odd" if parameters["layered"] else "odd", **CONFIG_LOADER_ARGS
    )
    for kind in ("globals", "catalog", "credentials"):
        try:
            loader[kind]
        except MissingConfigException:
            continue
    plain: dict[str, Any] = loader["parameters"]
    return plain


# -- use: the worker's side of what was accepted -----------------------------------------------------------------------


def _use(
    key: str, plain: dict[str, Any], typed: dict[str, Any], folder: Path, pristine: dict[str, Any], draw: random.Random
) -> None:
    section = key.partition(".")[0]
    if section in ("training", "model", "objective", "seed"):
        _train(key, plain, typed, folder, pristine["helpers"])
    elif section == "sampling":
        _sample(typed["sampling"], pristine["model"])
    elif section in ("ingestion", "tokenizer"):
        _ingest(key, plain, folder)


def _train(key: str, plain: dict[str, Any], typed: dict[str, Any], folder: Path, helpers: Any) -> None:
    """Train for two steps on the synthetic task, with everything that the case did not choose made small."""
    import dataclasses

    from mm_ldlm.core.config import parse
    from mm_ldlm.training.config import TrainingConfig
    from mm_ldlm.training.worker import train

    settings = copy.deepcopy(plain["training"])
    small: dict[str, Any] = {"max_steps": 2, "device": "cpu", "preflight": True, "log_every": 1, "diagnose_every": 0}
    settings |= {name: value for name, value in small.items() if key != f"training.{name}"}
    if not key.startswith("training.batch"):
        settings["batch"] = {"examples": 8, "length_multiple": 4, "prefetch": 1}
    if not key.startswith("training.optimizer"):
        settings["optimizer"] = {**settings["optimizer"], "warmup_steps": 0}
    else:
        settings["optimizer"]["warmup_steps"] = 0
    if key == "training.max_steps" and isinstance(settings["max_steps"], (int, float)) and settings["max_steps"] > 100:
        settings["max_minutes"] = 0.01
    training = parse(TrainingConfig, settings, at="training")
    training = dataclasses.replace(training, batch=training.batch.of_processes(1))  # as the plan does
    model = typed["model"] if key.startswith("model") else helpers.spec().model
    seed = plain["seed"] if training.seed is None else training.seed
    spec = dataclasses.replace(helpers.spec(), training=training, model=model, objective=typed["objective"], seed=seed)
    train(spec, root=folder / "runs", data=helpers.data(16))


def _sample(sampling: Any, model: Any) -> None:
    import numpy as np

    latents = np.eye(6, dtype=np.float32)[:2]
    search = sampling.search if sampling.search.enabled else None
    check_result(model.invert(latents, sampler=sampling.text, length=sampling.length, search=search))
    check_result(model.embed(["w1 w2"], sampler=sampling.latent))
    one = sampling.unconditional
    check_result(model.generate(2, order=one.order, sampler=one.text, latent_sampler=one.latent, length=one.length))


def _ingest(key: str, plain: dict[str, Any], folder: Path) -> None:
    from mm_ldlm.core.config import parse
    from mm_ldlm.data.corpus.config import IngestionConfig
    from mm_ldlm.data.corpus.ingestion import ingest
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer

    limits = parse(TokenizerConfig, plain["tokenizer"], at="tokenizer")
    config = parse(IngestionConfig, plain["ingestion"], at="ingestion")
    seed = plain["seed"]
    ingest(
        config,
        seed=seed,
        workspace=folder / "records",
        quarantine=folder / "quarantine",
        tokenizer=load_tokenizer(limits),
        tokens=limits,
    )
