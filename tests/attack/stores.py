"""Target: the stores of a dataset, damaged, opened and read; what is read must be what was written."""

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from . import material
from .damage import SAME_LENGTH, damage_bytes, damage_document, damage_file, files_below
from .oracle import Wrong

HOW = (
    "shard_bytes", "shard_bytes", "shard_bytes", "file", "file", "json", "json", "json", "signed_bytes",
    "signed_bytes", "signed_schema", "folder_gone", "folders_swapped", "manifest_gone", "extra_file", "no_shards",
    "none",
)  # fmt: skip
USES = ("everything", "everything", "sentences", "training", "check")


def prepare() -> dict[str, str]:
    """Read the undamaged dataset once: every case must read the same, or be refused."""
    return read_all(material.dataset())


def generate(draw: random.Random) -> dict[str, Any]:
    return {"how": draw.choice(HOW), "use": draw.choice(USES), "draw": draw.randrange(2**32)}


def run(parameters: dict[str, Any], folder: Path, pristine: dict[str, str]) -> str:
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.data.held_out import held_out

    how, draw = parameters["how"], random.Random(parameters["draw"])
    root = folder / "data"
    shutil.copytree(material.data(), root, symlinks=True, ignore=shutil.ignore_patterns("06_*", "07_*", "08_*"))
    detectable = damage(root, how, draw)
    dataset = root / material.dataset().relative_to(material.data())
    match parameters["use"]:
        case "everything":
            read = read_all(dataset)
            changed = [name for name in read if read[name] != pristine.get(name)]
            if detectable and changed:
                raise Wrong("silent change", f"after {how}, {changed} were read with other content and no error")
        case "sentences":
            assert len(held_out(Dataset.open(dataset), count=4, seed=0, split="train")) == 4
        case "training":
            opened = Dataset.open(dataset)
            rows = opened.rows("train")[:8]
            if not np.isfinite(opened.field("latents").batch(rows)).all():
                raise Wrong("not finite", "the training data contain numbers that are not finite")
        case "check":
            opened = Dataset.open(dataset)
            opened.check()
            assert opened.shape.vocab_size > 0
    return "success"


def damage(root: Path, how: str, draw: random.Random) -> bool:
    """Damage the stores; return whether a checksum can reveal it (nobody signed the change)."""
    files = files_below(root)
    shards = [path for path in files_below(root, ".arrow") if (path.parent / "manifest.json").exists()]
    manifests = files_below(root, "manifest.json")
    stores = sorted({path.parent for path in shards})
    path = draw.choice([path for path in shards if path.name != "schema.arrow"])
    match how:
        case "shard_bytes" | "signed_bytes":
            path.write_bytes(damage_bytes(path.read_bytes(), draw, *(SAME_LENGTH if how == "shard_bytes" else ())))
        case "signed_schema":
            _other_schema(path, draw)
        case "file":
            damage_file(draw.choice(files), draw)
        case "json":
            document = draw.choice(files_below(root, ".json"))
            damage_document(document, draw)
            return document.name not in ("manifest.json", "dataset.json")
        case "folder_gone":
            shutil.rmtree(draw.choice(stores))
        case "folders_swapped":
            one, two = draw.sample(stores, 2)
            one.rename(root / "between")
            two.rename(one)
            (root / "between").rename(two)
        case "manifest_gone":
            draw.choice(manifests).unlink()
        case "extra_file":
            name = draw.choice(("part-99999.arrow", "part-00000 (copy).arrow", ".tmp-x", "x.json"))
            shutil.copy(path, draw.choice(stores) / name)
        case "no_shards":
            manifest = draw.choice(manifests)
            plain = json.loads(manifest.read_text())
            manifest.write_text(json.dumps({**plain, "shards": [], "rows": draw.choice((0, plain["rows"]))}))
    if how.startswith("signed"):
        _sign(path, root)
    return not how.startswith(("signed", "no_shards"))


def _sign(path: Path, root: Path) -> None:
    """Write size and checksum of a changed shard into its manifest, and the new fingerprint wherever it is named."""
    from mm_ldlm.data.store import Manifest
    from mm_ldlm.data.store.fingerprint import fingerprint

    before, manifest = Manifest.read(path.parent).fingerprint, path.parent / "manifest.json"
    plain, raw = json.loads(manifest.read_text()), path.read_bytes()
    for shard in plain["shards"]:
        if shard["name"] == path.name:
            shard |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest.write_text(json.dumps(plain))
    after = Manifest.read(path.parent).fingerprint
    for other in files_below(root, ".json"):
        if before in (text := other.read_text()):
            other.write_text(text.replace(before, after))
    document = root / material.dataset().relative_to(material.data()) / "dataset.json"
    plain = json.loads(document.read_text())
    named = {name: about["fingerprint"] for name, about in plain["stores"].items()} | {"encoder": plain["encoder"]}
    document.write_text(json.dumps({**plain, "fingerprint": fingerprint(named)}))


def _other_schema(path: Path, draw: random.Random) -> None:
    with pa.ipc.open_file(str(path)) as reader:
        table = reader.read_all()
    name, rows = draw.choice(table.schema.names), table.num_rows
    other = draw.choice([
        pa.array(["x"] * rows), pa.array([2**40] * rows), pa.nulls(rows), pa.array([-1] * rows, pa.int32()),
        pa.array([[float("nan")] * 384] * rows, pa.list_(pa.float32(), 384)), pa.array([[]] * rows, pa.list_(pa.int32())),
        pa.array([[10**6]] * rows, pa.list_(pa.int32())), pa.array([None, *["x"] * rows][:rows], pa.string()),
    ])  # fmt: skip
    table = table.set_column(table.schema.names.index(name), draw.choice((name, "other")), other)
    table = pa.concat_tables([table, table]) if draw.random() < 0.3 else table
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table.combine_chunks())


def read_all(folder: Path) -> dict[str, str]:
    """Read every row of every store, as a user of the dataset would; a digest of each."""
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.data.store import ShardStore

    dataset = Dataset.open(folder)
    found = {"splits": _digest([dataset.rows(split).tolist() for split in ("train", "validation")])}
    for name in dataset.names:
        opened = dataset.require(name)
        found[name] = _digest(opened.table(slice(None)).to_pylist() if isinstance(opened, ShardStore) else opened.fingerprint)  # fmt: skip
    return found | {"shape": _digest(str(dataset.shape))}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()
