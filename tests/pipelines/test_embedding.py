"""The pipeline `embedding`: real nodes on a catalog in memory and a workspace on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from mm_ldlm.app.datasets import StoreDataset, WorkspaceDataset
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.store import NOT_NEEDED, ShardStore, StoreWriter
from mm_ldlm.pipelines.embedding.pipeline import create_pipeline

MULTIMODAL, TEXT_ONLY = {"kind": "multimodal"}, {"kind": "text_diffusion", "process": {"kind": "absorbing"}}
HDLM, DIT = {"kind": "text_diffusion", "process": {"kind": "hdlm"}}, {"kind": "dit", "dim": 32}
MMDIT = {"kind": "mmdit", "dim": 32, "depth": 1, "heads": 2}
TEXTS = ["A man plays the guitar.", "The cat sleeps.", "Someone is playing a guitar."]


@pytest.fixture
def records(tmp_path: Path) -> ShardStore:
    writer = StoreWriter(tmp_path / "records", kind="records", schema=RECORD_SCHEMA)
    writer.append(
        {
            "id": [record_id(text) for text in TEXTS],
            "text": TEXTS,
            "source": ["toy"] * 3,
            "split": ["train"] * 3,
            "meta": [None] * 3,
        }
    )
    writer.finish()
    return ShardStore.open(tmp_path / "records")


def catalog(records: ShardStore, root: Path, **parameters: Any) -> DataCatalog:
    given: dict[str, Any] = {
        "encoder": {"device": "cpu"},
        "embedding": {"processes": 1, "progress": False},
        "objective": MULTIMODAL,
        "model": MMDIT,
        **parameters,
    }
    return DataCatalog(
        {
            "records": MemoryDataset(records, copy_mode="assign"),
            "vectors": StoreDataset(filepath=str(root / "vectors"), kind="vectors", optional=True),
            "latents_workspace": WorkspaceDataset(filepath=str(root / "latents")),
            "latents": StoreDataset(filepath=str(root / "latents"), kind="latents", optional=True),
            **{f"params:{name}": MemoryDataset(value) for name, value in given.items()},
        }
    )


def test_records_become_latents(records: ShardStore, tmp_path: Path) -> None:
    data = catalog(records, tmp_path)
    SequentialRunner().run(create_pipeline().only_nodes("embedding.embed_records"), data)
    latents = data["latents"].load()
    assert latents.ids(slice(None)) == [record_id(text) for text in TEXTS]
    vectors = latents.take(slice(None))
    assert vectors.shape == (3, 384)
    cosine = vectors @ vectors.T
    assert cosine[0, 2] > 0.7 > cosine[0, 1]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_an_objective_on_texts_alone_embeds_nothing(
    records: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No encoder is looked for, latents that an earlier run wrote stay as they are, and the log says why."""
    caplog.set_level("INFO")
    for name in ("mm_ldlm.data.latents.extract.locate_encoder", "mm_ldlm.data.encoders.load_encoder"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("an encoder was located"))
    data = catalog(records, tmp_path, objective=TEXT_ONLY, encoder={"name": "no such encoder"})
    data["latents_workspace"].load()
    (tmp_path / "latents" / "left").write_text("by an earlier run")
    SequentialRunner().run(create_pipeline().only_nodes("embedding.embed_records"), data)
    assert [path.name for path in (tmp_path / "latents").iterdir()] == ["left"]
    assert data["latents"].load() is None
    assert "latents (not needed): the objective 'text_diffusion' reads no latents" in caplog.text


def test_token_vectors_are_embedded_for_a_model_that_starts_from_them(tmp_path: Path) -> None:
    from mm_ldlm.pipelines.embedding import nodes

    assert nodes.embed_vocabulary(None, {}, MMDIT, MULTIMODAL, tmp_path) is NOT_NEEDED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "objective"),
    [({**MMDIT, "token_vectors": "encoder"}, MULTIMODAL), (DIT, HDLM)],
    ids=["initial values of a model", "clusters of a text process"],
)
def test_token_vectors_are_embedded_for_whatever_uses_them(
    model: Any, objective: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_ldlm.pipelines.embedding import nodes

    monkeypatch.setattr("mm_ldlm.data.latents.token_vectors.embed_vocabulary", lambda *_, **__: "embedded")
    assert nodes.embed_vocabulary(None, {}, model, objective, tmp_path) == "embedded"
    assert nodes.embed_vocabulary(None, {}, DIT, TEXT_ONLY, tmp_path) is NOT_NEEDED


def test_a_misspelt_parameter_is_named_by_its_full_path(records: ShardStore, tmp_path: Path) -> None:
    data = catalog(records, tmp_path, embedding={"shard_row": 5})
    with pytest.raises(ConfigurationError, match=r"'embedding\.shard_row' is not known\. Did you mean 'shard_rows'"):
        SequentialRunner().run(create_pipeline().only_nodes("embedding.embed_records"), data)


@pytest.mark.parametrize(("number", "first"), [("0", True), ("1", False)])
def test_of_several_hosts_the_first_makes_every_store_and_the_others_encode(
    number: str, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of the sources need no encoding, so that the other hosts have nothing to do."""
    from mm_ldlm.pipelines.embedding import nodes

    made: list[str] = []

    def maker(name: str) -> Any:
        return lambda *_, **given: made.append(name + given_by(given.get("encoder"))) or name

    def given_by(encoder: Any) -> str:
        return " from vectors" if getattr(encoder, "kind", None) == "precomputed" else ""

    for name, place in (
        ("extract", "extract.extract"), ("helped", "extract.extract_with_first_host"), ("taken", "given.take_over"),
        ("pixels", "images.store_images"), ("tokens", "token_vectors.embed_vocabulary"),
        ("states", "token_states.embed_tokens"),
    ):  # fmt: skip
        monkeypatch.setattr(f"mm_ldlm.data.latents.{place}", maker(name))
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", number)
    records, vectors, mine = "records", "vectors", {"kind": "precomputed", "name": "a", "dim": 5, "normalised": True}
    given: Any = nodes
    pixels = {"height": 6, "width": 9, "channels": 1}
    found = [
        given.embed_records(records, vectors, {"device": "cpu"}, {}, MULTIMODAL, tmp_path),
        given.embed_records(records, vectors, mine, {}, MULTIMODAL, tmp_path),
        given.store_images(records, pixels, {"sources": [{"kind": "starter"}]}, {"kind": "image_text"}, tmp_path),
        given.embed_vocabulary("tokenizer", {"device": "cpu"}, DIT, HDLM, tmp_path),
        given.embed_tokens(records, "tokens", "tokenizer", {"device": "cpu"}, {}, {"kind": "ccdd"}, tmp_path),
    ]
    assert made == (["extract", "taken from vectors", "pixels", "tokens", "states"] if first else ["helped"])
    assert found == (["extract", "taken", "pixels", "tokens", "states"] if first else [NOT_NEEDED] * 5)
