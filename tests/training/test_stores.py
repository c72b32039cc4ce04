"""Stores that an objective is made from: planned with fingerprints, carried by checkpoints, absent where not used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest

from mm_ldlm import MMLDLM
from mm_ldlm.core.errors import CheckpointError, FingerprintError, StoreError
from mm_ldlm.data import Dataset, commit
from mm_ldlm.data.latents.config import TokenClustersConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.families.hdlm.token_clusters import cluster_vocabulary
from mm_ldlm.training.data import StoreSource, open_data
from mm_ldlm.training.plan import plan
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.worker import train

TEXTS = [f"w{i} w{(i * 3) % 20} w{(i * 7) % 20}" for i in range(40)]
VECTORS = np.random.default_rng(0).normal(size=(23, 6)).astype(np.float32)
HDLM, MASKED = ({"kind": "text_diffusion", "process": {"kind": kind}} for kind in ("hdlm", "absorbing"))
TRAINING: dict[str, Any] = {
    "max_steps": 4, "batch": {"examples": 8}, "device": "cpu", "preflight": False, "run_name": "run",
    "checkpoint": {"every_steps": 2, "background": False}, "optimizer": {"warmup_steps": 1},
}  # fmt: skip


@pytest.fixture
def make(write_dataset: Any, tmp_path: Path) -> Any:
    made = write_dataset(tmp_path / "data", TEXTS, ["train"] * 40, token_vectors=VECTORS)

    def make(*, seed: int = 0) -> Dataset:
        cluster_vocabulary(
            made.tokenizer, LatentStore.open(made.folder("token_vectors")), config=TokenClustersConfig(count=4),
            seed=seed, workspace=tmp_path / "data" / "token_clusters",
        )  # fmt: skip
        stores = {name: made.folder(name) for name in ("records", "tokens", "index", "tokenizer")}
        stores["token_clusters"] = tmp_path / "data" / "token_clusters"
        return commit(made.directory, stores=stores)

    return make


def planned(dataset: Dataset, runs: Path, objective: dict[str, Any] = HDLM, **training: Any) -> TrainingSpec:
    return plan(
        dataset, runs=runs, model={"kind": "dit", "dim": 16, "depth": 1, "heads": 2}, objective=objective,
        training=TRAINING | training, encoder={}, seed=0, tracking={},
    )  # fmt: skip


def test_the_spec_names_the_store_and_the_ids_of_its_noise(make: Any, tmp_path: Path) -> None:
    dataset = make()
    spec = planned(dataset, tmp_path)
    assert spec.fingerprints["token_clusters"] == dataset.fingerprints["token_clusters"]
    assert spec.shape.noise_ids == 4
    assert TrainingSpec.from_dict(spec.to_dict()) == spec
    assert planned(make(seed=1), tmp_path).fingerprint != spec.fingerprint


def test_a_run_resumes_and_samples_from_its_folder_alone(make: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    spec = planned(make(), tmp_path / "runs")
    for name, pause in (("whole", None), ("parts", 2), ("parts", None)):
        (tmp_path / name).mkdir(exist_ok=True)
        train(spec, root=tmp_path / name, data=open_data(spec, tmp_path / "runs"), pause_at=pause)
    for file in ("model", "ema", "optimizer"):
        a, b = (helpers.tensors(tmp_path / name / "run", 4, file) for name in ("whole", "parts"))
        assert helpers.same_bits(a, b), file
    shutil.rmtree(tmp_path / "data")
    model = MMLDLM.from_run(tmp_path / "parts" / "run")
    written = model.generate(20, seed=1)
    assert all(0 <= i < 21 for row in written.tokens for i in row), "words only"
    assert np.isfinite(model.score(["w1 w2 w3"]).nll).all()


def test_a_checkpoint_of_other_clusters_is_refused(make: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    spec = planned(make(), tmp_path / "runs")
    train(spec, root=tmp_path / "runs", data=open_data(spec, tmp_path / "runs"))
    other = planned(make(seed=1), tmp_path / "runs", resume="run", run_name="next")
    with pytest.raises(CheckpointError, match="token_clusters: checkpoint has"):
        train(other, root=tmp_path / "runs", data=open_data(other, tmp_path / "runs"))
    with pytest.raises(FingerprintError, match="expected token_clusters with the fingerprint"):
        open_data(spec, tmp_path / "runs")


def test_another_process_needs_and_carries_no_clusters(make: Any, tmp_path: Path) -> None:
    dataset = make()
    shutil.rmtree(dataset.folder("token_clusters"))  # whoever opened it would fail
    spec = planned(dataset, tmp_path, MASKED)
    data = open_data(spec, tmp_path)
    assert (spec.shape.noise_ids, data.stores, set(data.folders)) == (0, {}, {"tokenizer"})
    assert "token_clusters" not in spec.fingerprints


def test_a_dataset_without_the_store_names_the_pipelines_that_make_it(write_dataset: Any, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", TEXTS, ["train"] * 40)
    with pytest.raises(StoreError, match=r"has no token_clusters .*kedro run --pipelines=embedding,validation"):
        planned(dataset, tmp_path)


def test_the_states_of_an_example_are_those_of_its_tokens(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    dataset = helpers.commit_dataset(tmp_path)
    source = StoreSource(dataset, "train", fields=("token_states",))
    rows = np.array([5, 0, 17])
    found_nLd = source.field("token_states", rows)
    longest = int(source.lengths[rows].max())
    assert found_nLd.shape == (3, longest, helpers.STATE_DIM)
    tokens_nL = source.tokens(rows, length=longest)
    want_nLd = dataset.require("state_normaliser").standardise(helpers.Rows.states(tokens_nL))
    np.testing.assert_allclose(found_nLd, np.where(tokens_nL[..., None] == 0, 0, want_nLd), atol=1e-6)
