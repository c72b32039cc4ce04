"""Second cases of conversions, of the writer and of runs that are chosen by their path."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.training.checkpoints.writer import Writer

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import converting
from mm_ldlm.extras.foreign_checkpoints.converting import Names, refuse_other_model, rename
from mm_ldlm.extras.foreign_checkpoints.formats import DDIT, FORMATS, Rule
from mm_ldlm.training.checkpoints import folder, reference
from mm_ldlm.training.checkpoints.identity import identity_of

SOURCE, ONE = Path("f"), torch.ones(1)


def refusal(found: dict[str, Any], targets: dict[str, Any], names: Names) -> str:
    with pytest.raises(CheckpointError) as refused:
        rename(found, {name: torch.Size(shape) for name, shape in targets.items()}, names, source=SOURCE)
    return str(refused.value)


def test_every_fault_of_a_mapping_is_listed_in_order() -> None:
    text = refusal({"a": ONE}, {"a": (1,)}, Names({name: "w" for name in ("z", "m", "q", "c", "x", "b")}))
    entries = "; ".join(f"'{name}': no such name in the checkpoint" for name in "bcmqxz")
    assert text == (
        f"f does not fit by the mapping: {entries}. Correct the mapping; null leaves a name out, and `initial` lists "
        "parameters that keep their initial values."
    )


def test_a_name_that_is_left_out_is_missing_here_unless_it_keeps_its_initial_value() -> None:
    assert "without a name in the checkpoint: w. Correct" in refusal({"w": ONE}, {"w": (1,)}, Names({"w": None}))
    made = rename({"w": ONE}, {"w": torch.Size((1,))}, Names({"w": None}, ("w",)), source=SOURCE)
    assert (made.tensors, made.left_out, made.format) == ({}, ["w"], None)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_weights_are_floating_point_numbers(dtype: torch.dtype) -> None:
    found = {"w": torch.ones(1, dtype=dtype)}
    text = refusal(found, {"w": (1,)}, Names({}))
    assert f"f does not fit by the mapping: 'w': expected floating-point numbers, found {dtype}; without a" in text


def test_one_of_several_weights_that_is_no_floating_point_number_is_enough_for_a_refusal() -> None:
    rule = Rule("w", ("a", "b"), lambda found, head_dim: found[0])
    for given, types in (
        ([ONE, ONE.long()], "torch.float32, torch.int64"),
        ([ONE.bool(), ONE], "torch.bool, torch.flo"),
    ):
        with pytest.raises(CheckpointError) as refused:
            converting._made(rule, given, 2, name="w", source=SOURCE)
        text = f"f: expected floating-point numbers for w, found {types}"
        assert str(refused.value).startswith(text)
        assert str(refused.value).endswith(". Choose another checkpoint.")


def test_an_option_that_a_model_lacks_is_one_to_set() -> None:
    names = {mark.replace("{n}", "0"): ONE for mark in DDIT.marks}
    options = {**DDIT.options, "time_conditioning": False, "dim": 8, "heads": 2}
    for key, shown in (("qk_norm", "false"), ("rope_theta", "10000"), ("mlp_activation", "gelu_tanh")):
        lacking = {name: value for name, value in options.items() if name != key}
        with pytest.raises(CheckpointError) as refused:
            refuse_other_model(names, lacking, SOURCE)
        text = f"f: expected the options of {DDIT.what}. Set model.{key}={shown} (found null)."
        assert str(refused.value) == text
    refuse_other_model(names, options, SOURCE)


def test_a_format_without_rules_and_every_part_of_one_are_named() -> None:
    """Two parts of one kind are listed together."""
    llama = ["layers.0.self_attn.q_proj.weight", "layers.0.mlp.gate_proj.weight", "layers.0.mlp.gate_proj.bias"]
    with pytest.raises(CheckpointError) as refused:
        refuse_other_model(dict.fromkeys(llama, ONE), {}, SOURCE)
    assert str(refused.value) == (
        "f: Llama in the names of transformers is recognised, but no model here can express it: "
        "layers.0.mlp.gate_proj.bias, layers.0.mlp.gate_proj.weight: a gated MLP with SiLU (causal has an MLP with "
        "GELU). Train a model here on the same data, or take single parameters by `mm-ldlm import-checkpoint --names`."
    )
    mmdit = ["blocks.0.joint_attn.to_qkv.0.weight", "blocks.0.joint_attn.to_out.0.weight",
             "blocks.0.attn_residual_fns.0.a", "blocks.0.ff_residual_fns.0.a"]  # fmt: skip
    with pytest.raises(CheckpointError) as refused:
        refuse_other_model(dict.fromkeys(mmdit, ONE), {}, SOURCE)
    assert (
        "express it: blocks.0.attn_residual_fns.0.a, blocks.0.ff_residual_fns.0.a: hyper-connections: several residual "
        "streams that every layer mixes; blocks.0.joint_attn.to_out.0.weight, blocks.0.joint_attn.to_qkv.0.weight: "
        "joint attention without rotary positions, of a dimension of its own. Train"
    ) in str(refused.value)
    assert list(FORMATS) == ["ddit", "multimodal", "mmdit", "llama"], "the first that fits counts"


def test_the_identity_of_a_run_has_the_stores_that_its_objective_is_made_from() -> None:
    objective: Any = SimpleNamespace(kind="k", identity={"mode": "m"}, stores=("token_clusters", "label_names"))
    model, shape = {"kind": "x", "dim": 3}, {"vocab_size": 5}
    fingerprints = {"tokenizer": "t", "token_clusters": "c", "tokens": "not of it", "image_normaliser": "i"}
    found = identity_of(model=model, shape=shape, objective=objective, fingerprints=fingerprints)  # type: ignore[arg-type]
    assert found == {
        "model": model, "shape": shape, "tokenizer": "t", "normaliser": "", "encoder": "", "token_clusters": "c",
        "label_names": "", "image_normaliser": "i", "objective": {"kind": "k", "mode": "m"},
    }  # fmt: skip


def test_a_writer_that_failed_once_and_then_wrote_has_no_error(tmp_path: Path) -> None:
    told: list[Any] = []
    writer = Writer(
        tmp_path, keep_last=2, keep_every=None, background=False, report=lambda *given: told.append(given[::2])
    )
    writer.save(1, folder.Contents({}, {"a.json": {}}, {"t": tmp_path / "nowhere"}), best=True)
    assert writer.failed is told[0][1] is not None
    for step in (2, 3, 4):
        writer.save(step, folder.Contents({}, {"a.json": {}}), best=step == 2)
        assert writer.failed is None
        assert (tmp_path / "latest").read_text() == f"step-0000000{step}\n"
    assert told[1:] == [(2, None), (3, None), (4, None)]
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [2, 3, 4], "the best and the last two"
    writer.save(5, folder.Contents({}, {"a.json": {}}), best=True)
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [4, 5], "also where it is the best"


def test_all_runs_of_the_nearest_name_are_offered(tmp_path: Path) -> None:
    for place in ("runs/mine", "runs/mime/mine", "runs/other"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    with pytest.raises(CheckpointError) as refused:
        reference.chosen_run(str(tmp_path / "runs" / "mime"))
    runs = [str(tmp_path / "runs" / "mime" / "mine"), str(tmp_path / "runs" / "mine")]
    assert str(refused.value).endswith(f" Did you mean {runs[0]!r} or {runs[1]!r}?")
