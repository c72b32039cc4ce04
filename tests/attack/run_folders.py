"""Target: run folders and checkpoints, damaged, then loaded, sampled from, or continued by the training."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

from . import material
from .damage import FILE_DAMAGE, damage_bytes, damage_file, damage_json, files_below, write_json
from .oracle import Wrong
from .results import check_result

HOW = (
    "bytes", "bytes", "file", "file", "json", "json", "json", "signed_json", "signed_json", "signed_bytes", "marker",
    "marker", "pointer",
    "pointer", "copy", "copy", "weights", "weights", "config", "config", "missing", "none",
)  # fmt: skip
USES = ("load", "load", "load", "load", "step", "best", "runs", "resume", "resume", "init")
NAMES = (
    "step-00000003 (copy)", "step-00000004", "step--0000001", "step-", "step-x", "step-99999999999999999999",
    "step-00000005.old",
    "Step-00000003", "step-3", "step-００００００１２", "step-1e3", "best", "\u2028",
)  # fmt: skip
POINTERS = (
    "../../run-2/checkpoints/step-00000003",
    "/etc",
    "..",
    ".",
    "",
    "step-00000003\nx",
    "\x00",
    "x" * 300,
    "step-99",
    "\xff",
    "step-3",
)


def prepare() -> Any:
    """A run to load, and a finished training to continue; what the undamaged run writes."""
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.training.worker import train

    helpers = material.module("training/helpers.py")
    material.run_folder()
    root = material.folder() / "trained"
    train(_spec(helpers, max_steps=2), root=root, data=helpers.data())
    model = MMLDLM.from_run(material.run_folder(), encoder=material.encoder(), device="cpu")
    return {
        "text": _written(model),
        "helpers": helpers,
        "trained": root,
        "resumed": _resume(helpers, root, material.folder() / "again"),
    }


def generate(draw: random.Random) -> dict[str, Any]:
    return {"how": draw.choice(HOW), "use": draw.choice(USES), "draw": draw.randrange(2**32)}


def run(parameters: dict[str, Any], folder: Path, pristine: dict[str, Any]) -> str:
    from mm_ldlm.inference import MMLDLM

    how, use, draw = parameters["how"], parameters["use"], random.Random(parameters["draw"])
    training = use in ("resume", "init")
    runs = material.copy(pristine["trained"] if training else material.run_folder().parent, folder / "runs")
    directory = runs / ("run" if training else "run-1")
    checkpoint = sorted((directory / "checkpoints").glob("step-*"))[-1]
    original = material.copy(checkpoint, folder / "original")
    detectable = damage(directory, checkpoint, how, draw)
    if use == "resume":
        _resume(pristine["helpers"], runs, None)
        return "success"
    if use == "init":
        return _init(pristine["helpers"], runs, checkpoint)
    options = {
        "step": {"checkpoint": draw.choice((3, "3", "step-00000003", 4, "../x", True, None, -1, 2**70))},
        "best": {"checkpoint": "best"},
    }
    path = directory.parent if use == "runs" else directory
    model = MMLDLM.from_run(path, encoder=material.encoder(), device="cpu", **options.get(use, {}))
    found = _written(model)
    same = {path.name for path in original.iterdir()} == {path.name for path in model.parts.checkpoint.iterdir()}
    if found != pristine["text"] and detectable and same and use != "runs":
        raise Wrong("silent change", f"after {how}, the run writes {found} instead of {pristine['text']}")
    return "success"


def damage(directory: Path, checkpoint: Path, how: str, draw: random.Random) -> bool:
    """Damage a run folder; return whether checksums can reveal it."""
    files = files_below(checkpoint)
    documents = [path for path in files_below(directory) if path.suffix == ".json"]
    match how:
        case "bytes":
            path = draw.choice([path for path in files if path.name != "COMPLETE"])
            path.write_bytes(damage_bytes(path.read_bytes(), draw))
        case "file":
            damage_file(draw.choice(files_below(directory)), draw, draw.choice(FILE_DAMAGE))
            return False
        case "json":
            path = draw.choice(documents)
            write_json(path, damage_json(json.loads(path.read_text()), draw), draw)
            return checkpoint in path.parents
        case "signed_json":
            path = draw.choice([path for path in documents if checkpoint in path.parents])
            write_json(path, damage_json(json.loads(path.read_text()), draw), draw)
            sign(checkpoint)
            return False
        case "signed_bytes":
            path = draw.choice([path for path in files if path.name != "COMPLETE"])
            path.write_bytes(damage_bytes(path.read_bytes(), draw))
            sign(checkpoint)
            return False
        case "marker":
            path = checkpoint / "COMPLETE"
            marker = json.loads(path.read_text())
            changed = draw.choice(("empty", "one", "outside", "hostile", "bytes"))
            if changed == "empty":
                path.write_text(json.dumps({**marker, "files": {}}))
                weights = checkpoint / "ema.safetensors"
                weights.write_bytes(damage_bytes(weights.read_bytes(), draw, "zeros"))
                return True
            if changed == "one":
                marker["files"].pop(draw.choice(list(marker["files"])))
                path.write_text(json.dumps(marker))
            elif changed == "outside":
                marker["files"]["../../../../../../etc/hostname"] = {"bytes": 1, "sha256": "x"}
                path.write_text(json.dumps(marker))
            elif changed == "hostile":
                write_json(path, damage_json(marker, draw), draw)
            else:
                path.write_bytes(damage_bytes(path.read_bytes(), draw))
            return False
        case "pointer":
            name = draw.choice(("latest", "best"))
            raw = draw.choice(POINTERS)
            (directory / "checkpoints" / name).write_bytes(raw.encode("latin-1") if raw == "\xff" else raw.encode())
            _other_run(directory, checkpoint)
            return False
        case "copy":
            shutil.copytree(checkpoint, checkpoint.parent / draw.choice(NAMES), dirs_exist_ok=True)
            return False
        case "weights":
            _change_weights(checkpoint, draw)
            sign(checkpoint)
            return False
        case "config":
            path = directory / "config.json"
            plain = json.loads(path.read_text())
            section = draw.choice(("shape", "model", "objective", "fingerprints", "encoder"))
            plain[section] = damage_json(plain.get(section, {}), draw)
            path.write_text(json.dumps(plain))
            return False
        case "missing":
            path = draw.choice(files_below(directory))
            path.unlink()
            return False
    return True


def sign(checkpoint: Path) -> None:
    """Write the marker anew, as if the training had left these files."""
    marker = json.loads((checkpoint / "COMPLETE").read_text())
    files = [path for path in files_below(checkpoint) if path.name != "COMPLETE"]
    marker["files"] = {
        path.relative_to(checkpoint).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in files
    }
    (checkpoint / "COMPLETE").write_text(json.dumps(marker))


def _change_weights(checkpoint: Path, draw: random.Random) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path = draw.choice(sorted(checkpoint.glob("*.safetensors")))
    tensors = load_file(path)
    name = draw.choice(sorted(tensors))
    value = tensors[name]
    match draw.choice(("nan", "inf", "huge", "shape", "type", "missing", "extra", "zeros", "meta", "rename")):
        case "nan":
            value = torch.full_like(value, torch.nan) if value.is_floating_point() else value
        case "inf":
            value = torch.full_like(value, torch.inf) if value.is_floating_point() else value
        case "huge":
            value = value * 1e30
        case "shape":
            value = value.reshape(-1)[:-1].clone()
        case "type":
            value = value.to(draw.choice((torch.float64, torch.int64, torch.bfloat16, torch.bool)))
        case "missing":
            tensors.pop(name)
        case "extra":
            tensors["extra"] = torch.zeros(2)
        case "rename":
            tensors[f"x.{name}"] = tensors.pop(name)
        case "zeros":
            value = torch.zeros_like(value)
    if name in tensors:
        tensors[name] = value.contiguous()
    save_file(tensors, path)


def _other_run(directory: Path, checkpoint: Path) -> None:
    """Another run beside this one, which a pointer of this run must not reach."""
    target = directory.parent / "run-2" / "checkpoints" / "step-00000003"
    target.parent.mkdir(parents=True)
    shutil.copytree(checkpoint, target)
    shutil.rmtree(target / "normaliser", ignore_errors=True)


def _written(model: Any) -> list[str]:
    import numpy as np

    latents = np.eye(6, dtype=np.float32)[:3]
    written = model.invert(latents, steps=2, seed=3)
    check_result(written)
    embedded = model.embed(["w1 w2", "w3"], steps=2, seed=3)
    check_result(embedded)
    return [*written.texts, hashlib.sha256(np.round(embedded.latents, 3).tobytes()).hexdigest()[:8]]


def _spec(helpers: Any, **training: Any) -> Any:
    return helpers.spec(**{"checkpoint": {"every_steps": 1, "background": False}, "diagnose_every": 0, **training})


def _resume(helpers: Any, root: Path, copy: Path | None) -> int:
    from mm_ldlm.training.worker import train

    runs = root if copy is None else material.copy(root, copy)
    result = train(_spec(helpers, max_steps=3), root=runs, data=helpers.data())
    return int(result.step)


def _init(helpers: Any, runs: Path, checkpoint: Path) -> str:
    from mm_ldlm.training.worker import train

    spec = _spec(helpers, max_steps=1, init_from=checkpoint.relative_to(runs).as_posix(), run_name="second")
    train(spec, root=runs, data=helpers.data())
    return "success"
