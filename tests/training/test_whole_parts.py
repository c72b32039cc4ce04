"""What construction, preview and checkpoints hand on, as a whole: every argument and every field has its own value."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from parts import ALONE, Heard
from test_saves_by_hand import made as saves_of

from mm_ldlm.core.config import to_dict
from mm_ldlm.training import build as building
from mm_ldlm.training import preview
from mm_ldlm.training.alerts import Alerts
from mm_ldlm.training.build import build

SMALL = {"depth": 1}


def test_initial_weights_are_asked_for_with_the_data_of_this_run_before_its_parts_are_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    frozen: list[bool] = []

    def initialise(root: Any, path: Path, **given: Any) -> None:
        frozen.extend(not parameter.requires_grad for parameter in root.parameters())
        asked.append((path, given))

    monkeypatch.setattr(building, "initialise", initialise)
    spec = helpers.spec(
        model=SMALL, objective={"mode": "l2t"}, init_from="other/run", init_vocabulary="by_token"
    )  # fmt: skip
    shape = dataclasses.replace(helpers.SHAPE, max_length=11)
    data = dataclasses.replace(
        helpers.data(), shape=shape, folders={"tokenizer": tmp_path / "t", "normaliser": tmp_path}
    )
    heard = Heard()
    root = building._trainable_root(spec, data, tmp_path, None, heard)
    ((path, given),) = asked
    larger = given.pop("build")(dataclasses.replace(shape, vocab_size=shape.vocab_size + 2))
    assert path == tmp_path / "other" / "run"
    assert given == {
        "vocabulary": "by_token", "tokenizer": tmp_path / "t", "shape": shape, "tracker": heard,
        "options": to_dict(spec.model),
    }  # fmt: skip
    assert not any(frozen)
    table = "model.text_embedding.table.weight"
    sizes = [len(dict(each.named_parameters())[table]) for each in (root, larger)]
    assert sizes[1] - sizes[0] == 2
    asked.clear()
    building._trainable_root(helpers.spec(model=SMALL), helpers.data(), tmp_path, None, heard)
    assert asked == []


def test_the_blocks_of_a_model_are_sharded_and_without_fsdp_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(building, "shard", lambda *given: asked.append(given))
    parts: Any = build(
        helpers.spec(model={"depth": 2}, parallel="fsdp"), root=tmp_path, data=helpers.data(), process=ALONE,
        tracker=Heard(),
    )  # fmt: skip
    model = parts.stepper.root.model
    assert asked == [(model, list(model.blocks), ALONE)]
    assert len(model.blocks) == 2
    build(helpers.spec(model=SMALL), root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard())
    assert len(asked) == 1


def test_a_preview_has_the_interval_the_seed_and_the_folder_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "Preview", lambda root, source, **given: (root, source, given))
    spec = helpers.spec(model=SMALL, seed=31, show_every_seconds=45.0)
    data = dataclasses.replace(helpers.data(), folders={"tokenizer": tmp_path / "t"})
    heard = Heard()
    root: Any = object()
    found: Any = building._preview(spec, data, root, ALONE, heard)
    assert found[:2] == (root, data.validation)
    assert found[2] == {
        "tokenizer": tmp_path / "t", "capabilities": spec.objective.capabilities(spec.model), "task": "l2t",
        "every": 45.0, "seed": 31, "device": ALONE.device, "tracker": heard,
    }  # fmt: skip


def test_a_text_that_is_shown_has_no_pads_whatever_their_id() -> None:
    shape = SimpleNamespace(pad_id=7, mask_id=9, max_length=5)
    written: list[Any] = []

    def write(canvas_1L: Any, free_1L: Any, *, latents_Bd: Any, sampler: Any, generator: Any) -> Any:
        written.append((canvas_1L.tolist(), free_1L.tolist(), latents_Bd, sampler, generator.uniform().tolist()))
        return SimpleNamespace(tokens=torch.tensor([[4, 7, 8, 7, 0]]))

    model = SimpleNamespace(
        shape=shape, has_length=False, write=write, default_sampler=lambda *, conditional: ("for", conditional)
    )
    shows = preview.Preview.__new__(preview.Preview)
    shows.task, shows.device = "unconditional", torch.device("cpu")
    shows.root = SimpleNamespace(objective=SimpleNamespace(generative_model=lambda of: model), model=None)  # type: ignore[assignment]
    for seed in (3, 3, 4):
        shows.seed = seed
        assert shows._write(2) == [4, 8, 0]
    first, again, other = written
    assert first == again
    assert first[:4] == ([[9] * 5], [[True] * 5], None, ("for", False))
    assert first[4] != other[4], "the noise is that of the seed"


def test_differences_between_two_sessions_are_recorded_at_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    saves = saves_of(tmp_path)
    saves.optimization.load, saves.guard.load = (lambda *_: None), (lambda found: None)
    saves.state.step = 4
    saves.save({})
    saves.tracker.events.clear()
    saves.state.step = 9
    for session, fields in (
        ({"seed": 2}, None), ({"seed": 3, "world": 2}, ["seed: checkpoint has 2, this run 3",
                                                        "world: checkpoint has 'nothing', this run 2"]),
    ):  # fmt: skip
        saves.session = session
        assert saves.restore() == 4
        assert saves.state.step == 4
        expected = [] if fields is None else [(4, "resume_differs", {"fields": fields})]
        assert saves.tracker.events == expected
        saves.tracker.events.clear()


def test_a_best_metric_that_a_line_lacks_is_recorded_with_the_names_that_it_has(tmp_path: Path) -> None:
    saves = saves_of(tmp_path, best_metric="m")
    saves.state.step = 6
    assert saves._is_best({"z": 1.0, "b": 2.0, "n": 3.0}) is False
    assert saves.tracker.events == [(6, "best_unknown", {"reason": "no 'm' among ['b', 'n', 'z']"})]


@pytest.mark.parametrize(("scale", "shown"), [(0.5, "0.5"), (65536.0, "65536"), (2.0**24, "1.67772e+07")])
def test_the_loss_scale_of_an_alert_may_be_below_1(scale: float, shown: str) -> None:
    watch = Alerts(heard := Heard())
    watch.diagnosed(3, {"fp16_underflow": 0.256, "fp16_scale": scale})
    ((_, _, about),) = heard.events
    assert about["reason"].startswith(f"26% of the fp16 gradients are exactly 0 at the loss scale {shown}: ")


def test_windows_of_each_kind_of_step_are_their_own() -> None:
    """Two kinds in turn: neither has a window before it has 500 steps of its own."""
    watch = Alerts(heard := Heard())
    for step in range(999):
        watch.stepped(step, kind="ab"[step % 2], loss=2.0, grad_norm=1.0)
    assert [(step, about["name"]) for step, _, about in heard.events] == [(998, "constant_loss/a")]


def test_a_loss_that_falls_from_above_and_from_below_zero_is_no_stall() -> None:
    """The errors of both means count, each with its own window."""
    for level in (5.0, -5.0):
        watch = Alerts(heard := Heard())
        for window, (mean, spread) in enumerate(((level, 4.0), (level - 1.0, 0.01), (level - 1.002, 0.01))):
            for step in range(500):
                loss = mean + (spread if step % 2 else -spread)
                watch.stepped(500 * window + step, kind="a", loss=loss, grad_norm=1.0)
        assert heard.events == [], "a third mean is compared with the error of the second"
