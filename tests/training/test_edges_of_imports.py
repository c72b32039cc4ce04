"""Imports of checkpoints whose folder, settings or shapes are unusual, and what a run hands on to an imported one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_importing import HEADS, LENGTH, D, older, weights
from test_importing_parts import described

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import importing
from mm_ldlm.extras.foreign_checkpoints.converting import convert
from mm_ldlm.extras.foreign_checkpoints.exporting import export_checkpoint
from mm_ldlm.extras.foreign_checkpoints.importing import Given, import_checkpoint
from mm_ldlm.models.registry import MODELS
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.weights import load_tensors


def config_of(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())


def test_a_configuration_of_another_library_beside_the_weights_describes_no_run(tmp_path: Path) -> None:
    """Only together with the tokenizer of a run."""
    path = older(tmp_path / "older")
    (path / "config.json").write_text('{"architectures": ["BertModel"]}')
    import_checkpoint(path, tmp_path / "run", Given())
    assert config_of(tmp_path / "run")["model"]["kind"] == "dit"
    assert "architectures" not in config_of(tmp_path / "run")


def test_every_folder_of_the_run_that_describes_a_checkpoint_is_handed_on(tmp_path: Path) -> None:
    import_checkpoint(older(tmp_path / "older"), tmp_path / "first", Given())
    source = folder.find(tmp_path / "first")
    (tmp_path / "normaliser").mkdir()
    (tmp_path / "normaliser" / "a.json").write_text("[1]")
    contents = folder.Contents(
        {"model.safetensors": folder.tensors(source, "model.safetensors")},
        {"training_state.json": folder.document(source, "training_state.json")},
        {"tokenizer": source / "tokenizer", "normaliser": tmp_path / "normaliser"},
    )
    run = tmp_path / "run"
    folder.write(run / "checkpoints", 5, contents)
    shutil.copy(tmp_path / "first" / "config.json", run / "config.json")
    export_checkpoint(run, tmp_path / "out")
    import_checkpoint(tmp_path / "out", tmp_path / "beside", Given())
    import_checkpoint(tmp_path / "out" / "model.pt", tmp_path / "like", Given(like=run))
    for name in ("beside", "like"):
        found = folder.find(tmp_path / name)
        assert (found / "normaliser" / "a.json").read_text() == "[1]"
        assert sorted(part.name for part in found.iterdir() if part.is_dir()) == ["normaliser", "tokenizer"]
        assert config_of(tmp_path / name)["name"] == name
    assert config_of(tmp_path / "like")["imported"] == {"file": "model.pt", "format": None, "left_out": []}


def test_the_heads_of_the_weights_come_before_those_of_the_settings(tmp_path: Path) -> None:
    found = described(tmp_path / "a", weights(64), Given(), ", n_heads: 8, max_seq_len: 5")
    assert (found["model"]["heads"], found["shape"].max_length) == (HEADS, LENGTH)


@pytest.mark.parametrize(("inner", "ratio"), [(D // 2, 0.5), (40, 2.5), (4 * D, 4.0)])
def test_the_width_of_the_inner_layer_may_be_any_fraction(inner: int, ratio: float, tmp_path: Path) -> None:
    tensors = weights(64) | {
        "blocks.0.mlp.0.weight": torch.zeros(inner, D), "blocks.0.mlp.0.bias": torch.zeros(inner),
        "blocks.0.mlp.2.weight": torch.zeros(D, inner),
    }  # fmt: skip
    assert described(tmp_path / "a", tensors, Given())["model"]["mlp_ratio"] == ratio


def test_a_mapping_with_an_unknown_section_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "n.yml"
    for text in ("names: {a: b}\nintial: [c]\n", "names: [a]\n", "names: {a: b}\ninitial: c\n", "initial: [c]\n"):
        file.write_text(text)
        with pytest.raises(CheckpointError, match="expected `names:`, a mapping of old names to new ones or null"):
            importing.read_names(file)


NAMES = sorted(weights(64))


def load(place: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Load weights into the model that they describe."""
    config = described(place, tensors, Given())
    model = parse_kind(MODELS, config["model"], at="model")
    built = model.build(config["shape"], generator=torch.Generator().manual_seed(0))
    targets = {key: value.shape for key, value in built.named_parameters()}
    made = convert(tensors, targets, options=config["model"], source=Path("f"))
    load_tensors(dict(built.named_parameters()), made.tensors, Path("f"))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("rotary_emb")])
def test_a_parameter_that_is_a_single_number_is_named_and_refused(name: str, tmp_path: Path) -> None:
    load(tmp_path / "whole", weights(64))
    with pytest.raises(CheckpointError) as refused:
        load(tmp_path / "a", weights(64) | {name: torch.tensor(1.0)})
    text = str(refused.value)
    assert " ()" in text or "found 0. Use the tokenizer" in text
