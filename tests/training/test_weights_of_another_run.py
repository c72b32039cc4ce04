"""Initial weights by hand: which file, which parameters, what a checkpoint need not have; what a restore refuses."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from parts import ALONE, Heard
from torch import nn

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.initial import common_tokens, initialise, root_names


class Root(nn.Module):
    """A model, and an objective with or without a parameter; both have a buffer."""

    def __init__(self, *, learned: bool = True) -> None:
        super().__init__()
        self.model, self.objective = nn.Linear(2, 1, bias=False), nn.Module()
        if learned:
            self.objective.scale = nn.Parameter(torch.zeros(1))
        for module in (self.model, self.objective):
            module.register_buffer("seen", torch.tensor([7.0]))
        nn.init.zeros_(self.model.weight)

    def values(self) -> dict[str, float]:
        return {name: float(value.flatten()[0]) for name, value in self.state_dict().items()}


def tensors(**values: float) -> dict[str, torch.Tensor]:
    """By name, with "__" for dots."""
    found = {name.replace("__", "."): value for name, value in values.items()}
    return {name: torch.full((1, 2) if "weight" in name else (1,), value) for name, value in found.items()}


def start(root: Any, path: Path) -> None:
    initialise(
        root, path, vocabulary="same", tokenizer=None, shape=helpers.SHAPE, build=lambda shape: root, tracker=Heard(),
        options={},
    )  # fmt: skip


def written(directory: Path, **files: dict[str, torch.Tensor]) -> Path:
    named = {f"{name}.safetensors": values for name, values in files.items()}
    return folder.write(directory, 3, folder.Contents(named, {"training_state.json": {"identity": {}}}))


BUFFERS = {"model__seen": 1.0, "objective__seen": 2.0}


def test_averages_are_taken_before_the_last_weights_and_buffers_from_neither(tmp_path: Path) -> None:
    last = tensors(model__weight=3.0, objective__scale=4.0, **BUFFERS)
    averages = tensors(model__weight=5.0, objective__scale=6.0, **BUFFERS)
    for name, files, expected in (
        ("both", {"model": last, "ema": averages}, (5.0, 6.0)), ("last", {"model": last}, (3.0, 4.0)),
    ):  # fmt: skip
        start(root := Root(), written(tmp_path / name, **files))
        assert root.values() == {"model.weight": expected[0], "objective.scale": expected[1], "model.seen": 7.0,
                                 "objective.seen": 7.0}  # fmt: skip


@pytest.mark.parametrize(
    ("learned", "given", "expected"),
    [
        (True, {"model__weight": 3.0}, {"model.weight": 3.0, "objective.scale": 0.0}),
        (True, {"model__weight": 3.0, "objective__scale": 4.0}, {"model.weight": 3.0, "objective.scale": 4.0}),
        (False, {"model__weight": 3.0, "objective__scale": 4.0}, {"model.weight": 3.0}),
        (True, {"model__weight": 3.0, "objective__other": 4.0}, {"model.weight": 3.0, "objective.scale": 0.0}),
    ],
    ids=["it has none", "both have it", "the run has none", "another objective"],
)
def test_the_parameters_of_the_objective_are_taken_where_both_have_them(
    learned: bool, given: dict[str, float], expected: dict[str, float], tmp_path: Path
) -> None:
    start(root := Root(learned=learned), written(tmp_path, model=tensors(**given)))
    assert {name: value for name, value in root.values().items() if "seen" not in name} == expected


def test_what_is_not_taken_may_have_any_values_and_what_is_taken_may_not(tmp_path: Path) -> None:
    bad = tensors(model__weight=3.0, objective__scale=math.nan, model__seen=math.inf)
    start(Root(learned=False), written(tmp_path / "a", model=bad))
    path = written(tmp_path / "b", model=bad)
    with pytest.raises(CheckpointError, match=r"b/step-00000003: expected finite weights, .* objective\.scale\. Choose "
                       r"another checkpoint for training\.init_from"):  # fmt: skip
        start(Root(), path)


def test_a_model_of_another_shape_or_with_other_names_is_refused(tmp_path: Path) -> None:
    root = Root()
    with pytest.raises(CheckpointError, match=r"Missing: \['model\.weight'\]\. Unknown: \['model\.bias'\]"):
        start(root, written(tmp_path / "a", model=tensors(model__bias=1.0)))
    wrong = {"model.weight": torch.ones(2, 2), "objective.scale": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"model\.weight: expected \(1, 2\), found \(2, 2\)"):
        start(root, written(tmp_path / "b", model=wrong))
    assert root.values()["objective.scale"] == 0.0


def test_an_objective_has_all_of_its_parameters_in_a_checkpoint_or_none(tmp_path: Path) -> None:
    root = Root()
    root.objective.shift = nn.Parameter(torch.zeros(1))
    start(root, written(tmp_path / "none", model=tensors(model__weight=3.0)))
    assert root.values()["model.weight"] == 3.0
    with pytest.raises(CheckpointError, match=r"Missing: \['objective\.shift'\]"):
        start(root, written(tmp_path / "one", model=tensors(model__weight=3.0, objective__scale=4.0)))
    assert (root.values()["objective.scale"], root.values()["objective.shift"]) == (0.0, 0.0)


def test_a_special_token_is_not_paired_again_by_its_spelling() -> None:
    """The pad of the one is an ordinary word of the other, which has another pad."""

    def words(*spelled: str, pad: int) -> Any:
        return SimpleNamespace(
            pad_id=pad, mask_id=1, unk_id=2, vocab_size=len(spelled), token=lambda index: spelled[index]
        )

    theirs = words("<pad>", "[MASK]", "[UNK]", "[PAD]", "b", "a", pad=0)
    ours = words("[PAD]", "<m>", "[UNK]", "a", "[MASK]", "b", "<pad>", pad=0)
    found = [tuple(pair) for pair in torch.stack(common_tokens(theirs, ours), dim=1).tolist()]
    assert found == [(0, 0), (1, 1), (2, 2), (5, 3), (4, 5)], "pad, mask and unknown by their role, others by spelling"


def test_names_of_a_model_get_its_prefix_and_those_of_an_objective_keep_theirs() -> None:
    found = root_names({"a.b": torch.ones(1), "objective.c": torch.ones(2), "objectives.d": torch.ones(3)})
    assert {name: len(value) for name, value in found.items()} == {
        "model.a.b": 1, "objective.c": 2, "model.objectives.d": 3
    }  # fmt: skip


# -- a restore ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model", "ema"])
def test_a_restore_names_the_file_whose_weights_are_not_finite(file: str, tmp_path: Path) -> None:
    spec = helpers.spec(model={"depth": 1}, checkpoint={"background": False})
    parts = build(spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard())
    before = {name: value.detach().clone() for name, value in parts.stepper.root.named_parameters()}
    place = dict(parts.stepper.root.named_parameters()) if file == "model" else parts.ema.values
    name = sorted(before)[0]
    with torch.no_grad():
        place[name].view(-1)[0] = math.nan
    parts.state.step = 4
    parts.checkpointer.save({})
    with torch.no_grad():
        place[name].copy_(before[name])
    with pytest.raises(CheckpointError) as refused:
        parts.checkpointer.restore()
    path = tmp_path / "run" / "checkpoints" / "step-00000004" / f"{file}.safetensors"
    assert str(refused.value).startswith(f"{path}: expected finite weights, found NaN or infinity in 1 of ")
    assert f"the first of them {name}. Remove this checkpoint, so that the run continues from the one before" in str(
        refused.value
    )
    assert all(torch.equal(value, before[key]) for key, value in parts.stepper.root.named_parameters())


def test_the_document_of_a_checkpoint_is_whole(tmp_path: Path) -> None:
    spec = helpers.spec(model={"depth": 1}, precision={"autocast": "fp16"}, checkpoint={"background": False})
    parts: Any = build(spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard())
    parts.state.step, parts.state.tokens, parts.guard.consecutive_spikes = 4, 77, 3
    saves = parts.checkpointer
    saves.save({"loss": 2.0})
    found = folder.document(saves.newest(), "training_state.json")
    assert found.keys() == {"state", "guard", "scaler", "identity", "session", "metrics"}
    assert (found["state"], found["guard"]) == (parts.state.to_dict(), parts.guard.to_dict())
    assert found["scaler"] == parts.stepper.scaler.state_dict()
    assert (found["session"], found["metrics"]) == (saves.session, {"loss": 2.0})
    assert found["identity"] == saves.identity
    assert saves.identity["shape"]["vocab_size"] == helpers.VOCAB
    assert (saves.identity["tokenizer"], saves.identity["normaliser"], saves.identity["encoder"]) == ("t", "n", "e")
    plain = helpers.spec(model={"depth": 1}, run_name="plain", checkpoint={"background": False})
    other: Any = build(plain, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard()).checkpointer
    other.save({})
    assert folder.document(other.newest(), "training_state.json")["scaler"] is None
