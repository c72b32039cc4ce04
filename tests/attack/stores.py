"""Target: the stores of a dataset, damaged, opened and read whole; what is read must be what was written."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from . import material
from .damage import BYTE_DAMAGE, damage_bytes, damage_file, damage_json, files_below, write_json
from .oracle import Wrong

HOW = (
    "shard_bytes", "shard_bytes", "shard_bytes", "shard_bytes", "file", "file", "json", "json", "json",
    "signed_bytes", "signed_bytes",
    "signed_bytes", "signed_schema", "folder_gone", "folder_swapped", "manifest_gone", "extra_file", "no_shards",
    "none",
)  # fmt: skip
USES = ("dataset", "dataset", "plan", "open_data", "columns", "sentences", "commit")


def prepare() -> dict[str, str]:
    """Write the undamaged dataset and read it once: every case must read the same, or be refused."""
    from mm_ldlm.training import plan, worker  # noqa: F401

    root = material.dataset()
    return {**_read_all(root / "dataset"), **_read_columns(root)}


def generate(draw: random.Random) -> dict[str, Any]:
    return {"how": draw.choice(HOW), "use": draw.choice(USES), "draw": draw.randrange(2**32)}


def run(parameters: dict[str, Any], folder: Path, pristine: dict[str, str]) -> str:
    how, draw = parameters["how"], random.Random(parameters["draw"])
    root = material.copy(material.dataset(), folder / "data")
    detectable = damage(root, how, draw)
    read = _use(parameters["use"], root, draw)
    if (
        how != "none"
        and detectable
        and read is not None
        and (changed := [name for name in read if read[name] != pristine[name]])
    ):
        raise Wrong("silent change", f"after {how}, {changed} were read with other content and no error")
    if how == "none" and read is not None and any(read[name] != pristine[name] for name in read):
        raise AssertionError("the undamaged stores are not read reproducibly")
    return "success"


def damage(root: Path, how: str, draw: random.Random) -> bool:
    """Damage the stores; return whether a checksum can reveal it (nobody signed the change)."""
    files = files_below(root)
    shards = [path for path in files if path.suffix == ".arrow"]
    documents = [path for path in files if path.suffix == ".json"]
    stores = sorted({path.parent for path in shards})
    match how:
        case "shard_bytes":
            path = draw.choice(shards)
            path.write_bytes(damage_bytes(path.read_bytes(), draw, draw.choice(("flip", "flips", "zeros"))))
        case "file":
            damage_file(draw.choice(files), draw)
        case "json":
            path = draw.choice(documents)
            write_json(path, damage_json(json.loads(path.read_text()), draw), draw)
            return path.name not in ("manifest.json", "dataset.json")
        case "signed_bytes":
            path = draw.choice(shards)
            path.write_bytes(damage_bytes(path.read_bytes(), draw, draw.choice(BYTE_DAMAGE)))
            _sign(path)
            return False
        case "signed_schema":
            path = draw.choice(shards)
            _other_schema(path, draw)
            _sign(path)
            return False
        case "folder_gone":
            shutil.rmtree(draw.choice(stores))
        case "folder_swapped":
            one, two = draw.sample(stores, 2)
            one.rename(root / "between")
            two.rename(one)
            (root / "between").rename(two)
        case "manifest_gone":
            draw.choice([path for path in documents if path.name == "manifest.json"]).unlink()
        case "extra_file":
            where = draw.choice(stores)
            shutil.copy(
                draw.choice(shards),
                where / draw.choice(("part-99999.arrow", "part-00000 (copy).arrow", ".tmp-x", "x.json")),
            )
        case "no_shards":
            path = draw.choice([path for path in documents if path.name == "manifest.json"])
            manifest = json.loads(path.read_text())
            path.write_text(json.dumps({**manifest, "shards": [], "rows": draw.choice((0, manifest["rows"]))}))
            return False
    return True


def _sign(path: Path) -> None:
    """Write size and checksum of a changed shard into its manifest, and the new fingerprint wherever it is named."""
    from mm_ldlm.data.store import Manifest

    manifest_path = path.parent / "manifest.json"
    plain = json.loads(manifest_path.read_text())
    before = Manifest.read(path.parent).fingerprint
    raw = path.read_bytes()
    for shard in plain["shards"]:
        if shard["name"] == path.name:
            shard |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest_path.write_text(json.dumps(plain))
    after = Manifest.read(path.parent).fingerprint
    root = path.parents[1]
    for other in files_below(root):
        if other.suffix == ".json" and before in (text := other.read_text()):
            other.write_text(text.replace(before, after))
    document = root / "dataset" / "dataset.json"
    from mm_ldlm.data.dataset import Dataset

    plain = json.loads(document.read_text())
    document.write_text(
        json.dumps(
            {**plain, "fingerprint": Dataset(document.parent, plain["stores"], encoder=plain["encoder"]).fingerprint}
        )
    )


def _other_schema(path: Path, draw: random.Random) -> None:
    import pyarrow as pa

    with pa.ipc.open_file(str(path)) as reader:
        table = reader.read_all()
    name = draw.choice(table.schema.names)
    place = table.schema.names.index(name)
    rows = table.num_rows
    other = draw.choice([
        pa.array(["x"] * rows), pa.array([2**40] * rows), pa.nulls(rows), pa.array([[float("nan")] * 8] * rows,
        pa.list_(pa.float32(), 8)),
        pa.array([-1] * rows, pa.int32()), pa.array([[]] * rows, pa.list_(pa.int32())), pa.array([[10**6]] * rows,
        pa.list_(pa.int32())),
        pa.array([None, *["x"] * (rows - 1)]), pa.array([[1e30] * 3] * rows, pa.list_(pa.float16(), 3)),
    ])  # fmt: skip
    table = table.set_column(place, draw.choice((name, "other", table.schema.names[0])), other)
    if draw.random() < 0.3:
        table = pa.concat_tables([table, table])
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table.combine_chunks())


# -- use ---------------------------------------------------------------------------------------------------------------


def _use(use: str, root: Path, draw: random.Random) -> dict[str, str] | None:
    from mm_ldlm.data.dataset import Dataset
    from mm_ldlm.data.sentences import held_out

    helpers = material.module("training/helpers.py")
    match use:
        case "dataset":
            return _read_all(root / "dataset")
        case "plan":
            dataset = Dataset.open(root / "dataset")
            dataset.check()
            assert dataset.shape.vocab_size > 0
        case "open_data":
            from mm_ldlm.training.data import open_data

            spec = helpers.spec(objective=draw.choice(({"mode": "mixed"}, {"mode": "l2t"})))
            document = json.loads((material.dataset() / "dataset" / "dataset.json").read_text())
            fingerprints = {name: about["fingerprint"] for name, about in document["stores"].items()} | {"encoder": "e"}
            import dataclasses

            spec = dataclasses.replace(spec, dataset="dataset", fingerprints=fingerprints)
            data = open_data(spec, root)
            rows = np.arange(min(8, len(data.train.lengths)))
            latents = data.train.field("latents", rows)
            if not np.isfinite(latents).all():
                raise Wrong("not finite", "the training data contain numbers that are not finite")
            assert data.train.tokens(rows, length=12).shape == (len(rows), 12)
        case "sentences":
            found = held_out(Dataset.open(root / "dataset"), count=4, seed=0, split="train")
            assert len(found) <= 4
        case "commit":
            helpers.commit_dataset(root)
        case _:
            return _read_columns(root)
    return None


def _read_all(folder: Path) -> dict[str, str]:
    """Read every row of every store, as a user of the dataset would; a digest of each."""
    from mm_ldlm.data.dataset import Dataset
    from mm_ldlm.data.store import ShardStore

    dataset = Dataset.open(folder)
    found = {}
    for name in dataset.names:
        opened = dataset.require(name)
        if isinstance(opened, ShardStore):
            found[name] = _digest(opened.table(slice(None)).to_pylist())
        else:
            found[name] = str(opened.fingerprint)
    found["splits"] = _digest([dataset.rows(split).tolist() for split in ("train", "validation")])
    found["shape"] = _digest(str(dataset.shape))
    return found


def _read_columns(root: Path) -> dict[str, str]:
    """Read single columns by rows, as the training does; a digest of each."""
    from mm_ldlm.data.latents.store import LatentStore
    from mm_ldlm.data.store import ShardStore

    rows = np.array([3, 0, 47, 3])
    latents = LatentStore.open(root / "latents")
    tokens = ShardStore.open(root / "tokens", "tokens").lists("input_ids")
    values, offsets = tokens.take(rows)
    found = {
        "column latent": [latents.take(rows).tobytes(), latents.ids(rows)],
        "column input_ids": [tokens.lengths(rows).tolist(), values.tobytes(), offsets.tobytes()],
        "column length": ShardStore.open(root / "index", "index").ints("length").take(rows).tolist(),
        "column text": ShardStore.open(root / "records", "records").strings("text").take(rows),
    }
    return {name: _digest(value) for name, value in found.items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()
