"""Target: run folders and checkpoints, damaged, then loaded, sampled from, or continued by the training."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from . import material
from .damage import PLACES, damage_bytes, damage_document, damage_file, files_below
from .oracle import Wrong, check_result

HOW = (
    "bytes", "bytes", "file", "file", "json", "json", "signed_json", "signed_json", "signed_bytes", "marker",
    "pointer", "pointer", "half", "half", "copy", "weights", "weights", "moments", "moments", "config", "missing", "none",
)  # fmt: skip
USES = ("load", "load", "load", "step", "best", "runs", "resume", "resume")
NAMES = (
    "step-00000003 (copy)", "step-00000004", "step--0000001", "step-", "step-x", "step-99999999999999999999",
    "step-00000005.old", "Step-00000003", "step-3", "step-００００００１２", "step-1e3", "best", "\u2028",
)  # fmt: skip
POINTERS = (
    "../../run-2/checkpoints/step-00000003", "/etc", "..", ".", "", "step-00000003\nx", "\x00", "x" * 300, "step-99",
    "\xff", "step-3", "step-00000002",
)  # fmt: skip
STEPS = (3, "3", "step-00000003", 4, "../x", True, None, -1, 2**70)


def prepare() -> Any:
    """What the undamaged run writes, and the specification of its training."""
    from mm_ldlm.training import worker  # noqa: F401

    return written(material.model())


def generate(draw: random.Random) -> dict[str, Any]:
    how = draw.choice(HOW)
    use = "resume" if how == "moments" else draw.choice(USES)  # nothing else reads them
    return {"how": how, "use": use, "draw": draw.randrange(2**32)}


def run(parameters: dict[str, Any], folder: Path, pristine: list[str]) -> str:
    from mm_ldlm.inference.api import MMLDLM

    how, use, draw = parameters["how"], parameters["use"], random.Random(parameters["draw"])
    runs = material.copy(material.runs(), folder / "runs")
    directory = runs / material.run_name()
    checkpoint = max((directory / "checkpoints").glob("step-*"))
    names = {path.name for path in checkpoint.iterdir()}
    if use == "runs":  # an earlier run next to it
        shutil.copytree(directory, runs / "earlier")
        for path in (runs / "earlier" / "checkpoints").iterdir():
            os.utime(path, (1, 1))
    detectable = damage(directory, checkpoint, how, draw)
    if use == "resume":
        return resume(runs, directory, how)
    options = {"step": {"checkpoint": draw.choice(STEPS)}, "best": {"checkpoint": "best"}}.get(use, {})
    model = MMLDLM.from_run(runs if use == "runs" else directory, device="cpu", **options)
    found = written(model)
    if use == "load" and model.parts.checkpoint.name != checkpoint.name and how != "pointer":
        raise Wrong("older checkpoint", f"after {how}, latest was {model.parts.checkpoint.name} without an error")
    if use == "runs" and directory not in model.parts.checkpoint.parents and how != "pointer":
        raise Wrong("older run", f"after {how}, the newest run was {model.parts.checkpoint.parents[1].name}")
    same = names == {path.name for path in model.parts.checkpoint.iterdir()}
    if found != pristine and detectable and same and use not in ("runs", "step"):
        raise Wrong("silent change", f"after {how}, the run writes {found} instead of {pristine}")
    return "success"


def resume(runs: Path, directory: Path, how: str) -> str:
    """Continue the training for one step; whatever it commits is finite."""
    from safetensors.numpy import load_file

    from mm_ldlm.training.spec import TrainingSpec
    from mm_ldlm.training.worker import train

    spec = TrainingSpec.read(material.runs() / "training_spec.json")
    last = max(int(path.name[5:]) for path in (material.runs() / directory.name / "checkpoints").glob("step-*"))
    training = dataclasses.replace(spec.training, max_steps=last + 1, resume="auto")
    train(dataclasses.replace(spec, training=training, dataset=str(material.dataset())), root=runs)
    for path in sorted((directory / "checkpoints").glob(f"step-{last + 1:08d}/*.safetensors")):
        for name, value in load_file(path).items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise Wrong("not finite", f"after {how}, a checkpoint with {path.name}:{name} was committed")
    return "success"


def damage(directory: Path, checkpoint: Path, how: str, draw: random.Random) -> bool:
    """Damage a run folder; return whether checksums can reveal it."""
    files = [path for path in files_below(checkpoint) if path.name != "COMPLETE"]
    documents = files_below(directory, ".json")
    path = draw.choice(files)
    match how:
        case "bytes" | "signed_bytes":
            path.write_bytes(damage_bytes(path.read_bytes(), draw))
        case "file":
            damage_file(draw.choice(files_below(directory)), draw, *PLACES)
        case "json" | "signed_json":
            path = draw.choice([path for path in documents if how == "json" or checkpoint in path.parents])
            damage_document(path, draw)
        case "marker":
            marker = json.loads((checkpoint / "COMPLETE").read_text())
            marker["files"].pop(draw.choice(list(marker["files"])))
            outside = {"../../../../../../etc/hostname": {"bytes": 1, "sha256": "x"}}
            marker["files"] = draw.choice(({}, marker["files"], marker["files"] | outside))
            (checkpoint / "COMPLETE").write_text(json.dumps(marker))
        case "pointer":
            raw = draw.choice(POINTERS).encode("latin-1")
            (directory / "checkpoints" / draw.choice(("latest", "best"))).write_bytes(raw)
            shutil.copytree(checkpoint, directory.parent / "run-2" / "checkpoints" / "step-00000003")
        case "half":  # as a kill would leave it, or a copy that was cut
            if draw.random() < 0.5:
                (checkpoint / "COMPLETE").unlink()
            else:
                checkpoint.rename(checkpoint.with_name(draw.choice(("gone", "step-00000001", ".tmp-x"))))
        case "copy":
            shutil.copytree(checkpoint, checkpoint.parent / draw.choice(NAMES))
        case "weights":
            change_tensors(draw.choice(sorted(checkpoint.glob("*ema*.safetensors"))), draw)
        case "moments":
            change_tensors(checkpoint / "optimizer.safetensors", draw)
        case "config":
            damage_document(directory / "config.json", draw)
        case "missing":
            draw.choice(files_below(directory)).unlink()
    if how in ("signed_json", "signed_bytes", "weights", "moments"):
        sign(checkpoint)
    return how in ("bytes", "none") or (how == "json" and checkpoint in path.parents)


def sign(checkpoint: Path) -> None:
    """Write the marker anew, as if the training had left these files."""
    marker = json.loads((checkpoint / "COMPLETE").read_text())
    files = {path.relative_to(checkpoint).as_posix(): path.read_bytes() for path in files_below(checkpoint)}
    marker["files"] = {
        name: {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        for name, raw in files.items() if name != "COMPLETE"
    }  # fmt: skip
    (checkpoint / "COMPLETE").write_text(json.dumps(marker))


def change_tensors(path: Path, draw: random.Random) -> None:
    """Change one tensor of a file: NaN, infinity, another shape or type, a missing or a further one."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    name = draw.choice(sorted(tensors))
    value = tensors.pop(name)
    changed: dict[str, Any] = {
        "nan": {name: torch.full_like(value, torch.nan) if value.is_floating_point() else value},
        "inf": {name: torch.full_like(value, torch.inf) if value.is_floating_point() else value},
        "huge": {name: value * 1e30 if value.is_floating_point() else value}, "missing": {},
        "shape": {name: value.reshape(-1)[:-1].clone()}, "zeros": {name: torch.zeros_like(value)},
        "type": {name: value.to(draw.choice((torch.float64, torch.int64, torch.bfloat16, torch.bool)))},
        "extra": {name: value, "extra": torch.zeros(2)}, "rename": {f"x.{name}": value},
    }  # fmt: skip
    save_file(tensors | changed[draw.choice(list(changed))], path)


def written(model: Any) -> list[str]:
    """What a model writes and embeds, to compare."""
    latents = np.eye(model.dim, dtype=np.float32)[:3]
    model.strict = False  # they are no vectors of an encoder
    texts, embedded = model.invert(latents, steps=2, seed=3), model.embed(["the dog", "a cat"], steps=2, seed=3)
    check_result(texts)
    check_result(embedded)
    return [*texts.texts, hashlib.sha256(np.round(embedded.latents, 3).tobytes()).hexdigest()[:8]]
