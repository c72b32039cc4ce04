"""Refusals of imports, initial weights, checkpoints and specs, word for word: each value is that of its own place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from test_importing import older, weights
from test_initial import SPECIALS, tokenizer

from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.extras.foreign_checkpoints import importing
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.extras.foreign_checkpoints.converting import Names
from mm_ldlm.extras.foreign_checkpoints.formats import DDIT
from mm_ldlm.extras.foreign_checkpoints.importing import Given
from mm_ldlm.extras.foreign_checkpoints.reading import Legacy
from mm_ldlm.training import data, initial
from mm_ldlm.training.checkpoints import folder, reference
from mm_ldlm.training.spec import TrainingSpec


def refusal(call: Any, *given: Any, **named: Any) -> str:
    with pytest.raises((MMLDLMError, ValueError)) as raised:
        call(*given, **named)
    return str(raised.value)


# -- imports -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_nothing_describes_is_refused_with_what_would_describe_it(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    names = {f"layer.{n}.weight": torch.ones(1) for n in range(3)} | {name: torch.ones(1) for name in "abcde"}
    assert refusal(importing._described, Legacy(file, names, None), Given(), tmp_path) == (
        f"{file}: the names of its 8 parameters have no known format (a, b, c, d and 2 more). Give a run with the same "
        "model by --like RUN, and, if its parameters have other names, a mapping by --names FILE."
    )
    assert refusal(importing._described, Legacy(file, names, None), Given(names=Names({})), tmp_path) == (
        f"{file}: expected a run with the same model beside --names. Give it by --like RUN."
    )
    assert refusal(importing._refuse_unread, file, Given(tokenizer="t", heads=2, max_length=3, timesteps="none")) == (
        f"{file}: --tokenizer, --heads, --max-length, --timesteps are read only for a checkpoint of the format ddit, "
        "without --like and --names. Leave them out: the model and its tokenizer come from a run."
    )


def test_a_checkpoint_of_another_process_or_shape_is_refused_with_what_it_is(tmp_path: Path) -> None:
    path = older(tmp_path / "older")
    file = path / "model.pt"
    (path / "config.yaml").write_text("diffusion_process: mdlm\nmodel: {diffusion_process: gidd}\n")
    assert refusal(importing._ddit, Legacy(file, weights(64), None), Given(), tmp_path) == (
        f"{file}: expected masked diffusion (diffusion_process: mdlm) in config.yaml, found 'gidd'. Train one step "
        "here with the same model and that process, and import by --like RUN."
    )
    (path / "config.yaml").write_text("model: {diffusion_process: mdlm, n_heads: 2}\n")
    for name, wrong in (("sigma_map.mlp.0.weight", torch.ones(3)), ("vocab_embed.embedding", torch.ones(0, 16))):
        found = Legacy(file, weights(64) | {name: wrong}, None)
        assert refusal(importing._ddit, found, Given(), tmp_path) == (
            f"{file}: expected a matrix {name}, found shape {tuple(wrong.shape)}. Choose another checkpoint."
        )
    assert refusal(importing._ddit, Legacy(file, weights(64), None), Given(heads=3), tmp_path) == (
        f"{file}: its shapes belong to no model here: parameters 'model.dim' and 'model.heads': dim must be divisible "
        "by heads, found dim 16 and 3 heads."
    )


def test_the_trainers_settings_that_no_model_here_has_are_explained() -> None:
    file = Path("f.pt")
    assert refusal(importing._timesteps, file, None, {"time_conditioning": True}) == (
        "f.pt: it was trained with time_conditioning, which embeds σ = −log(1 − t); no model here does. Train a model "
        "here on the same data."
    )
    assert refusal(importing._timesteps, file, None, {"model": {}}) == (
        "f.pt: expected --timesteps, because the names do not show how the timestep reached the model. Give none if it "
        "was trained without (time_conditioning: false, MDLM's default), or plain if with t in [0, 1] itself."
    )
    assert refusal(importing._count, "--max-length", None, "x", file=file) == (
        "f.pt: expected --max-length from 1 to 65,536, found 'x' in the command, the file and its config.yaml. Give "
        "--max-length N."
    )


def test_a_missing_tokenizer_and_a_file_that_is_no_mapping_are_named(tmp_path: Path) -> None:
    assert refusal(importing._tokenizer, tmp_path, None, rows=5, max_length=7) == (
        f"{tmp_path}: expected tokenizer.json or vocab.txt beside the weights, found none. Give the tokenizer of the "
        "checkpoint by --tokenizer, a folder, a file or a name."
    )
    file = tmp_path / "n.yml"
    file.write_text("[1, 2]")
    assert refusal(importing.read_yaml, file) == f"{file}: expected a mapping, found [1, 2]. Correct it."
    file.write_text("names: {a: b}\nother: 1\n")
    assert refusal(importing.read_names, file) == (
        f"{file}: expected `names:`, a mapping of old names to new ones or null, and perhaps `initial:`, a list, found "
        "{'names': {'a': 'b'}, 'other': 1}. Correct it."
    )
    file.write_text("names: {a: b, c: 'x*y*z*w*'}\n")
    assert refusal(importing.read_names, file) == (
        f"{file}: expected names of parameters as texts, with at most three *, found 'x*y*z*w*'. Correct it."
    )
    (tmp_path / "taken").write_text("")
    taken = tmp_path / "taken"
    assert refusal(importing.refuse_existing, taken) == (
        f"{taken}: expected a new folder, found one with files. Choose another name, or remove it."
    )


# -- initial weights ---------------------------------------------------------------------------------------------------


def test_what_a_checkpoint_lacks_for_another_vocabulary_is_named(tmp_path: Path) -> None:
    ours = tokenizer([*SPECIALS, "a", "b"])
    assert refusal(initial._vocabularies, tmp_path, ours, helpers.SHAPE) == (
        f"{tmp_path}: expected the tokenizer of the checkpoint, to remap its weights by token, found none. Set "
        "training.init_vocabulary to same, or choose a checkpoint with a tokenizer."
    )
    (tmp_path / "training_state.json").write_text('{"identity": {}}')
    tokenizer([*SPECIALS, "c", "d"]).save(tmp_path / "tokenizer")
    assert refusal(initial._vocabularies, tmp_path, ours, helpers.SHAPE) == (
        f"{tmp_path}: expected tokens that this run also has, found none besides pad, mask and unknown. Choose a "
        "checkpoint with a tokenizer of the same kind."
    )
    tokenizer([*SPECIALS, "b", "d"]).save(tmp_path / "tokenizer")
    assert refusal(initial._vocabularies, tmp_path, ours, helpers.SHAPE) == (
        f"{tmp_path}: expected the shape of its data in training_state.json, found none."
    )
    shape = {"vocab_size": 5, "pad_id": 0, "mask_id": 1, "max_length": 8}
    (tmp_path / "training_state.json").write_text(json.dumps({"identity": {"shape": shape}}))
    found = initial._vocabularies(tmp_path, ours, helpers.SHAPE)
    assert (found.their_shape.vocab_size, found.our_shape) == (5, helpers.SHAPE)
    pairs = {theirs: mine for theirs, mine in zip(found.theirs.tolist(), found.ours.tolist(), strict=True)}
    assert pairs == {0: 0, 1: 1, 2: 2, 3: 4}, "b is word 3 there and word 4 here"


# -- plans and specs ---------------------------------------------------------------------------------------------------


def test_data_without_examples_are_refused_by_their_folder() -> None:
    assert str(data.no_examples(Path("d"))) == (
        "d: expected examples of split 'train', found none. Check ingestion.splits."
    )


def test_a_name_that_a_file_has_is_refused_with_its_folder(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "notes").write_text("")
    assert refusal(helpers.planned, tmp_path, run_name="notes") == (
        f"parameter 'training.run_name': expected the name of a folder in {tmp_path / 'runs'}, found 'notes', which is "
        "a file there. Choose another name, or remove the file."
    )


def test_a_spec_that_cannot_be_read_is_refused_with_its_fault(tmp_path: Path) -> None:
    again = "Plan the training again (`kedro run --pipelines=training`)."
    for found, version in (([], None), ({}, None), ({"format_version": 1}, 1), ({"format_version": "2"}, "2"),
                           ({"format_version": 3}, 3)):  # fmt: skip
        text = f"training spec: expected format 2, found {version!r}. {again}"
        assert refusal(TrainingSpec.from_dict, found) == text
    whole = helpers.spec().to_dict()
    for key in ("seed", "dataset", "fingerprints", "shape", "training"):
        lacking = {name: value for name, value in whole.items() if name != key}
        assert refusal(TrainingSpec.from_dict, lacking) == (
            f"training spec: field missing, unknown or of another type ('{key}'). Plan it again."
        )
    text = refusal(TrainingSpec.from_dict, whole | {"seed": float("inf")})
    assert text.startswith("training spec: field missing, unknown or of another type (cannot convert float infinity")
    file = tmp_path / "s.json"
    assert refusal(TrainingSpec.read, file) == (
        f"{file}: no such spec. Write one by `kedro run --to-nodes=plan_training`."
    )
    file.write_text("{")
    assert refusal(TrainingSpec.read, file).startswith(f"{file}: not readable as JSON (")


# -- checkpoints -------------------------------------------------------------------------------------------------------


def written(place: Path, **documents: Any) -> Path:
    return folder.write(place, 5, folder.Contents({}, {"a.json": {"a": 1}, **documents}))


def test_each_fault_of_a_marker_is_named_with_what_was_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = json.loads((path / "COMPLETE").read_text())

    def marked(**changed: Any) -> str:
        (path / "COMPLETE").write_text(json.dumps(whole | changed))
        return refusal(folder.check, path)

    for version in (1, 3, None, "2"):
        assert marked(format_version=version) == (
            f"{path}: expected checkpoint format 2, found {version!r}. Choose another checkpoint."
        )
    promise = {"bytes": 1, "sha256": "s"}
    for files in ({}, [], {"a": 1}, {"a": {"bytes": -1, "sha256": "s"}}, {"a": {"bytes": True, "sha256": "s"}},
                  {"a": {"bytes": 1}}, {"a": promise, "b": {"bytes": 2**63, "sha256": "s"}}):  # fmt: skip
        assert marked(files=files) == (
            f"{path}/COMPLETE: expected the files of the checkpoint with their bytes and sha256, found "
            f"{files!r:.60}. Choose another checkpoint."
        )
    for step in (-1, True, 2.0, "5", None, 2**63):
        assert marked(step=step) == f"{path}/COMPLETE: expected a step, found {step!r}. Choose another checkpoint."
    (path / "COMPLETE").write_text(json.dumps(whole))
    (path / "deep").mkdir()
    for name in ("x.json", "deep/y.arrow", "deep/z.safetensors"):
        (path / name).write_text("[]")
        assert refusal(folder.check, path) == (
            f"{path}: expected the checksum of {name} in COMPLETE, found none. Remove the file if it was added, or "
            "choose another checkpoint."
        )
        (path / name).unlink()
    (path / "deep" / "notes.txt").write_text("")
    assert folder.check(path) == whole


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (5, 40):
        folder.write(run / "checkpoints", step, folder.Contents({}, {"a.json": {}}))
    assert refusal(folder.find, run, which="7") == (
        f"{run}: no checkpoint of step 7; there are 5, 40. Choose one of these steps."
    )
    assert refusal(folder.find, run, which="first") == (
        "expected latest, best or a step number as checkpoint, found 'first'. Correct it."
    )
    assert refusal(folder.find, run, which="best") == (
        f"{run}: there is no `best` checkpoint. Set training.checkpoint.best_metric, or use `latest`."
    )
    (run / "checkpoints" / "step-00000040" / "a.json").write_text("[1, 2, 3]")
    found = refusal(folder.find, run)
    assert "expected 3 bytes in a.json, found 9." in found
    assert found.endswith(
        "The newest intact checkpoint is step-00000005: request it by its step (5), or remove the damaged ones and "
        "continue training from it."
    )
    (tmp_path / "none").mkdir()
    assert refusal(folder.find, tmp_path / "none") == (
        f"{tmp_path / 'none'}: no complete checkpoint here. Train the run, or name another one."
    )
    (tmp_path / "none" / "checkpoints").mkdir()
    assert "there are none. Choose one" in refusal(folder.find, tmp_path / "none", which="3")


def test_a_run_chosen_by_its_path_is_answered_with_every_complete_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    for step in (5, 40, 41, 42):
        folder.write(run / "checkpoints", step, folder.Contents({}, {"a.json": {}}))
    (run / "config.json").write_text('{"model": {}}')
    where = "parameter 'run': expected the folder of a run or of one of its checkpoints, found "
    path = str(run / "checkpoints" / "step-00000007")
    assert refusal(reference.chosen_run, path) == (
        f"{where}{path!r}, but step-00000007 is not complete here. Choose one of: step-00000005, step-00000040, "
        "step-00000041, step-00000042."
    )
    path = str(tmp_path / "runs")
    assert refusal(reference.chosen_run, path) == (
        f"{where}{path!r}, where {path} has no config.json. Did you mean {str(run)!r}?"
    )
    assert refusal(reference.config_of, str(run)) == (
        f"{run / 'config.json'}: expected the model and the objective of a run, found {{'model': {{}}}}."
    )
    assert reference.chosen_run(str(run)) == {
        "name": "run", "path": str(run), "step": 42, "checkpoint": "step-00000042", "metrics": {}, "chosen": None
    }  # fmt: skip
    long = 10**12
    folder.write(run / "checkpoints", long, folder.Contents({}, {"a.json": {}}))
    assert reference.chosen_run(str(run))["step"] == long


def test_files_of_other_trainers_are_refused_with_what_they_contain(tmp_path: Path) -> None:
    files = "model.pt, checkpoint.pt, model_final.pth, model.pth, pytorch_model.bin"
    assert refusal(legacy.read, tmp_path) == (
        f"{tmp_path}: expected one of the files {files}, found none. Correct the path."
    )
    assert not legacy.is_legacy(tmp_path / "missing.pt")
    assert not legacy.is_legacy(tmp_path)
    torch.save({"step": torch.ones(1)}, tmp_path / "model.pt")
    assert legacy.is_legacy(tmp_path)
    assert legacy.is_legacy(tmp_path / "model.pt")
    half = torch.ones(2, 3, dtype=torch.float16)
    folded = {"w": half.T, "expanded": torch.ones(4, dtype=torch.float16).as_strided((6,), (0,))}
    assert refusal(legacy._checked, {"a": torch.ones(1, dtype=torch.complex64)}, Path("f")).startswith(
        "f: expected tensors by name, stored once each, found 'a' of type torch.complex64, torch.strided, cpu. Save"
    )
    assert refusal(legacy._checked, folded, Path("f")).startswith(
        "f: expected tensors by name, stored once each, found 'expanded' of shape (6,), of which the file has 8 bytes."
    )
    made = legacy._checked({"w": half.T}, Path("f"))["w"]
    assert (made.is_contiguous(), made.dtype, tuple(made.shape)) == (True, torch.float32, (3, 2))
    double = legacy._checked({"w": half.double().T}, Path("f"))["w"]
    assert (double.is_contiguous(), double.dtype) == (True, torch.float64)


def test_every_mark_of_the_format_is_needed() -> None:
    """A checkpoint with all names but one is no checkpoint of that format."""
    marks = [mark.replace("{n}", "3") for mark in DDIT.marks]
    for left_out in marks:
        found = Legacy(Path("f"), {name: torch.ones(1) for name in marks if name != left_out}, None)
        assert "have no known format" in refusal(importing._described, found, Given(), Path())
