"""What is read in the rarer case: normalisers of images, weights without an average, stores, targets for each text."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from mm_ldlm import MMLDLM
from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import CheckpointError, SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference import editing, loading
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.training.checkpoints import folder

# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image_run(parts: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    objective = parse_kind(OBJECTIVES, {"kind": "image_text"}, at="objective")
    config = parse_kind(MODELS, {"kind": "image_mmdit", "dim": 16, "depth": 1, "heads": 2}, at="model")
    return parts.write_run(tmp_path_factory.mktemp("images") / "run", objective=objective, config=config)


def test_each_kind_of_run_has_the_normaliser_of_its_own_field(image_run: Any, run_folder: Any, parts: Any) -> None:
    images, latents = loading.load_run(image_run), loading.load_run(run_folder)
    found = [None if each is None else (each.mean_d[0], each.scale_d[0], len(each.mean_d))
             for run in (images, latents) for each in (run.normaliser, run.image_normaliser)]  # fmt: skip
    assert found == [None, pytest.approx((0.3, 0.75, 16)), pytest.approx((0.1, 0.5, 6)), None]


def test_a_run_of_images_draws_pixels_around_those_of_its_data(image_run: Any) -> None:
    model = MMLDLM.from_run(image_run)
    assert model.images.draw(["w1 w2"], steps=2).pixels.shape == (1, 4, 4, 1)
    assert model.images._pixels(torch.zeros(1, 16)).ravel().tolist() == pytest.approx([0.3] * 16)
    assert model.images._standardised(np.full((1, 4, 4, 1), 0.3)).abs().max() < 1e-6


def test_a_run_without_averaged_weights_is_loaded_with_its_last_ones(run_folder: Any, tmp_path: Any) -> None:
    step = run_folder / "checkpoints" / "step-00000003"
    tensors = folder.tensors(step, "ema.safetensors")
    states = {"training_state.json": json.loads((step / "training_state.json").read_text())}
    kept = {name: step / name for name in ("tokenizer", "normaliser")}
    run = tmp_path / "plain"
    folder.write(run / "checkpoints", 9, folder.Contents({"model.safetensors": tensors}, states, kept))
    (run / "config.json").write_text((run_folder / "config.json").read_text())
    assert not list(run.rglob("ema.safetensors"))
    for use_ema in (True, False):
        model = MMLDLM.from_run(run, use_ema=use_ema)
        assert model.parts is not None
        assert (model.parts.step, model.parts.checkpoint.name) == (9, "step-00000009")
        assert any(bool(parameter.abs().sum() > 0) for parameter in model.model.model.parameters())


def test_a_checkpoint_reads_the_config_of_its_own_run(parts: Any, tmp_path: Any) -> None:
    """The folder above has a config.json as well, of another model."""
    run = parts.write_run(tmp_path / "runs" / "run", objective=TextDiffusionConfig(), config=DiTConfig(dim=32, heads=2))
    (tmp_path / "runs" / "config.json").write_text("{}")
    step = run / "checkpoints" / "step-00000003"
    config = json.loads((run / "config.json").read_text())
    for path in (run, step):
        assert loading.run_config(path, step)["model"] == config["model"]
    (run / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"expected a run folder with config\.json, found none"):
        loading.load_run(run)


def test_a_misspelt_run_is_named_with_the_nearest_folder_beside_it(run_folder: Any) -> None:
    (run_folder.parent / "run-file").touch()
    with pytest.raises(CheckpointError, match=r"no such run folder\. Did you mean 'run-1'\?$"):
        MMLDLM.from_run(run_folder.parent / "run-11")
    with pytest.raises(
        CheckpointError, match=r"no such run folder\. Give the folder of a run, or the one that contains all runs\.$"
    ):
        MMLDLM.from_run(run_folder.parent / "nowhere" / "run-1")


# -- latents of requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m.infill(["w1 [MASK]"] * 3, latents=x(2)), "one latent for each of 3 texts, found 2 latents"),
        (lambda m, x: m.score(["w1", "w2"], latents=x(3)), "one latent for each of 2 texts, found 3 latents"),
        (lambda m, x: m.score_tokens([[1]], ["w1"], latents=x(2)), "one latent for each of 1 texts, found 2 latents"),
    ],
)
def test_every_text_has_one_latent(call: Any, message: str, model: Any, unit_latents: Any) -> None:
    with pytest.raises(SamplingError, match=message):
        call(model, unit_latents)


class Choosy:
    """A model to which the token that its latent names is the least likely one of a text."""

    shape = SimpleNamespace(pad_id=20, mask_id=21, vocab_size=22)
    device, evaluating = "cpu", contextlib.nullcontext

    def token_log_probs(self, tokens_BL: Any, *, latents_Bd: Any, generator: Any) -> Any:
        return -(tokens_BL == latents_Bd[:, :1].long()).double(), len(latents_Bd)


@pytest.mark.parametrize("batch_tokens", [1, 6, 100])
def test_what_an_edit_masks_depends_on_the_latent_of_its_own_text(batch_tokens: int) -> None:
    """Batches are made by length, so that the rows of a batch are not those of the request."""
    writer: Any = SimpleNamespace(
        model=Choosy(), batch_tokens=batch_tokens, generator=lambda rows, seed: RowGenerator(seed, torch.tensor(rows))
    )
    texts = [[1, 2], [1, 2, 3, 4], [1, 2, 3], [4, 3, 2, 1]]
    latents = torch.tensor([[2.0], [3.0], [1.0], [4.0]])
    found, _ = editing.remask(writer, texts, latents_nd=latents, strength=0.25, which="least_likely", seed=0)
    assert found == [[1, 2], [1, 2, 21, 4], [21, 2, 3], [21, 3, 2, 1]], "of two tokens a quarter is none"


@pytest.mark.parametrize("count", [1, 3])
def test_an_edit_is_written_given_its_own_target(count: int, model: Any, monkeypatch: Any, unit_latents: Any) -> None:
    seen: list[Any] = []
    engine = model._engine
    write, remask = engine.writer.write, editing.remask

    def remasked(writer: Any, ids: Any, **named: Any) -> Any:
        seen.append(named["latents_nd"])
        return remask(writer, ids, **named)

    def written(canvases: Any, **named: Any) -> Any:
        seen.append(named["latents_nd"])
        return write(canvases, **named)

    monkeypatch.setattr(editing, "remask", remasked)
    monkeypatch.setattr(engine.writer, "write", written)
    targets = unit_latents(count)
    found = model.edit(["w1 w2 w3", "w4", "w5 w6"], targets=targets, steps=1)
    wanted = np.repeat(targets, 3, axis=0) if count == 1 else targets
    for latents in seen:
        np.testing.assert_allclose(latents.numpy(), 2 * wanted, rtol=1e-6)
    np.testing.assert_allclose(found.latents, wanted)
    assert (len(seen), found.sources) == (2, ("w1 w2 w3", "w4", "w5 w6"))


class Store:
    """A latent store that is read by rows, and whose ids are not its row numbers."""

    def __init__(self, latents: Any) -> None:
        self.latents, self.read = latents, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return len(self.latents)

    def take(self, rows: Any) -> Any:
        self.read += rows.tolist()
        return self.latents[rows]

    def strings(self, name: str) -> Any:
        assert name == "id"
        return SimpleNamespace(take=lambda rows: pa.array([f"id {row}" for row in rows]))


@pytest.mark.parametrize("chunk", [2, 7, 100])
def test_neighbours_in_a_store_are_named_by_its_ids(chunk: int) -> None:
    draw = np.random.default_rng(0)
    latents, queries = draw.normal(size=(9, 3)), draw.normal(size=(4, 3))
    store = Store(latents)
    found, expected = editing.neighbours(queries, store, k=3, chunk=chunk), editing.neighbours(queries, latents, k=3)
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.ids == tuple(tuple(f"id {row}" for row in rows) for rows in expected.rows.tolist())
    assert store.read == list(range(9)), "each row once"


def test_equal_neighbours_are_in_the_order_of_the_store() -> None:
    store = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [5.0, 0.0]])
    for chunk in (1, 3, 10):
        assert editing.neighbours(np.array([[3.0, 0.0]]), store, k=3, chunk=chunk).rows.tolist() == [[0, 2, 3]]
