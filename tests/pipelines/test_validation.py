"""The pipeline `validation`: report, contracts, then index, normaliser and dataset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset
from kedro_datasets.plotly import JSONDataset as PlotDataset

from mm_ldlm.app.datasets import FolderDataset, StoreDataset, ValidatedDataset, WorkspaceDataset
from mm_ldlm.core.errors import StoreError, ValidationError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.data.corpus.tokens import tokenize_records
from mm_ldlm.data.encoders import LocalEncoderConfig
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.latents.normaliser import norms
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter, write_shard
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.pipelines.validation import nodes
from mm_ldlm.pipelines.validation.pipeline import create_pipeline

TEXTS = [
    f"The {noun} {verb} the {other}."
    for noun in ("cat", "dog", "king", "baker")
    for verb in ("sees", "likes", "finds")
    for other in ("river", "house", "train", "letter")
]
SPLITS = ["validation" if row % 8 == 1 else "test" if row % 8 == 2 else "train" for row in range(len(TEXTS))]


@pytest.fixture
def catalog(tmp_path: Path) -> DataCatalog:
    writer = StoreWriter(tmp_path / "records", kind="records", schema=RECORD_SCHEMA)
    ids = [record_id(text) for text in TEXTS]
    count = len(TEXTS)
    writer.append({"id": ids, "text": TEXTS, "source": ["toy"] * count, "split": SPLITS, "meta": [None] * count})
    writer.finish()
    records = ShardStore.open(tmp_path / "records")
    limits = TokenizerConfig(max_length=16, reduce_vocabulary=False)
    tokenizer = load_tokenizer(limits)
    tokenizer.save(tmp_path / "tokenizer")
    tokenize_records(records, tokenizer, limits, tmp_path / "tokens").write(tmp_path / "tokens")
    embedding: dict[str, Any] = {"processes": 1, "progress": False}
    extract(
        records,
        encoder=LocalEncoderConfig(device="cpu"),
        config=ExtractConfig(**embedding),
        workspace=tmp_path / "latents",
    )
    parameters: dict[str, Any] = {
        "encoder": {"device": "cpu"},
        "embedding": embedding,
        "validation": {"spot_rows": 8},
        "normaliser": {},
        "image_normaliser": {"kind": "one_scale"},
        "token_clusters": {"count": 6},
        "objective": {"kind": "multimodal"},
        "model": {"kind": "mmdit", "dim": 32, "depth": 1, "heads": 2},
        "evaluation": {},
        "seed": 0,
    }
    report = tmp_path / "report"
    return DataCatalog(
        {
            "records": MemoryDataset(records, copy_mode="assign"),
            "tokens": StoreDataset(filepath=str(tmp_path / "tokens"), kind="tokens"),
            "latents": StoreDataset(filepath=str(tmp_path / "latents"), kind="latents", optional=True),
            "token_vectors": StoreDataset(filepath=str(tmp_path / "token_vectors"), kind="latents", optional=True),
            "images": StoreDataset(filepath=str(tmp_path / "images"), kind="latents", optional=True),
            "image_normaliser": FolderDataset(
                filepath=str(tmp_path / "image_normaliser"),
                holds="mm_ldlm.data.latents.normaliser:Normaliser",
                marker="normaliser.json",
                optional=True,
            ),
            "token_clusters_workspace": WorkspaceDataset(filepath=str(tmp_path / "token_clusters")),
            "token_clusters": StoreDataset(
                filepath=str(tmp_path / "token_clusters"), kind="token_clusters", optional=True
            ),
            "tokenizer_files": MemoryDataset(tokenizer, copy_mode="assign"),
            "quarantine_validation_workspace": WorkspaceDataset(filepath=str(tmp_path / "quarantine")),
            "quarantine_validation": StoreDataset(filepath=str(tmp_path / "quarantine"), kind="quarantine"),
            "index_workspace": WorkspaceDataset(filepath=str(tmp_path / "index")),
            "index": StoreDataset(filepath=str(tmp_path / "index"), kind="index"),
            "normaliser": FolderDataset(
                filepath=str(tmp_path / "normaliser"),
                holds="mm_ldlm.data.latents.normaliser:Normaliser",
                marker="normaliser.json",
                optional=True,
            ),
            "token_states": StoreDataset(filepath=str(tmp_path / "token_states"), kind="token_states", optional=True),
            "state_normaliser": FolderDataset(
                filepath=str(tmp_path / "state_normaliser"),
                holds="mm_ldlm.data.latents.normaliser:Normaliser",
                marker="normaliser.json",
                optional=True,
            ),
            "dataset": ValidatedDataset(
                filepath=str(tmp_path / "dataset"),
                stores={
                    name: {"filepath": str(tmp_path / name)} for name in ("tokenizer", "normaliser", "state_normaliser")
                },
            ),
            **{
                f"{name}_workspace": WorkspaceDataset(filepath=str(tmp_path / name))
                for name in ("labels", "label_names", "pair_tokens")
            },
            **{
                name: StoreDataset(filepath=str(tmp_path / name), kind=name, optional=True)
                for name in ("labels", "label_names", "pair_tokens")
            },
            "validation_report": JSONDataset(filepath=str(report / "validation_report.json")),
            **{
                f"plot_{name}": PlotDataset(filepath=str(report / f"plot_{name}.json"))
                for name in ("norms", "spectrum", "lengths", "neighbours")
            },
            **{f"params:{name}": MemoryDataset(value) for name, value in parameters.items()},
        }
    )


def test_sound_data_give_index_and_normaliser(catalog: DataCatalog, tmp_path: Path) -> None:
    SequentialRunner().run(create_pipeline(), catalog)
    report = catalog["validation_report"].load()
    assert report["passed"]
    # Three dimensions of MiniLM are dead: found, reported, and handled by the normaliser.
    dead = [finding for finding in report["findings"] if finding["check"] == "collapsed dimensions"]
    assert dead[0]["examples"] == ["127", "223", "319"]
    index, latents = catalog["index"].load(), catalog["latents"].load()
    assert len(index) == len(TEXTS)
    normaliser = catalog["normaliser"].load()
    assert normaliser.unit_norm
    assert normaliser.constant == (127, 223, 319)
    train = [row for row, split in enumerate(SPLITS) if split == "train"]
    z = normaliser.standardise(latents.take(train))
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(np.delete(z.std(0, ddof=1), normaliser.constant), 1, atol=1e-4)
    np.testing.assert_allclose(normaliser.invert(z), latents.take(train), atol=1e-6)
    held_out = norms(
        normaliser.standardise(latents.take([i for i, split in enumerate(SPLITS) if split == "validation"]))
    )
    low, high = np.quantile(held_out, [0.001, 0.999])
    assert normaliser.typical == pytest.approx((low / 1.15, high * 1.15), rel=1e-6), "that of the validation split"
    assert sum(catalog["plot_lengths"].load().data[0].y) == len(TEXTS)
    dataset = catalog["dataset"].load()
    assert set(dataset.names) == {"records", "tokens", "index", "tokenizer", "latents", "normaliser"}
    assert dataset.fingerprints["encoder"] == latents.manifest.fingerprints["encoder"]
    assert dataset.rows("train").tolist() == train
    assert (dataset.shape.max_length, dataset.shape.latent_dim) == (16, 384)
    dataset.check()


def test_texts_alone_need_neither_latents_nor_encoder(
    catalog: DataCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records under an objective without latents: what the encoder left is not looked at."""
    monkeypatch.setattr("mm_ldlm.data.latents.checks.locate_encoder", lambda *_: pytest.fail("an encoder was located"))
    catalog["params:objective"] = MemoryDataset({"kind": "text_diffusion", "process": {"kind": "absorbing"}})
    catalog["params:model"] = MemoryDataset({"kind": "dit", "dim": 32, "depth": 1, "heads": 2})
    for left in ("with latents of another configuration", "without any"):
        SequentialRunner().run(create_pipeline(), catalog)
        assert catalog["validation_report"].load()["passed"], left
        dataset = catalog["dataset"].load()
        assert set(dataset.names) == {"records", "tokens", "index", "tokenizer"}, left
        assert dataset.shape.latent_dim is None
        assert len(dataset.rows("test")) == 6
        assert not catalog["normaliser"].exists()
        shutil.rmtree(tmp_path / "latents", ignore_errors=True)


def test_labels_are_indexed_and_records_without_one_are_quarantined(catalog: DataCatalog, tmp_path: Path) -> None:
    metas = [json.dumps({"topic": text.split()[1]}) if row else None for row, text in enumerate(TEXTS)]
    writer = StoreWriter(tmp_path / "records", kind="records", schema=RECORD_SCHEMA)
    ids = [record_id(text) for text in TEXTS]
    writer.append({"id": ids, "text": TEXTS, "source": ["toy"] * len(ids), "split": SPLITS, "meta": metas})
    writer.finish()
    records = ShardStore.open(tmp_path / "records")
    limits = TokenizerConfig(max_length=16, reduce_vocabulary=False)
    tokenizer = TextTokenizer.load(tmp_path / "tokenizer")
    tokenize_records(records, tokenizer, limits, tmp_path / "tokens").write(tmp_path / "tokens")
    catalog["records"] = MemoryDataset(records, copy_mode="assign")
    catalog["params:objective"] = MemoryDataset({"kind": "classification", "features": "trunk", "label": "topic"})
    catalog["params:model"] = MemoryDataset({"kind": "dit", "dim": 32, "depth": 1, "heads": 2})
    SequentialRunner().run(create_pipeline(), catalog)
    report = catalog["validation_report"].load()
    assert report["quarantine"] == {"no_label": 1}
    assert report["classes"] == {"baker": 12, "cat": 11, "dog": 12, "king": 12}
    dataset = catalog["dataset"].load()
    assert {"labels", "label_names"} < set(dataset.names)
    assert "pair_tokens" not in dataset
    dataset.check()
    rows = dataset.rows("train")
    assert 0 not in rows
    assert (dataset.require("labels").fixed("value").take(rows) >= 0).all()
    SequentialRunner().run(create_pipeline(), catalog)  # the stores are written again without a conflict


def test_latents_that_are_needed_and_absent_name_the_pipeline_that_makes_them(
    catalog: DataCatalog, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "latents")
    with pytest.raises(StoreError, match=r"'multimodal' reads latents.*Run `kedro run --pipeline=embedding`"):
        SequentialRunner().run(create_pipeline(), catalog)


def test_token_vectors_join_the_dataset_of_a_model_that_starts_from_them(
    catalog: DataCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "stores_of", lambda model: ("token_vectors",))
    with pytest.raises(StoreError, match=r"model 'mmdit' reads token_vectors.*Run `kedro run --pipeline=embedding`"):
        SequentialRunner().run(create_pipeline(), catalog)


def test_token_states_join_the_dataset_with_their_normaliser(catalog: DataCatalog, tmp_path: Path) -> None:
    catalog["params:objective"] = MemoryDataset({"kind": "ccdd"})
    catalog["params:model"] = MemoryDataset({"kind": "ccdd"})
    with pytest.raises(StoreError, match=r"'ccdd' reads token_states.*Run `kedro run --pipeline=embedding`"):
        SequentialRunner().run(create_pipeline(), catalog)
    lengths = catalog["tokens"].load().ints("length").take(slice(None))
    states_nd = np.random.default_rng(0).normal(2.0, 3.0, size=(int(lengths.sum()), 4)).astype(np.float16)
    shard = write_shard(tmp_path / "token_states", "part-000000.arrow", token_states._table(states_nd))
    manifest = Manifest(kind=token_states.KIND, rows=len(states_nd), shards=(shard,), meta={"dim": 4})
    manifest.write(tmp_path / "token_states")
    SequentialRunner().run(create_pipeline(), catalog)
    dataset = catalog["dataset"].load()
    assert set(dataset.names) == {"records", "tokens", "index", "tokenizer", "token_states", "state_normaliser"}
    assert (dataset.shape.latent_dim, dataset.shape.state_dim) == (None, 4)
    starts = token_states.starts(lengths)
    train = token_states.rows_of_tokens(starts, dataset.rows("train"))
    z = catalog["state_normaliser"].load().standardise(states_nd[train].astype(np.float64))
    np.testing.assert_allclose([z.mean(0), z.std(0, ddof=1)], [[0.0] * 4, [1.0] * 4], atol=1e-6)


def test_clusters_join_the_dataset_of_a_text_process_that_is_made_from_them(
    catalog: DataCatalog, tmp_path: Path
) -> None:
    catalog["params:objective"] = MemoryDataset({"kind": "text_diffusion", "process": {"kind": "hdlm"}})
    catalog["params:model"] = MemoryDataset({"kind": "dit"})
    with pytest.raises(
        StoreError, match=r"the clustering of tokens reads token_vectors.*Run `kedro run --pipeline=embedding`"
    ):
        SequentialRunner().run(create_pipeline(), catalog)
    tokenizer = catalog["tokenizer_files"].load()
    vectors = np.random.default_rng(0).normal(size=(tokenizer.vocab_size, 8)).astype(np.float32)
    writer = StoreWriter(tmp_path / "token_vectors", kind="latents", schema=latent_store.schema(8, "float32"))
    names = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    writer.append(latent_store.table(names, vectors, dtype="float32"))
    writer.finish(fingerprints={"tokenizer": tokenizer.fingerprint, "encoder": "e"}, meta={"dim": 8})
    SequentialRunner().run(create_pipeline(), catalog)
    dataset, clusters = catalog["dataset"].load(), catalog["token_clusters"].load()
    assert set(dataset.names) == {"records", "tokens", "index", "tokenizer", "token_clusters"}
    assert dataset.fingerprints["token_clusters"] == clusters.manifest.fingerprint
    assert clusters.manifest.meta["clusters"] == 6
    catalog["params:objective"] = MemoryDataset({"kind": "text_diffusion", "process": {"kind": "absorbing"}})
    SequentialRunner().run(create_pipeline(), catalog)
    assert "token_clusters" not in catalog["dataset"].load(), "left by another configuration"


def test_a_failed_contract_stops_the_run_with_the_report_on_disk(catalog: DataCatalog, tmp_path: Path) -> None:
    shorter = TextTokenizer(catalog["tokenizer_files"].load().base, max_length=3)
    catalog["tokenizer_files"] = MemoryDataset(shorter, copy_mode="assign")
    with pytest.raises(ValidationError, match=r"2 data contract\(s\) failed.*\n- length: 48 rows have more tokens"):
        SequentialRunner().run(create_pipeline(), catalog)
    assert not json.loads((tmp_path / "report" / "validation_report.json").read_text())["passed"]
    assert not catalog["index"].exists()
    assert not catalog["normaliser"].exists()
    assert not catalog["dataset"].exists()


def test_rows_that_fail_are_in_quarantine_not_in_the_index(catalog: DataCatalog, tmp_path: Path) -> None:
    latents = LatentStore.open(tmp_path / "latents")
    vectors = latents.take(slice(None))
    vectors[5] = 0
    writer = StoreWriter(tmp_path / "latents", kind="latents", schema=latents.schema)
    writer.append(latent_store.table(latents.ids(slice(None)), vectors, dtype="float32"))
    writer.finish(fingerprints=latents.manifest.fingerprints, meta=latents.manifest.meta)
    catalog["params:validation"] = MemoryDataset({"spot_rows": 0, "max_quarantine_fraction": 0.1})
    SequentialRunner().run(create_pipeline(), catalog)
    quarantined = catalog["quarantine_validation"].load().table(slice(None)).to_pylist()
    assert [(row["row"], row["reason"], row["text"]) for row in quarantined] == [(5, "zero", TEXTS[5])]
    assert 5 not in catalog["index"].load().ints("row").take(slice(None))
