"""The files of an imported run and of an export, as a whole, and the sources of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_importing import LENGTH, older, weights

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import importing
from mm_ldlm.extras.foreign_checkpoints.exporting import export_checkpoint
from mm_ldlm.extras.foreign_checkpoints.importing import Given, import_checkpoint, read_names
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.state import TrainingState


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was imported from step 90,000 of an older trainer."""
    root = tmp_path_factory.mktemp("imported")
    import_checkpoint(older(root / "older"), root / "runs" / "mine", Given())
    return root / "runs" / "mine"


def test_an_imported_run_has_one_checkpoint_which_is_its_latest(imported: Path) -> None:
    path = imported / "checkpoints" / "step-00090000"
    assert {file.name for file in imported.iterdir()} == {"config.json", "checkpoints"}
    assert (imported / "checkpoints" / "latest").read_text() == "step-00090000\n"
    assert {file.name for file in path.iterdir()} == {
        "COMPLETE", "model.safetensors", "tokenizer", "training_state.json"
    }  # fmt: skip
    document = folder.document(path, "training_state.json")
    assert document.keys() == {"state", "identity", "metrics"}
    assert (document["state"], document["metrics"]) == (TrainingState(step=90_000).to_dict(), {})
    config = json.loads((imported / "config.json").read_text())
    assert config["name"] == "mine"
    for key in ("model", "shape"):
        assert document["identity"][key] == config[key]
    assert document["identity"]["tokenizer"] == config["fingerprints"]["tokenizer"]
    assert (config["shape"]["max_length"], config["encoder"]) == (LENGTH, {})


def test_an_export_has_the_weights_the_counters_the_configuration_and_the_parts(imported: Path, tmp_path: Path) -> None:
    path = imported / "checkpoints" / "step-00090000"
    assert export_checkpoint(imported, tmp_path / "out", checkpoint="step-00090000") == path
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "config.json", "model.pt", "tokenizer", "training_state.json"
    }  # fmt: skip
    assert (tmp_path / "out" / "config.json").read_bytes() == (imported / "config.json").read_bytes()
    for file in (path / "tokenizer").iterdir():
        assert (tmp_path / "out" / "tokenizer" / file.name).read_bytes() == file.read_bytes()
    state = json.loads((tmp_path / "out" / "training_state.json").read_text())
    assert state == {"step": 90_000, "epoch": 0, "batch_in_epoch": 0, "examples": 0, "tokens": 0, "weights": "last"}
    found = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    held = folder.tensors(path, "model.safetensors")
    assert {f"model.{name}" for name in found} == set(held)
    assert all(torch.equal(value, held[f"model.{name}"]) for name, value in found.items())


def test_averages_are_exported_unless_the_last_weights_are_asked_for(imported: Path, tmp_path: Path) -> None:
    """A checkpoint whose averages are the weights plus one, under the name of its step."""
    source = imported / "checkpoints" / "step-00090000"
    tensors = folder.tensors(source, "model.safetensors")
    both = {"model.safetensors": tensors, "ema.safetensors": {name: value + 1 for name, value in tensors.items()}}
    document = folder.document(source, "training_state.json")
    run = tmp_path / "run"
    for step, state in ((7, {"step": 7, "tokens": 70, "skipped": 3}), (9, None)):
        contents = folder.Contents(
            both, {"training_state.json": {**document, "state": state}}, {"tokenizer": source / "tokenizer"}
        )
        folder.write(run / "checkpoints", step, contents)
    (run / "config.json").write_text((imported / "config.json").read_text())
    name = next(iter(tensors)).removeprefix("model.")
    for place, step, how, more, counters in (
        ("a", 7, {"checkpoint": "7"}, 1.0, {"step": 7, "tokens": 70, "weights": "averaged"}),
        ("b", 7, {"checkpoint": "step-00000007", "use_ema": False}, 0.0, {"step": 7, "tokens": 70, "weights": "last"}),
        ("c", 9, {}, 1.0, {"step": 9, "weights": "averaged"}),
    ):
        found = export_checkpoint(run, tmp_path / place, **how)  # type: ignore[arg-type]
        assert found == run / "checkpoints" / folder.name_of(step)
        assert json.loads((tmp_path / place / "training_state.json").read_text()) == counters
        value = torch.load(tmp_path / place / "model.pt", weights_only=True)[name]
        assert torch.equal(value, tensors[f"model.{name}"] + more)


# -- what describes a checkpoint ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["mdlm", "absorbing", None])
def test_masked_diffusion_has_two_names_and_is_what_a_trainer_does_that_says_nothing(
    process: str | None, tmp_path: Path
) -> None:
    path = older(tmp_path / "older")
    inside = "{}" if process is None else f"{{diffusion_process: {process}}}"
    (path / "config.yaml").write_text(f"model: {inside}\n")
    import_checkpoint(path, tmp_path / "run", Given(timesteps="plain"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["objective"]["kind"] == "text_diffusion"


@pytest.mark.parametrize(
    ("given", "unread"),
    [
        ({"tokenizer": "t", "timesteps": "none"}, "--tokenizer, --timesteps"), ({"heads": 2}, "--heads"),
        ({"max_length": 3, "heads": 2}, "--heads, --max-length"),
    ],
)  # fmt: skip
def test_options_that_a_run_replaces_are_all_named(given: dict[str, Any], unread: str) -> None:
    importing._refuse_unread(Path("f"), Given(like=Path("x")))
    with pytest.raises(CheckpointError, match=rf"^f: {unread} are read only for a checkpoint of the format ddit"):
        importing._refuse_unread(Path("f"), Given(**given))


def test_a_folder_of_a_run_describes_the_weights_beside_it(imported: Path, tmp_path: Path) -> None:
    """And a run that is named describes them before it."""
    export_checkpoint(imported, tmp_path / "out")
    import_checkpoint(tmp_path / "out", tmp_path / "again", Given())
    assert folder.document(folder.find(tmp_path / "again"), "training_state.json")["state"]["step"] == 90_000
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps(config | {"encoder": {"name": "of the folder"}}))
    for name, given, encoder in (
        ("a", Given(), {"name": "of the folder"}), ("b", Given(like=imported), {}),
    ):  # fmt: skip
        import_checkpoint(tmp_path / "out", tmp_path / name, given)
        assert json.loads((tmp_path / name / "config.json").read_text())["encoder"] == encoder


def test_a_checkpoint_without_a_step_is_step_0(tmp_path: Path) -> None:
    path = older(tmp_path / "older")
    (path / "state.json").unlink()
    import_checkpoint(path, tmp_path / "run", Given())
    assert folder.find(tmp_path / "run").name == "step-00000000"


def test_an_import_of_the_same_files_gives_the_same_bits(imported: Path, tmp_path: Path) -> None:
    import_checkpoint(older(tmp_path / "older"), tmp_path / "again", Given())
    one, two = (folder.tensors(folder.find(run), "model.safetensors") for run in (imported, tmp_path / "again"))
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert not any(name.startswith("vocab_embed") for name in one)
    assert weights(64)["blocks.0.mlp.0.bias"].tolist() == one["model.blocks.0.streams.0.mlp.up.bias"].tolist()


def test_a_mapping_has_names_and_initial_parameters_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "n.yml"
    file.write_text("names: {z: a, b.{n}: null, a: c}\ninitial: [y, x]\n".replace("b.{n}", "'b.{n}'"))
    found = read_names(file)
    assert (list(found.names.items()), found.initial) == ([("z", "a"), ("b.{n}", None), ("a", "c")], ("y", "x"))
    file.write_text("names: {}\n")
    assert (read_names(file).names, read_names(file).initial) == ({}, ())
    file.write_text("names: {a: ''}\n")
    with pytest.raises(CheckpointError, match=r"n\.yml: expected names of parameters as texts.*found ''"):
        read_names(file)
    file.write_text("names: {a: b}\ninitial: [c, 3]\n")
    with pytest.raises(CheckpointError, match="found 3"):
        read_names(file)


def test_a_run_is_described_by_the_newest_of_a_folder_of_runs(imported: Path, tmp_path: Path) -> None:
    export_checkpoint(imported, tmp_path / "out")
    (tmp_path / "out" / "config.json").unlink()
    import_checkpoint(tmp_path / "out", tmp_path / "like", Given(like=imported.parent))
    one, two = (folder.tensors(folder.find(run), "model.safetensors") for run in (imported, tmp_path / "like"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert json.loads((tmp_path / "like" / "config.json").read_text())["name"] == "like"
