"""What one part of a training hands to the next: alerts, lines and ends of the loop, precision, scaler and graphs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from parts import ALONE, Heard
from torch import nn

from mm_ldlm.core.errors import CheckpointError, ConfigurationError
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import build as building
from mm_ldlm.training import checkpointer, loop
from mm_ldlm.training.build import build
from mm_ldlm.training.guard import Verdict
from mm_ldlm.training.stepper import Stepper

SMALL = {"depth": 1}


def made(root: Path, tracker: Any = None, **settings: Any) -> Any:
    spec = helpers.spec(**{"model": SMALL, "max_steps": 6, **settings})
    return build(spec, root=root, data=helpers.data(), process=ALONE, tracker=tracker or Heard())


# -- the loop ----------------------------------------------------------------------------------------------------------


def test_alerts_receive_the_line_of_every_diagnosed_step_and_of_no_other(tmp_path: Path) -> None:
    parts = made(tmp_path, diagnose_every=3, log_every=2)
    diagnosed: list[tuple[int, dict[str, float]]] = []
    stepped: list[tuple[int, float]] = []
    parts.alerts.diagnosed = lambda step, line: diagnosed.append((step, dict(line)))
    parts.alerts.stepped = lambda step, *, grad_norm, **_: stepped.append((step, grad_norm))
    loop.run(parts)
    assert [step for step, _ in diagnosed] == [1, 3, 6], "the first one, and every third"
    for _, line in diagnosed:
        assert {"loss", "grad_norm", "grad_zeros/text_head"} <= set(line)
    lines = dict(parts.tracker.lines)
    assert sorted(lines) == [1, 2, 3, 4, 6]
    assert [step for step, line in lines.items() if "grad_zeros/text_head" in line] == [1, 3, 6]
    assert [step for step, _ in stepped] == list(range(6))
    assert lines[3]["grad_norm"] == pytest.approx(stepped[2][1])
    assert lines[6]["grad_norm_max"] == pytest.approx(max(norm for _, norm in stepped[4:]))


def test_a_line_names_the_mode_of_its_step_and_the_fraction_of_clipped_steps(tmp_path: Path) -> None:
    parts = made(tmp_path, objective={"mode": "sequential"}, log_every=2)
    clipped = iter([True, False, True, True, False, False])
    parts.optimization.clip = lambda norm: next(clipped)
    loop.run(parts)
    kinds = parts.stepper.objective.kinds
    assert len(kinds) == 3
    assert [(step, line["mode"], line["clipped"]) for step, line in parts.tracker.lines] == [
        (2, kinds[1], 0.5), (4, kinds[0], 1.0), (6, kinds[2], 0.0)
    ]  # fmt: skip
    for _, line in parts.tracker.lines:
        assert f"{line['mode']}/loss" in line


def test_an_estimate_a_checkpoint_by_time_and_the_minutes_of_the_end_are_recorded(tmp_path: Path) -> None:
    parts = made(tmp_path, checkpoint={"every_steps": None, "background": False}, max_minutes=1e-9, max_steps=5)
    parts.throughput.out_of_time = lambda: parts.state.step == 3
    parts.checkpointer.minutes_over = lambda: parts.state.step == 1
    estimates = iter([None, {"seconds_left": 7.0}, None, None])
    parts.throughput.estimate = lambda: next(estimates)
    assert loop.run(parts) == "finished"
    events = [(step, kind) for step, kind, _ in parts.tracker.events if kind != "trains"]
    assert events == [(2, "estimate"), (2, "checkpoint"), (4, "checkpoint"), (4, "ended_early")]
    assert parts.tracker.events[-1][2] == {"reason": "max_minutes (1e-09) have passed"}
    assert next(more for _, kind, more in parts.tracker.events if kind == "estimate") == {"seconds_left": 7.0}


def test_what_diverged_is_told_with_its_step_reason_diagnosis_and_last_checkpoint() -> None:
    parts: Any = SimpleNamespace(
        state=SimpleNamespace(step=41), checkpointer=SimpleNamespace(latest=lambda: "runs/x/step-00000040")
    )
    verdict = Verdict("stop", "loss is nan (rank 3)")
    told = loop.divergence_message(parts, verdict, "Rank 3: the weights are gone.")
    assert told.startswith("training diverged at step 41: loss is nan (rank 3).\nRank 3: the weights are gone.\n")
    assert told.endswith("The last good checkpoint is kept: runs/x/step-00000040.")
    assert "No single first cause was found" in loop.divergence_message(parts, verdict, "")


# -- construction ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", ["fp16", "bf16", "fp32"])
def test_one_scaler_of_fp16_is_that_of_steps_diagnoses_and_checkpoints(autocast: str, tmp_path: Path) -> None:
    parts = made(tmp_path, precision={"autocast": autocast})
    scaler = parts.stepper.scaler
    assert (scaler is not None) == (autocast == "fp16")
    assert parts.diagnostics.scaler is parts.checkpointer.scaler is scaler
    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    with parts.stepper.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == kinds[autocast]
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32, "outside of a step nothing is converted"


def test_a_compiled_model_is_called_by_the_steps_alone_with_filled_batches_and_room_for_every_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def compiled(model: Any, *, graphs: int) -> Any:
        asked.append((model, graphs))
        return nn.Identity()

    monkeypatch.setattr(building, "_compiled", compiled)
    parts = made(tmp_path, precision={"compile": True}, validate_every=3, objective={"mode": "mixed"})
    root = parts.stepper.root
    shapes = len(parts.loader.plan.shapes())
    assert shapes > 1
    assert asked == [(root.model, 2 * shapes * 3)], "with and without an estimate first, of each shape and mode"
    assert root.forward_model is not root.model
    assert dict(root.named_children()).keys() <= {"model", "objective"}, "its parameters are not listed twice"
    assert (parts.loader.fill, parts.validate.loader.fill, parts.diagnostics.compiled) == (True, True, True)
    assert parts.stepper.objective.fixed_shapes
    parts.diagnostics.arm()
    assert not any(module._forward_hooks for module in root.modules()), "hooks would compile it anew"


@pytest.mark.parametrize("graphs", [3, 7, 8, 40])
def test_the_limit_of_graphs_is_raised_and_never_lowered(graphs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo

    monkeypatch.setattr(torch, "compile", lambda model, *, dynamic: (model, dynamic))
    model = nn.Identity()
    with torch._dynamo.config.patch(recompile_limit=8):
        assert building._compiled(model, graphs=graphs) == (model, False)
        assert torch._dynamo.config.recompile_limit == max(8, graphs + 1)


def test_a_sharded_model_takes_no_objective_with_parameters(tmp_path: Path) -> None:
    """The gradients of its parameters would not be reduced."""
    dit = {"kind": "dit", "dim": 16, "depth": 1, "heads": 2}
    for kind, refused in (("text_diffusion", False), ("adaptive_masking", True)):
        settings: dict[str, Any] = {"parallel": "fsdp", "model": dit}
        spec = helpers.spec(**settings)
        spec = dataclasses.replace(spec, objective=helpers.parse_kind(helpers.OBJECTIVES, {"kind": kind}, at="o"))
        if refused:
            with pytest.raises(ConfigurationError, match=r"'training\.parallel' is 'fsdp', which shards only the"):
                build(spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard())
        else:
            build(spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Heard())


def test_a_larger_vocabulary_has_vectors_for_its_further_ids() -> None:
    """As `init_vocabulary: by_token` asks for, to see which parameters grow with the vocabulary."""
    vectors = np.random.default_rng(0).standard_normal((helpers.VOCAB, helpers.DIM)).astype(np.float32)
    spec = helpers.spec(model={"depth": 1, "token_vectors": "encoder"})
    data = dataclasses.replace(helpers.data(), token_vectors=vectors)
    sizes = []
    for more in (0, 1, 3):
        shape = dataclasses.replace(helpers.SHAPE, vocab_size=helpers.VOCAB + more)
        root = building._initial_root(spec, data, shape, None)
        sizes.append(dict(root.named_parameters())["model.text_embedding.table.weight"].shape[0])
    assert sizes == [sizes[0], sizes[0] + 1, sizes[0] + 3]


def test_initial_weights_are_those_of_the_seed() -> None:
    def weights(seed: int) -> torch.Tensor:
        root = building.untrained_root(helpers.spec(model=SMALL, seed=seed), helpers.data())
        return dict(root.named_parameters())["model.blocks.0.streams.0.qkv.weight"].detach()

    assert torch.equal(weights(3), weights(3))
    assert float((weights(3) - weights(4)).abs().mean()) > 1e-3


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_restore_waits_for_the_writer_and_for_the_other_ranks_before_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, order = made(tmp_path).checkpointer, list[str]()
    saves.save({})
    found = saves.newest()
    monkeypatch.setattr(saves, "wait", lambda: order.append("wait"))
    monkeypatch.setattr(saves, "newest", lambda: order.append("newest") or found)
    monkeypatch.setattr(checkpointer.collectives, "barrier", lambda: order.append("barrier"))
    saves.restore()
    assert order == ["wait", "barrier", "newest"]


def test_a_run_continues_in_another_precision_and_from_buffers_that_are_not_finite(tmp_path: Path) -> None:
    """A scaler that the checkpoint lacks starts anew; what is not learned may hold infinity, as a plateau does."""
    first = made(tmp_path)
    first.state.step = 4
    first.checkpointer.save({})
    second = made(tmp_path, precision={"autocast": "fp16"})
    before = second.checkpointer.scaler.state_dict()
    assert second.checkpointer.restore() == 4
    assert second.checkpointer.scaler.state_dict() == before
    for parts in (first, second):
        parts.stepper.root.register_buffer("plateau", torch.tensor([1.0, math.inf]))
    first.state.step = 5
    first.checkpointer.save({})
    assert second.checkpointer.restore() == 5
    assert second.stepper.root.plateau.tolist() == [1.0, math.inf]
    groups = json.loads((second.checkpointer.newest() / "optimizer.json").read_text())
    assert groups == first.optimization.describe()
    assert sum(group["elements"] for group in groups) == sum(p.numel() for p in first.optimization.parameters)
    assert sum(group["tensors"] for group in groups) == len(first.optimization.parameters)


def test_a_roll_back_before_the_first_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"run/checkpoints: expected a complete checkpoint to restore, found no"):
        made(tmp_path).checkpointer.restore()


def test_the_autocast_of_a_gpu_is_that_of_its_kind() -> None:
    process = Process(RankInfo(), torch.device("cpu"), None)
    inner: Any = SimpleNamespace(inner=None)
    for kind, wanted in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        precision: Any = SimpleNamespace(autocast=kind)
        stepper = Stepper(inner, process, precision=precision, scaler=None, seed=0)
        with stepper.autocast():
            assert torch.get_autocast_dtype("cpu") == wanted
            assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cpu")
