"""Every parameter: its type, limits and default in the code, and the values of conf/base that differ from it."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from mm_ldlm.app.parameters import SECTIONS
from mm_ldlm.core.config import parse, parse_kind, to_dict
from mm_ldlm.core.kinds import MARK, Kinds
from mm_ldlm.data.encoders import ENCODERS

TABLE = Path(__file__).with_name("parameters.yml")
"""Class of a configuration → its own parameters, with type and default; inherited ones are those of their class."""


def own_parameters(path: str) -> dict[str, str]:
    """Type and default of each parameter that a class itself declares or changes; `path` is "module:Class"."""
    module, _, name = path.partition(":")
    found: type[Any] = getattr(importlib.import_module(f"mm_ldlm.{module}"), name)
    own = vars(found).get("__annotations__", {})
    fields = {field.name: default(field) for field in dataclasses.fields(found) if field.name in own}
    return {
        name: own[name] if value == "required" else f"{own[name]} = {plain(value)}" for name, value in fields.items()
    }


def default(field: dataclasses.Field[Any]) -> Any:
    """The default of a parameter; "required" for one without."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "required" if field.default is dataclasses.MISSING else field.default


def plain(value: Any) -> str:
    """A default in words: of a configuration its class, with the parameters that differ from its own defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        pairs = ((field.name, plain(getattr(value, field.name)), plain(default(field))) for field in fields)
        return (
            f"{type(value).__name__}({', '.join(f'{name}={given}' for name, given, usual in pairs if given != usual)})"
        )
    return repr(value)


def configurations() -> list[str]:
    """All classes made by `config`, as "module:Class", found by the text of the files."""
    source = Path(importlib.import_module("mm_ldlm").__file__ or "").parent
    names = []
    for file in sorted(source.rglob("*.py")):
        if "\n@config\n" in file.read_text(encoding="utf-8"):
            module = ".".join(file.relative_to(source).with_suffix("").parts)
            members = vars(importlib.import_module(f"mm_ldlm.{module}")).values()
            classes = [found for found in members if isinstance(found, type) and MARK in vars(found)]
            names += [f"{module}:{found.__name__}" for found in classes if found.__module__ == f"mm_ldlm.{module}"]
    return names


def test_every_parameter_has_the_type_and_the_default_of_the_table() -> None:
    """A limit or a default is changed in the code and in tests/parameters.yml, so that none changes by accident."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    found = {path: own_parameters(path) for path in configurations()}
    flat = [{f"{path}.{key}": value for path, keys in each.items() for key, value in (keys or {}).items()}
            for each in (found, table)]  # fmt: skip
    pairs = {key: tuple(each.get(key) for each in flat) for key in {*flat[0], *flat[1]}}
    wrong = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    assert not wrong, f"(in the code, in tests/parameters.yml): {wrong}"


BOUNDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "config:PositiveInt": ((1, 10**12), (0, -1, 10**12 + 1, 1.5)),
    "config:NonNegativeInt": ((0, 10**12), (-1, 10**12 + 1)),
    "config:PositiveFloat": ((1e-30, 1e30), (0.0, -1.0, 1.1e30)),
    "config:NonNegativeFloat": ((0.0, 1e30), (-1e-30, 1.1e30)),
    "config:Fraction": ((0.0, 1.0), (-1e-9, 1 + 1e-9)),
    "config:Seed": ((0, 2**63 - 1), (-1, 2**63)),
    "config:Size": ((1, 65_536), (0, 65_537)),
    "config:Layers": ((1, 1024), (0, 1025)),
    "config:LayersOrNone": ((0, 1024), (-1, 1025)),
    "config:Ratio": ((1e-9, 1000.0), (0.0, 1000.1)),
    "config:Rows": ((1, 10**8), (0, 10**8 + 1)),
    "config:RowsOrNone": ((0, 10**8), (-1, 10**8 + 1)),
    "config:Bytes": ((1, 2**31 - 1), (0, 2**31)),
    "config:Repeats": ((1, 100_000), (0, 100_001)),
    "config:Workers": ((1, 4096), (0, 4097)),
    "config:WorkersOrNone": ((0, 4096), (-1, 4097)),
    "config:Duration": ((1e-9, 1e7), (0.0, 1e7 + 1)),
    "config:Device": (("cpu", "cuda", "cuda:0", "cuda:123"), ("auto", "gpu", "cuda:", "cuda:1234", "cpu ", "mps")),
    "config:AutoDevice": (("auto", "cpu", "cuda", "cuda:7"), ("gpu", "cuda:", "Auto", "cpu:0")),
    "config:CheckpointName": (("latest", "best", "500", 500, "step-00000500"), ("newest", "step-", "-1", "")),
    "training.config:Decay": ((0.0, 1 - 1e-9), (-1e-9, 1.0)),
    "evaluation.config:Replicates": ((1, 100_000), (0, 100_001)),
    "evaluation.config:Bins": ((1, 1000), (0, 1001)),
    "sampling.limits:Steps": ((1, 10_000), (0, 10_001)),
    "sampling.limits:Draws": ((1, 10_000), (0, 10_001)),
    "sampling.limits:Candidates": ((1, 1000), (0, 1001)),
    "sampling.limits:Rounds": ((0, 1000), (-1, 1001)),
    "sampling.limits:Guidance": ((0.0, 1000.0), (-1e-9, 1000.1)),
}
"""Type of a number or a name → values that it accepts, among them its limits, and values just beyond them."""


@pytest.mark.parametrize("path", BOUNDS)
def test_a_type_accepts_its_limits_and_nothing_beyond(path: str) -> None:
    module, _, name = path.partition(":")
    adapter = pydantic.TypeAdapter(getattr(importlib.import_module(f"mm_ldlm.{module}"), name))
    good, bad = BOUNDS[path]
    for value in good:
        assert adapter.validate_python(value) == (str(value) if name == "CheckpointName" else value)
    for value in bad:
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_python(value)


def test_every_type_with_limits_is_in_the_table() -> None:
    source = Path(importlib.import_module("mm_ldlm").__file__ or "").parent
    found = {
        f"{'.'.join(file.relative_to(source).with_suffix('').parts)}:{name}"
        for file in source.rglob("*.py")
        for name in re.findall(r"^(\w+) = Annotated\[\w+, bounded\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == set(BOUNDS)


OF_THE_BASE_RUN: dict[str, Any] = {
    "tracking.enabled": True,
    "tracking.uri": "sqlite:///data/mlflow.db",
    "tracking.experiment": "mm_ldlm",
    "ingestion.sources.0.kind": "starter",
    "ingestion.sources.0.num_train": 48000,
    "ingestion.sources.0.num_validation": 600,
    "ingestion.sources.0.num_test": 1200,
    "ingestion.length.max_characters": 10000,
    "ingestion.engine.kind": "local",
    "tokenizer.max_length": 24,
    "tokenizer.reduce_vocabulary": True,
    "encoder.kind": "local",
    "embedding.engine.kind": "local",
    "images.height": 32,
    "images.width": 32,
    "images.channels": 3,
    "normaliser.kind": "whitening",
    "image_normaliser.kind": "one_scale",
    "model.length_hidden_dim": 512,
    "model.dim": 192,
    "model.depth": 2,
    "model.mlp_ratio": 2.0,
    "model.heads": 6,
    "model.conditioning_dim": 64,
    "model.kind": "mmdit",
    "model.token_vectors": "encoder",
    "model.direct_views": True,
    "objective.kind": "multimodal",
    "objective.loss_type_weights.l2t": 8.0,
    "objective.loss_type_weights.t2l": 2.0,
    "objective.loss_type_weights.unconditional": 0.5,
    "objective.process.kind": "absorbing",
    "objective.process.t_min": 0.02,
    "objective.process.loss_weighting": "constant",
    "objective.parameterisation": "x0",
    "objective.latent_loss": "uniform",
    "objective.latent_weight": 1.0,
    "objective.t_min": 0.4,
    "training.batch.examples": 192,
    "training.batch.length_multiple": 4,
    "training.max_steps": 950,
    "training.optimizer.lr": 0.003,
    "training.optimizer.warmup_steps": 50,
    "training.optimizer.min_lr_ratio": 0.05,
    "training.ema.decay": 0.998,
    "training.precision.autocast": "auto",
    "training.checkpoint.every_steps": 300,
    "training.launch.max_restarts": 1,
    "training.launch.processes": 2,
    "training.validate_every": 200,
    "training.validation_examples": 192,
    "sampling.text.kind": "confidence",
    "sampling.text.steps": 4,
    "sampling.text.temperature": 0.0,
    "sampling.latent.kind": "ddim",
    "sampling.latent.draws": 4,
    "sampling.latent.steps": 8,
    "sampling.search.candidates": 4,
    "sampling.search.rounds": 6,
    "sampling.search.temperature": 1.0,
    "sampling.unconditional.text.kind": "confidence",
    "sampling.unconditional.text.steps": 32,
    "sampling.unconditional.latent.kind": "ddim",
    "sampling.images.image.kind": "ddim",
    "evaluation.inversion.sweep.0.label": "confidence, 1 step",
    "evaluation.inversion.sweep.0.sampler.kind": "confidence",
    "evaluation.inversion.sweep.0.sampler.steps": 1,
    "evaluation.inversion.sweep.0.sampler.temperature": 0.0,
    "evaluation.inversion.sweep.1.label": "confidence, 2 steps",
    "evaluation.inversion.sweep.1.sampler.kind": "confidence",
    "evaluation.inversion.sweep.1.sampler.steps": 2,
    "evaluation.inversion.sweep.1.sampler.temperature": 0.0,
    "evaluation.inversion.sweep.2.label": "confidence, 4 steps",
    "evaluation.inversion.sweep.2.sampler.kind": "confidence",
    "evaluation.inversion.sweep.2.sampler.steps": 4,
    "evaluation.inversion.sweep.2.sampler.temperature": 0.0,
    "evaluation.inversion.sweep.3.label": "confidence, 8 steps",
    "evaluation.inversion.sweep.3.sampler.kind": "confidence",
    "evaluation.inversion.sweep.3.sampler.temperature": 0.0,
    "evaluation.inversion.sweep.4.label": "threshold 0.9",
    "evaluation.inversion.sweep.4.sampler.kind": "threshold",
    "evaluation.inversion.sweep.4.sampler.steps": 32,
    "evaluation.inversion.sweep.4.sampler.temperature": 0.0,
    "evaluation.inversion.sweep.5.label": "ancestral, 64 steps",
    "evaluation.inversion.sweep.5.sampler.kind": "ancestral",
    "evaluation.inversion.sweep.5.sampler.steps": 64,
    "evaluation.inversion.sweep.5.sampler.skip_idle": True,
    "evaluation.inversion.sweep.6.label": "search, K 4, R 2",
    "evaluation.inversion.sweep.6.sampler.kind": "confidence",
    "evaluation.inversion.sweep.6.sampler.steps": 4,
    "evaluation.inversion.sweep.6.sampler.temperature": 0.0,
    "evaluation.inversion.sweep.6.search.candidates": 4,
    "evaluation.inversion.sweep.6.search.rounds": 2,
    "evaluation.inversion.sweep.6.search.temperature": 1.0,
    "evaluation.inversion.sweep.7.label": "search, K 4, R 4",
    "evaluation.inversion.sweep.7.sampler.kind": "confidence",
    "evaluation.inversion.sweep.7.sampler.steps": 4,
    "evaluation.inversion.sweep.7.sampler.temperature": 0.0,
    "evaluation.inversion.sweep.7.search.candidates": 4,
    "evaluation.inversion.sweep.7.search.rounds": 4,
    "evaluation.inversion.sweep.7.search.temperature": 1.0,
    "evaluation.inversion.sweep_sentences": 160,
    "evaluation.inversion.reference": "ancestral, 64 steps",
    "evaluation.inversion.baseline_rows": 10000,
    "evaluation.sts.sets.0.format": "starter",
    "evaluation.sts.sets.0.name": "starter",
    "evaluation.sts.sampler.kind": "ddim",
    "evaluation.sts.sampler.steps": 8,
    "evaluation.likelihood.draws": 8,
    "comparison.members.0.name": "mdlm",
    "comparison.members.0.env": "mdlm",
    "comparison.members.1.name": "ar",
    "comparison.members.1.env": "ar",
    "comparison.layers_above": ["gpu8", "multinode", "test", "local"],
}
"""Parameters of conf/base with another value than in the code, for its model and corpus, or without a default."""


def parameters_of_base() -> dict[str, Any]:
    """The parameters of conf/base with the sizes of the starter corpus."""
    folder = Path(__file__).parents[1] / "conf" / "base"
    starter = yaml.safe_load((folder / "globals.yml").read_text(encoding="utf-8"))["starter"]
    found: dict[str, Any] = {}
    for file in sorted((folder / "parameters").glob("*.yml")):
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"\$\{globals:starter\.(\w+)\}", lambda name: str(starter[name[1]]), text)
        found |= yaml.safe_load(text) or {}
    return found


def unlike_the_code(typed: Any, at: str) -> Iterator[tuple[str, Any]]:
    """List (path, value) of the parameters whose value is not the default of their class, and every kind."""
    if isinstance(typed, (list, tuple)) and any(map(dataclasses.is_dataclass, typed)):
        for place, item in enumerate(typed):
            yield from unlike_the_code(item, f"{at}.{place}")
        return
    if not dataclasses.is_dataclass(typed):
        yield at, to_dict(typed)
        return
    for field in dataclasses.fields(typed):
        value, usual = getattr(typed, field.name), default(field)
        if field.name == "kind" or dataclasses.is_dataclass(value) or to_dict(value) != to_dict(usual):
            yield from unlike_the_code(value, f"{at}.{field.name}")


def test_conf_base_has_the_defaults_of_the_code_and_the_values_of_the_base_run() -> None:
    given = parameters_of_base()
    found: dict[str, Any] = {}
    for key, path in SECTIONS.items():
        section = getattr(importlib.import_module(path.partition(":")[0]), path.partition(":")[2])
        typed = (parse_kind if isinstance(section, Kinds) else parse)(section, given[key], at=key)
        found |= dict(unlike_the_code(typed, key))
    pairs = {key: tuple(each.get(key, "the default") for each in (found, OF_THE_BASE_RUN))
             for key in {*found, *OF_THE_BASE_RUN}}  # fmt: skip
    wrong = {key: pair for key, pair in pairs.items() if repr(pair[0]) != repr(pair[1])}
    assert not wrong, f"(in conf/base, in OF_THE_BASE_RUN): {wrong}"


def test_the_environment_that_lists_a_whole_encoder_has_its_defaults() -> None:
    file = Path(__file__).parents[1] / "conf" / "http" / "parameters.yml"
    section = yaml.safe_load(file.read_text(encoding="utf-8"))["encoder"]
    typed = parse_kind(ENCODERS, section, at="encoder")
    assert set(section) == {field.name for field in dataclasses.fields(typed)}
    assert dict(unlike_the_code(typed, "encoder")).keys() == {"encoder.kind", "encoder.url", "encoder.name"}
