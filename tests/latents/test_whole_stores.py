"""Whole manifests and folders: what a store says of itself, and what an interrupted embedding left beside it."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.data.latents.plan import Plan, make_plan
from tests.extras.http_encoder.embedding_service import DIM, Service, unit

from mm_ldlm.core.errors import FingerprintError, StoreError
from mm_ldlm.data.encoders import LocatedEncoder, parse_encoder
from mm_ldlm.data.latents import extract, hosts, worker
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.distributed.launch import LaunchConfig
from mm_ldlm.extras.own_vectors import latents as given
from mm_ldlm.extras.own_vectors.latents import take_over
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.families.ccdd.token_states import TokenStatesConfig, embed_tokens

# -- the extraction ----------------------------------------------------------------------------------------------------


def located_of(data: Any) -> LocatedEncoder:
    found: LocatedEncoder = data.encoder.locate()
    return found


def test_the_manifest_of_the_latents_has_every_field(pristine: Any) -> None:
    manifest = Manifest.read(pristine.root / "latents")
    located = located_of(pristine)
    assert (manifest.kind, manifest.rows, len(manifest.shards)) == ("latents", 230, 5)
    assert manifest.meta == {
        "columns": ["id", "latent"], "dim": 24, "dtype": "float32", "shard_rows": 50, "encoder": located.describe(),
        "encoder_config": pristine.encoder.portable(), "non_finite": {"count": 0, "ids": []},
    }  # fmt: skip
    plan = make_plan(
        pristine.records, located, encoder=pristine.encoder, config=pristine.extraction,
        workspace=pristine.root / "latents",
    )  # fmt: skip
    assert manifest.fingerprints == plan.fingerprints
    assert plan.fingerprints == {
        "records": pristine.records.manifest.fingerprint, "encoder": located.fingerprint,
        "parameters": fingerprint({
            "format": 1, "shard_rows": 50, "dtype": "float32", "threads": 1, "batch_tokens": 256, "batch_rows": 64
        }),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["records", "encoder", "parameters"])
@pytest.mark.parametrize("finished", [True, False])
def test_a_store_of_other_inputs_names_them_and_is_left_as_it_is(
    name: str, finished: bool, data: Any, files: Any
) -> None:
    folder = data.root / "latents"
    manifest = Manifest.read(folder)
    other = {**manifest.fingerprints, name: "another"}
    if finished:
        dataclasses.replace(manifest, fingerprints=other).write(folder)
    else:
        (folder / "manifest.json").unlink()
        (folder / ".extract").mkdir()
        (folder / ".extract/plan.json").write_text(json.dumps({"fingerprints": other}))
    before = files(folder)
    words = {"records": "other records", "encoder": r"another encoder \(or", "parameters": "other embedding parameters"}
    with pytest.raises(FingerprintError, match=rf"{words[name]}.*: expected {name} [0-9a-f]{{32}}, found another"):
        data.extract()
    assert files(folder) == before


def test_files_that_belong_to_no_shard_are_removed(data: Any, pristine: Any, files: Any) -> None:
    """A shard of an earlier, larger store, and the temporary file of a write that was killed."""
    folder = data.root / "latents"
    (folder / "part-000007.arrow").write_bytes(b"of other records")
    (folder / ".tmp-0123-part-000001.arrow").write_bytes(b"half of it")
    (folder / "notes.txt").write_text("mine")
    data.extract()
    assert files(folder) == files(pristine.root / "latents") | {"notes.txt": b"mine"}


def test_an_unfinished_store_of_a_service_with_noise_keeps_its_fingerprint(
    pristine: Any, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest does not exist yet: the fingerprint of the first contact is that of the plan."""
    noise = np.random.default_rng(0)
    service.vectors = lambda text: (unit(text) + noise.normal(0, 3e-5, DIM)).astype(np.float32)
    encoder = parse_encoder({"kind": "http", "url": service.url, "name": "toy", "connections": 1})
    options: dict[str, Any] = {"encoder": encoder, "config": pristine.extraction, "workspace": tmp_path}
    real, left = worker._write, 2

    def write(*given: Any) -> None:
        nonlocal left
        if not left:
            raise OSError("the disk is full")
        left -= 1
        real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_write", write)
        with pytest.raises(OSError, match="the disk is full"):
            extract.extract(pristine.records, **options)
    first = json.loads((tmp_path / ".extract/plan.json").read_text())["fingerprints"]
    assert extract._recorded_encoder(tmp_path) == first["encoder"]
    assert extract.extract(pristine.records, **options).fingerprints == first
    assert extract._recorded_encoder(tmp_path) == first["encoder"]
    assert extract._recorded_encoder(tmp_path / "none") is None


def some_plan(folder: Path, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "records": folder, "workspace": folder, "rows": 12, "shard_rows": 4, "dtype": "float32", "threads": 1,
        "non_finite": "stop", "encoder": parse_encoder({}), "fingerprints": {"encoder": "e"},
    }  # fmt: skip
    return Plan(**values | changes)


def test_a_worker_loads_the_encoder_of_its_plan_on_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    lanes: list[Any] = []
    encoder: Any = SimpleNamespace(
        fingerprint="e", prepare=list, run=lambda texts: np.ones((len(texts), 2), np.float32), verify=lambda: None
    )
    monkeypatch.setattr(worker, "load_encoder", lambda *args, **named: loaded.append((args, named)) or encoder)
    monkeypatch.setattr(
        worker, "_lane", lambda plan, numbers, encoder, rank, stop: lanes.append((numbers, encoder, rank))
    )
    plan = some_plan(tmp_path)
    worker.encode_shards(plan, [5, 6, 7, 8, 9], located="l", rank=3, device="cuda:1", lanes=2)  # type: ignore[arg-type]
    assert sorted(lanes, key=lambda lane: lane[2]) == [([5, 7, 9], encoder, 3), ([6, 8], encoder, 4)]
    worker.encode_shards(plan, [5], located=None, rank=0, encoder=encoder)
    tasks = worker.EncodeTexts(plan, device="cuda")
    assert tasks(["a", "b"]).shape == (2, 2)
    assert tasks(["c"]).shape == (1, 2)
    assert loaded == [
        ((plan.encoder,), {"device": "cuda:1", "located": "l", "expected": "e"}),
        ((plan.encoder,), {"device": "cuda", "expected": "e"}),
    ], "a process loads once"


@pytest.mark.parametrize("number", range(5))
def test_an_error_of_any_write_ends_the_embedding(number: int, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last shard is written while nothing else is computed any more."""
    for path in (data.root / "latents").iterdir():
        path.unlink()
    real = worker._write

    def write(plan: Any, this: int, *rest: Any) -> None:
        if this == number:
            raise OSError(f"no place for {this}")
        real(plan, this, *rest)

    monkeypatch.setattr(worker, "_write", write)
    with pytest.raises(OSError, match=f"no place for {number}"):
        data.extract()


def test_the_progress_of_each_lane_has_a_file_of_its_own(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (data.root / "latents").iterdir():
        path.unlink()
    seen: dict[str, list[int]] = {}
    real = worker.atomic.write_json

    def write(path: Path, plain: Any) -> None:
        if path.name.startswith("rank-"):
            seen.setdefault(path.name, []).append(plain["rows"])
        real(path, plain)

    monkeypatch.setattr(worker.atomic, "write_json", write)
    monkeypatch.setattr(extract, "_processes_and_lanes", lambda *_, **__: (1, 2))
    data.extract()
    assert seen == {"rank-0.json": [50, 100, 130], "rank-1.json": [50, 100]}


def test_a_host_says_which_one_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config: Any = SimpleNamespace(nodes=4, node_rank=2, processes=3)
    monkeypatch.setattr(hosts, "launch", lambda *_, **__: None)
    with caplog.at_level("INFO"):
        hosts.run_ranks(tmp_path, config=config)
    assert caplog.messages == ["embedding on 4 hosts: this is host 2, with 3 process(es)"]


# -- given vectors -----------------------------------------------------------------------------------------------------


def vectors_store(folder: Path, ids: list[str], vectors: Any, *, records: str) -> ShardStore:
    import pyarrow as pa

    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32(), 3))])
    writer = StoreWriter(folder, kind="vectors", schema=schema)
    writer.append({"id": ids, "vector": vectors.tolist()})
    writer.finish(fingerprints={"records": records})
    return ShardStore.open(folder, "vectors")


def test_given_vectors_of_other_records_or_other_vectors_are_refused(
    new_records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of the two conditions by itself: the fingerprint of the records, and their number."""
    monkeypatch.setattr(given, "_ROWS", 4)
    records = new_records(tmp_path / "r", [f"text {n}" for n in range(11)])
    ids, mark = records.strings("id").take(slice(None)), records.manifest.fingerprint
    vectors = np.arange(33, dtype=np.float32).reshape(11, 3)
    encoder = parse_encoder({"kind": "precomputed", "name": "mine", "dim": 3, "normalised": False})

    def take(name: str, ids: list[str], vectors: Any, *, of: str = mark, into: str = "l") -> Manifest:
        store = vectors_store(tmp_path / name, ids, vectors, records=of)
        return take_over(records, store, encoder=encoder, config=ExtractConfig(shard_rows=5), workspace=tmp_path / into)

    with pytest.raises(FingerprintError, match=r"of other records \(11 rows, the records have 11\)"):
        take("other", ids, vectors, of="another")
    with pytest.raises(FingerprintError, match=r"of other records \(10 rows, the records have 11\)"):
        take("fewer", ids[:10], vectors[:10])
    swapped = [*ids[:5], ids[6], ids[5], *ids[7:]]
    with pytest.raises(StoreError, match="the ids of rows 4 to 7 are not those"):
        take("swapped", swapped, vectors)
    with pytest.raises(StoreError, match="the ids of rows 8 to 10 are not those"):
        take("last", [*ids[:10], "x"], vectors)
    caplog.clear()
    with caplog.at_level("INFO"):
        made = take("good", ids, vectors)
    assert caplog.messages == ["11 given vectors of 'mine', dimension 3, became latents"]
    assert made.fingerprints["records"] == mark
    assert made.fingerprints["encoder"] == encoder.locate(expected=None).fingerprint
    with pytest.raises(FingerprintError, match="contains latents of other records, another encoder or other"):
        take("moved", ids, vectors + 1)
    (tmp_path / "l/part-000002.arrow").unlink()
    caplog.clear()
    assert take("again", ids, vectors) == made
    assert caplog.messages[0] == (
        f"{tmp_path / 'l'}: a shard is missing or its checksum differs; the latents are made again"
    )


# -- token states ------------------------------------------------------------------------------------------------------


def test_the_manifest_of_the_token_states_has_every_field(pristine: Any, tmp_path: Path) -> None:
    (tmp_path / ".tmp-0123-part-000000.arrow").write_bytes(b"half of it")
    manifest = embed_tokens(
        pristine.records, pristine.tokens, pristine.tokenizer, encoder=pristine.encoder, config=TokenStatesConfig(),
        workspace=tmp_path,
    )  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "part-000000.arrow"]
    located = located_of(pristine)
    assert manifest == Manifest.read(tmp_path)
    assert manifest.meta == {
        "columns": ["state"], "dim": 24, "dtype": "float16", "bytes_per_token": 48, "encoder": located.describe()
    }  # fmt: skip
    assert manifest.kind == token_states.KIND
    assert manifest.fingerprints == {
        "records": pristine.records.manifest.fingerprint, "tokens": pristine.tokens.manifest.fingerprint,
        "tokenizer": pristine.tokenizer.fingerprint, "encoder": located.fingerprint,
        "parameters": fingerprint({"config": TokenStatesConfig(), "format": 1}),
    }  # fmt: skip


def test_an_empty_store_opens_whatever_dimension_it_promises(tmp_path: Path) -> None:
    StoreWriter(tmp_path, kind="latents", schema=latent_store.schema(3, "float16")).finish(meta={"dim": 4})
    found = latent_store.LatentStore.open(tmp_path)
    assert (len(found), found.dim, found.dtype) == (0, 3, "float16")
    assert copy.copy(found).take([]).shape == (0, 3)
    assert torch.from_numpy(found.take([])).dtype == torch.float32


def test_several_processes_are_launched_with_the_missing_shards_of_the_plan(
    data: Any, pristine: Any, files: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = data.root / "latents"
    for number in (1, 4):
        (folder / f"part-{number:06d}.arrow").unlink()
    launched: list[Any] = []

    def launch(module: str, arguments: list[str], *, config: Any, log_directory: Path) -> None:
        launched.append((module, arguments, config, log_directory))
        job = json.loads(Path(arguments[0]).read_text())
        assert job["missing"] == [1, 4]
        worker.encode_shards(Plan.from_dict(job["plan"]), job["missing"], located=None, rank=0)

    monkeypatch.setattr(extract, "launch", launch)
    with caplog.at_level("INFO", logger=extract.__name__):
        data.extract(processes=3)
    progress = folder / ".extract"
    assert launched == [(
        "mm_ldlm.data.latents.worker", [str(progress / "job.json")], LaunchConfig(processes=2), progress / "logs"
    )]  # fmt: skip
    assert "2 process(es), 2 shard(s) at a time" in caplog.messages
    assert files(folder) == files(pristine.root / "latents")
