"""Checkpoints in the files of other trainers: a folder with `model.pt` or another file of PyTorch, or such a file.

`torch.load` runs in weights-only mode: nothing in a file is executed. Objects of the configurations and tokenizers in
Lightning checkpoints are read as plain records of their fields; a file with other objects is refused. Optimizer and
random states next to the weights are not read.
"""

import dataclasses
import json
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from mm_ldlm.core import CheckpointError, show
from mm_ldlm.core.files import InputFile
from mm_ldlm.training.checkpoints.weights import refuse_non_finite

FILES = (
    "model.pt", "checkpoint.pt", "model_final.pth", "model.pth", "pytorch_model.bin", "model.safetensors",
    "checkpoint.pth", "best.ckpt", "last.ckpt", "best.pt", "latest.pt", "final.pt", "best_ema.safetensors",
    "final_ema.safetensors",
)  # fmt: skip
"""Names of the weights in a folder, in the order in which they are looked for."""
WRAPPERS = ("module.", "_orig_mod.", "model.", "backbone.")
"""Prefixes of parameters that DDP, `torch.compile` and trainers add."""
_AVERAGES = ("ema_model", "ema_state_dict")
_WEIGHTS = ("model_state_dict", "state_dict", "model", "module", *_AVERAGES)
"""Keys of the weights in a file that contains more; the averages, with names, may be the only ones."""
BUFFERS = (
    "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "sampling_eps_min", "sampling_eps_max",
    "limiting_distribution", "logit_bias",
)  # fmt: skip
"""Ends of the names of tables in a state_dict that are not parameters"""
_STATES = ("training_state.json", "state.json")
_RECORDS = re.compile(
    r"(omegaconf|transformers|tokenizers|typing|collections|pathlib)\..*|builtins\.(bool|dict|float|int|list|set|str|tuple)"
    r"|(.*\.)?TrainingState"
)
"""Names of classes whose objects are read as plain records of their fields, without the class."""
_SETTINGS = ("config.yaml", ".hydra/config.yaml", "../.hydra/config.yaml", "config.json")
"""Configurations next to the weights, in the order in which they are looked for"""


@dataclasses.dataclass(frozen=True)
class Legacy:
    """The weights of a checkpoint of another trainer."""

    file: Path
    """The file of the weights, for messages"""
    tensors: dict[str, Tensor]
    """by name, without wrappers; floating-point tensors are float32 or float64"""
    step: int | None
    """Number of steps of the training, if the checkpoint contains it"""
    averages: dict[str, Tensor] | None = None
    """The averaged weights (EMA), if the checkpoint contains them"""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The configuration of the training, next to the weights or in their file; empty if there is none"""


def read(path: Path) -> Legacy:
    """Read the weights of a checkpoint of another trainer.

    Raises:
        CheckpointError: there is no such file, it is damaged, contains more than tensors and plain values, or its
            weights are not finite tensors by name.
    """
    file = path if path.is_file() else next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None:
        raise CheckpointError(
            f"{path}: expected one of the files {', '.join(FILES)}, found none. Correct the path, or give the file "
            "itself."
        )
    content = load(file)
    weights = next(
        (content[key] for key in _WEIGHTS if isinstance(content, Mapping) and isinstance(content.get(key), Mapping)),
        content,
    )
    tensors = _checked(weights, file)
    averages = _averages(content, tensors, file)
    for each in (tensors, averages or {}):
        refuse_non_finite({name: t.float() for name, t in each.items()}, file, remedy="Choose another checkpoint.")
    return Legacy(file, tensors, _step(content, file.parent), averages, _settings(content, file.parent))


def load(file: Path) -> Any:
    """Read a file of PyTorch in weights-only mode, or a safetensors file.

    Raises:
        CheckpointError: it is damaged, or contains more than tensors and plain values.
    """
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                about = opened.metadata() or {}
            if "config_json" not in about:
                return load_file(file)
            settings = json.loads(about["config_json"])
            return {_AVERAGES[0]: load_file(file), "config": settings, "step": int(about.get("step", 0))}
        if zipfile.is_zipfile(file):  # torch.load compares no checksums
            with zipfile.ZipFile(file) as archive:
                if (part := archive.testzip()) is not None:
                    raise ValueError(f"the checksum of its part {part} is wrong")
        foreign = [str(name) for name in torch.serialization.get_unsafe_globals_in_checkpoint(file)]
        if refused := [name for name in foreign if not _RECORDS.fullmatch(name)]:
            raise CheckpointError(
                f"{file}: refused, because it contains objects of {', '.join(show(name, 60) for name in refused[:6])}. "
                "Only tensors and plain values are read from such files. Where you trust the file, save its weights "
                "and averages only: torch.save({key: found[key] for key in ('state_dict', 'ema') if key in found}, "
                "'model.pt')."
            )
        with torch.serialization.safe_globals([(_Record, name) for name in foreign]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, SafetensorError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError,
            LookupError, TypeError, AttributeError, AssertionError, OverflowError, MemoryError, RecursionError,
            OSError) as error:  # fmt: skip
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file}: refused or not readable ({show(first, 160)}). Only tensors and plain values are read from such "
            "files. Copy the file again, or choose another checkpoint."
        ) from None


def write(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write `model.pt`, tensors by name without the prefix of the model, and `training_state.json` into a folder."""
    torch.save({name.removeprefix("model."): value for name, value in tensors.items()}, folder / FILES[0])
    (folder / _STATES[0]).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


def plain_name(name: str) -> str:
    """Return the name of a parameter without the prefixes of wrappers."""
    while name.startswith(WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _checked(weights: Any, file: Path) -> dict[str, Tensor]:
    """Check that `weights` are tensors by name, and return them without wrappers, in at least float32.

    Raises:
        CheckpointError: they are none, or two names differ in their wrappers only.
    """
    if not isinstance(weights, Mapping) or not weights:
        raise _unexpected(file, f"found {show(weights, 60)}")
    made: dict[str, Tensor] = {}
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise _unexpected(file, f"found {type(value).__name__} under {show(name, 120)}")
        if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_complex():
            raise _unexpected(file, f"found {show(name, 120)} of type {value.dtype}, {value.layout}, {value.device}")
        stored = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > stored:
            raise _unexpected(
                file, f"found {show(name, 120)} of shape {tuple(value.shape)}, of which the file has {stored} bytes"
            )
        if (plain := plain_name(name)) in made:
            raise _unexpected(file, f"found two tensors for {show(plain, 120)}, under different prefixes")
        low = value.is_floating_point() and value.dtype != torch.float64
        made[plain] = (value.detach().to(torch.float32) if low else value.detach()).contiguous()
    return made


def _averages(content: Any, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor] | None:
    """Read the averaged weights: by name, or as MDLM's trainer and its descendants write them, `ema.shadow_params` in
    the order of the parameters.

    Raises:
        CheckpointError: their number or shapes differ from the parameters'.
    """
    if not isinstance(content, Mapping):
        return None
    if (named := next((content[key] for key in _AVERAGES if key in content), None)) is not None:
        return _checked(named, file)
    ema = content.get("ema")
    values = ema.get("shadow_params") if isinstance(ema, Mapping) else None
    if not isinstance(values, (list, tuple)):
        return None
    kept = {tensor.data_ptr(): name for name, tensor in reversed([*tensors.items()]) if not name.endswith(BUFFERS)}
    names = [name for name in tensors if name in kept.values()]  # a tied parameter has one average
    shapes = [getattr(value, "shape", None) for value in values]
    if shapes != [tensors[name].shape for name in names]:
        raise CheckpointError(
            f"{file}: expected {len(names)} averages in ema.shadow_params, of the shapes of the parameters, found "
            f"{len(values)} of other shapes. Save the file without 'ema' to import the last weights."
        )
    averages = _checked(dict(zip(names, values, strict=True)), file)
    return {name: averages.get(kept.get(tensor.data_ptr(), name), tensor) for name, tensor in tensors.items()}


def _unexpected(file: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: expected tensors by name, stored once each, {found}. Save the state_dict of the model only: "
        "torch.save(model.state_dict(), 'model.pt')."
    )


def _settings(content: Any, place: Path) -> dict[str, Any]:
    """Return the configuration next to the weights, or in their file.

    Raises:
        CheckpointError: a file of it is damaged.
    """
    for file in (place / name for name in _SETTINGS if (place / name).is_file()):
        return read_yaml(file)
    hyper = content.get("hyper_parameters") if isinstance(content, Mapping) else None
    inside = hyper if isinstance(hyper, Mapping) else content if isinstance(content, Mapping) else {}
    found = _plain(inside.get("config"))
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    """Turn the records of an OmegaConf configuration into plain values."""
    if isinstance(value, _Record):
        return _plain(vars(value).get("_content", vars(value).get("_val")))
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file with a mapping.

    Raises:
        CheckpointError: it cannot be read, or is not a mapping.
    """
    import yaml  # the training hosts do not need it

    file = InputFile(path, remedy="Give a YAML file with a mapping.", error=CheckpointError)
    with file.parsing("YAML", ValueError, RecursionError, yaml.YAMLError):
        found = yaml.safe_load(file.text())
    if not isinstance(found, dict):
        file.refuse("a mapping", show(found, 80))
    return found


def _step(content: Any, folder: Path) -> int | None:
    """Return the step in the file, or in the JSON file next to it; None if there is none.

    Raises:
        CheckpointError: the JSON file is damaged.
    """
    places = [content] if isinstance(content, Mapping) else []
    places += [vars(place["state"]) for place in places if isinstance(place.get("state"), _Record)]
    for name in _STATES:
        if (folder / name).is_file():
            found = InputFile(folder / name, error=CheckpointError, remedy="Correct or remove it.").json(dict)
            places += [found, found["state"]] if isinstance(found.get("state"), dict) else [found]
    steps = (place.get(key) for place in places for key in ("step", "global_step"))
    return next((step for step in steps if type(step) is int and 0 <= step < 10**18), None)


class _Record:
    """Fields of an object whose class is not imported; nothing of the file is called."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, fields: Any) -> None:
        if isinstance(fields, dict):
            self.__dict__.update({key: value for key, value in fields.items() if isinstance(key, str)})
