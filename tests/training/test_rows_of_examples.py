"""Every value of a batch is that of its example: in both splits, for every field, on every rank."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from parts import ALONE, Heard

from mm_ldlm.core.errors import FingerprintError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.training import build, preflight, preview, sanity
from mm_ldlm.training.batches import BatchPlan, Planned, deal
from mm_ldlm.training.config import BatchConfig
from mm_ldlm.training.data import StoreSource, open_data

VECTORS = {"latents": "normaliser", "images": "image_normaliser"}
FIELDS = (*VECTORS, "labels", "pair_tokens", "token_states")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """64 records of which every eighth is held out, so that no row of a split is that of its record."""
    root = tmp_path_factory.mktemp("rows")
    helpers.write_stores(root)
    return helpers.commit_dataset(root)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tokens_and_every_field_of_a_row_are_those_of_its_record(split: str, dataset: Dataset) -> None:
    source = StoreSource(dataset, split, fields=FIELDS)
    records = np.array([i for i in range(64) if helpers.SPLITS[i % 8] == split])
    rows, made = np.array([5, 0, 6, 5]), helpers.Rows(64)
    chosen = records[rows]
    assert source.lengths.tolist() == made.lengths[records].tolist()
    np.testing.assert_array_equal(source.tokens(rows, length=12), made.tokens(chosen, length=12))
    for name, normaliser in VECTORS.items():
        want = dataset.require(normaliser).standardise(made.field(name, chosen))
        np.testing.assert_allclose(source.field(name, rows), want, rtol=1e-5, atol=1e-6, err_msg=name)
        assert source.field(name, rows).dtype == np.float32
    assert source.field("labels", rows)[:, 0].tolist() == (chosen % 3).tolist(), "numbers are not standardised"
    words = [f"w{3 + i % 9} w4" for i in chosen]
    assert [dataset.tokenizer.decode_batch([[i for i in ids if i != 0]])[0] for ids in
            source.field("pair_tokens", rows).tolist()] == words  # fmt: skip
    longest = int(made.lengths[chosen].max())
    ids = made.tokens(chosen, length=longest)
    states = dataset.require("state_normaliser").standardise(helpers.Rows.states(ids))
    np.testing.assert_allclose(
        source.field("token_states", rows), np.where(ids[..., None] == 0, 0, states), rtol=1e-5, atol=1e-6
    )


class Numbered:
    """Row r has r + 1 tokens 100·r + column, the field `latents` r, and a pad that is not 0."""

    pad_id = 7

    def __init__(self, count: int) -> None:
        self.lengths = np.arange(1, count + 1)

    def tokens(self, rows: Any, *, length: int) -> Any:
        columns = np.arange(length)
        return np.where(columns < self.lengths[rows][:, None], 100 * rows[:, None] + columns, self.pad_id)

    def field(self, name: str, rows: Any) -> Any:
        return {"latents": rows[:, None].astype(np.float32), "labels": rows[:, None] + 1000}[name]


@pytest.mark.parametrize("fill", [False, True])
def test_on_every_rank_the_tokens_and_fields_of_a_position_are_those_of_its_example(fill: bool) -> None:
    source = Numbered(9)
    planned = Planned(3, 4, np.array([8, 2, 5, 0, 6, 1, 3]), 9, 12, 32)
    found = []
    for rank in range(2):
        given: dict[str, Any] = {"rank": rank, "world": 2, "accumulation": 2, "fill": fill}
        for batch in deal(planned, source, fields=("latents", "labels"), **given):
            assert len(batch.examples_B) == (3 if fill else 2)
            for row, (example, position) in enumerate(zip(batch.examples_B, batch.position_B, strict=True)):
                found.append((int(position), int(example)))
                count = 0 if example < 0 else int(example) + 1
                assert batch.valid_BL[row].tolist() == [True] * count + [False] * (9 - count)
                words = [100 * int(example) + column for column in range(count)]
                assert batch.tokens_BL[row].tolist() == words + [7] * (9 - count), "a filling has pads only"
                own = max(int(example), 0)
                assert (batch.fields["latents"][row].item(), batch.fields["labels"][row].item()) == (
                    own, own + 1000 if example >= 0 else 0
                )  # fmt: skip
    real = sorted(pair for pair in found if pair[1] >= 0)
    assert real == list(enumerate(planned.examples.tolist()))
    assert sorted(position for position, _ in found) == list(range(12 if fill else 8)), "each position once"


def test_a_data_set_that_changed_is_refused_with_both_fingerprints(dataset: Dataset) -> None:
    spec = helpers.planned(dataset.directory.parent)
    (dataset.directory.parent / "runs").mkdir(exist_ok=True)
    for name in ("tokens", "encoder"):
        planned = dataclasses.replace(spec, fingerprints={**spec.fingerprints, name: "planned"})
        words = f"expected {name} with the fingerprint planned, as in the spec, found {dataset.fingerprints[name]}"
        with pytest.raises(FingerprintError, match=words):
            open_data(planned, dataset.directory.parent / "runs")


# -- one row, or a few -------------------------------------------------------------------------------------------------


def shown(task: str, source: Any, tmp_path: Path, tokenizer: TextTokenizer) -> tuple[Any, dict[str, Any]]:
    """A preview of a model that notes what it is asked for, and these notes."""
    asked: dict[str, Any] = {}

    def write(canvas_1L: Any, free_1L: Any, *, latents_Bd: Any, sampler: Any, generator: Any) -> Any:
        asked.update(canvas=canvas_1L, free=free_1L, latents=latents_Bd, sampler=sampler)
        return SimpleNamespace(tokens=torch.tensor([[4, 0, 5, 0]]))

    model = SimpleNamespace(
        shape=helpers.SHAPE, has_length=True, write=write, default_sampler=lambda *, conditional: ("of", conditional)
    )
    root: Any = torch.nn.Linear(1, 1)
    root.model = None
    root.objective = SimpleNamespace(generative_model=lambda of: model)
    tokenizer.save(tmp_path / "tokenizer")
    made = preview.Preview(
        root, source, tokenizer=tmp_path / "tokenizer", task=task, every=1.0, seed=3, device=torch.device("cpu"),  # type: ignore[arg-type]
        capabilities=SimpleNamespace(refuse_length=lambda *_, **__: "not trained"), tracker=Heard(),  # type: ignore[arg-type]
    )  # fmt: skip
    return made, asked


@pytest.mark.parametrize("task", ["l2t", "unconditional"])
def test_the_shown_sentence_is_rebuilt_from_its_own_latent(task: str, dataset: Dataset, tmp_path: Path) -> None:
    source = helpers.Rows(33, seed=4)
    made, asked = shown(task, source, tmp_path, dataset.tokenizer)
    made(8, last=False)
    (row,) = made._row.tolist()
    length = int(source.lengths[row])
    ((step, kind, about),) = made.tracker.events
    assert (step, kind, about["text"]) == (8, "preview", "w4 w5")
    assert asked["canvas"].tolist() == [[helpers.SHAPE.mask_id] * length]
    assert asked["free"].tolist() == [[True] * length]
    assert asked["sampler"] == ("of", task == "l2t")
    if task == "l2t":
        assert asked["latents"].tolist() == source.field("latents", np.array([row])).tolist()
        assert about["original"].split() == [f"w{i}" for i in source.tokens(np.array([row]), length=length)[0]]
    else:
        assert (asked["latents"], about["original"]) == (None, None)


def test_without_held_out_examples_a_training_sentence_is_shown(dataset: Dataset) -> None:
    root = dataset.directory.parent
    spec = helpers.planned(root, show_every_seconds=60)
    (root / "runs").mkdir(exist_ok=True)
    data = open_data(spec, root / "runs")
    without = dataclasses.replace(data, validation=None)
    for given, source in ((data, data.validation), (without, data.train)):
        made = build._preview(spec, given, torch.nn.Module(), ALONE, Heard())  # type: ignore[arg-type]
        assert made is not None
        assert made.source is source


def test_the_dry_step_has_the_largest_shape_and_only_texts_that_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of 24 tokens: 6 × 4, 3 × 8 and 2 × 12 tokens; of equally large shapes the longest counts."""
    source = Numbered(12)
    plan = BatchPlan(
        source.lengths, BatchConfig(tokens=24, length_multiple=4, example_multiple=1, accumulation=2), seed=0,
        max_length=12,
    )  # fmt: skip
    seen: list[Any] = []
    objective = SimpleNamespace(fields=("latents",), kinds=("a", "b"))
    stepper: Any = SimpleNamespace(
        process=ALONE, objective=objective, root=torch.nn.Linear(1, 1),
        total=lambda batch, *, kind, draw, step: seen.append((kind, batch)), parallel=SimpleNamespace(gradients=id),
    )  # fmt: skip
    data: Any = SimpleNamespace(train=source)
    assert preflight.dry_step(stepper, plan, data, filled=False).found == "2 examples × 12 tokens over all ranks fit"
    assert [kind for kind, _ in seen] == ["a", "b"]
    assert {tuple(batch.tokens_BL.shape) for _, batch in seen} == {(1, 12)}, "one of two micro-batches"
    seen.clear()
    preflight._passes(stepper, data, 10, 4, 1)
    assert [int(batch.valid_BL.sum(1).max()) for _, batch in seen] == [4, 4]
    assert seen[0][1].examples_B.tolist() == [0, 1, 2, 3] + [0] * 6, "longer texts are replaced by the shortest"
    assert seen[0][1].global_tokens == 1 + 2 + 3 + 4 + 6


def test_the_batch_of_the_sanity_checks_has_the_first_examples_and_their_fields() -> None:
    source = Numbered(11)
    parts: Any = SimpleNamespace(
        stepper=SimpleNamespace(objective=SimpleNamespace(fields=("labels",))), process=ALONE
    )  # fmt: skip
    data: Any = SimpleNamespace(train=source, shape=SimpleNamespace(max_length=10))
    for count, examples, length in ((4, 4, 8), (9, 9, 10), (99, 11, 10)):
        batch = sanity._batch(parts, data, count)
        assert batch.examples_B.tolist() == list(range(examples))
        assert batch.tokens_BL.shape == (examples, length)
        assert batch.fields["labels"][:, 0].tolist() == [1000 + i for i in range(examples)]
        assert (batch.global_size, batch.global_tokens) == (examples, examples * (examples + 1) // 2)


def test_the_spec_of_a_run_finds_its_data_from_the_folder_of_the_runs(dataset: Dataset) -> None:
    root = dataset.directory.parent
    spec = helpers.planned(root)
    written = json.loads(json.dumps(spec.to_dict()))
    assert (root / "runs" / written["dataset"]).resolve() == dataset.directory.resolve()
