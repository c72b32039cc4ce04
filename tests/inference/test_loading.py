"""Loading a model from a run folder alone."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mm_ldlm import MMLDLM
from mm_ldlm.core.errors import CheckpointError, FingerprintError, SamplingError
from mm_ldlm.inference import loading
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig


def test_a_run_folder_alone_is_enough(run_folder, bag_encoder, unit_latents, tmp_path):
    shutil.rmtree(tmp_path / "run-1-parts")  # what training took its copies from
    model = MMLDLM.from_run(run_folder, encoder=bag_encoder)
    assert (model.dim, model.max_length) == (6, 12)
    out = model.invert(unit_latents(3), reembed=True)
    assert len(out) == 3
    assert model.embed(["w1 w2"]).latents.shape == (1, 6)
    assert not model.model.model.training
    assert not any(parameter.requires_grad for parameter in model.model.model.parameters())


def test_ema_or_last_weights(run_folder, unit_latents):
    ema, last = MMLDLM.from_run(run_folder), MMLDLM.from_run(run_folder, use_ema=False)
    assert ema.invert(unit_latents(3), length=6).tokens != last.invert(unit_latents(3), length=6).tokens
    assert next(last.model.model.parameters()).abs().sum() == 0


def test_a_checkpoint_is_found_by_name_or_path(run_folder):
    for checkpoint in ("latest", "3", "step-00000003"):
        assert MMLDLM.from_run(run_folder, checkpoint=checkpoint).parts.step == 3
    assert MMLDLM.from_run(run_folder / "checkpoints" / "step-00000003").parts.step == 3
    with pytest.raises(CheckpointError, match="no `best` checkpoint"):
        MMLDLM.from_run(run_folder, checkpoint="best")
    with pytest.raises(CheckpointError, match="no checkpoint of step 7; there are 3"):
        MMLDLM.from_run(run_folder, checkpoint="7")


def test_what_is_no_run_is_refused(run_folder, tmp_path):
    with pytest.raises(CheckpointError, match="no such run folder"):
        MMLDLM.from_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no complete checkpoint here"):
        MMLDLM.from_run(tmp_path / "empty")
    assert MMLDLM.from_run(tmp_path).parts.checkpoint.parents[1] == run_folder  # a folder of runs: the newest
    (run_folder / "config.json").rename(tmp_path / "config.json.away")
    with pytest.raises(CheckpointError, match=r"expected a run folder with config\.json, found none"):
        MMLDLM.from_run(run_folder)


def test_a_run_without_its_marker_is_refused(run_folder):
    (run_folder / "checkpoints" / "step-00000003" / "COMPLETE").unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint here"):
        MMLDLM.from_run(run_folder)


def test_a_device_that_there_is_not_is_refused(run_folder):
    with pytest.raises(SamplingError, match="device 'tpu' cannot be used on this machine"):
        MMLDLM.from_run(run_folder, device="tpu")


def test_a_damaged_checkpoint_is_refused(run_folder):
    file = run_folder / "checkpoints" / "step-00000003" / "ema.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="damaged"):
        MMLDLM.from_run(run_folder)


def test_weights_of_another_model_are_refused(run_folder):
    config = json.loads((run_folder / "config.json").read_text())
    config["model"]["depth"] = 3
    (run_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"another model:\n  model\.depth: checkpoint has 2, this run 3"):
        MMLDLM.from_run(run_folder)


@pytest.mark.parametrize(
    ("objective", "change", "message"),
    [
        (TextDiffusionConfig(), {"process": {"kind": "uniform"}}, r"objective\.process: checkpoint has 'absorbing'"),
        (TextDiffusionConfig(), {"kind": "adaptive_masking"}, r"objective\.kind: checkpoint has 'text_diffusion'"),
    ],
)
def test_a_config_that_is_not_that_of_the_checkpoint_is_refused(objective, change, message, tmp_path, parts):
    """The weights fit every process of the same ids, but they mean something else."""
    run = parts.write_run(tmp_path / "run", objective=objective, config=DiTConfig(dim=32, depth=2, heads=2))
    MMLDLM.from_run(run)
    config = json.loads((run / "config.json").read_text())
    config["objective"] |= change
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"belongs to another model:\n(.*\n)*.*{message}.*(\n.*)*Restore the"):
        MMLDLM.from_run(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: None, "expected a mapping, found None"),
        (lambda config: 5, "expected a mapping, found 5"),
        (lambda config: [], r"expected a mapping, found \[\]"),
        (lambda config: config | {"shape": None}, "expected a mapping under 'shape', found None"),
        (lambda config: config | {"shape": {"vocab_size": 3}}, "expected the numbers vocab_size, pad_id, .*found"),
        (lambda config: config | {"shape": config["shape"] | {"rows": 3}}, "expected the numbers vocab_size"),
        (lambda config: config | {"shape": config["shape"] | {"pad_id": "x"}}, "expected the numbers vocab_size"),
        (lambda config: config | {"fingerprints": 3}, "expected a mapping under 'fingerprints', found 3"),
        (lambda config: config | {"fingerprints": {"encoder": "1"}}, "encoder: checkpoint has '0000"),
    ],
)
def test_a_damaged_config_is_refused(change, message, run_folder):
    config = json.loads((run_folder / "config.json").read_text())
    (run_folder / "config.json").write_text(json.dumps(change(config)))
    with pytest.raises(CheckpointError, match=message):
        MMLDLM.from_run(run_folder)


@pytest.mark.parametrize(
    ("missing", "named"),
    [(["shape"], "shape"), (["objective", "model"], "model, objective"), (["fingerprints"], None), (["encoder"], None)],
)
def test_a_config_names_what_it_lacks(missing, named, run_folder):
    config = json.loads((run_folder / "config.json").read_text())
    path = run_folder / "other.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in missing}))
    if named is None:
        assert loading._read_config(path)["fingerprints"] == (
            {} if missing == ["fingerprints"] else config["fingerprints"]
        )
        return
    with pytest.raises(CheckpointError, match=rf"other\.json: {named} missing\. Give the path of a run folder"):
        loading._read_config(path)


def test_a_config_that_is_nested_too_deeply_is_refused(run_folder):
    (run_folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"not readable as JSON .*nested too deeply"):
        MMLDLM.from_run(run_folder)


def test_the_encoder_comes_from_the_config_and_must_be_the_runs_own(run_folder, bag_encoder, parts, tmp_path):
    with pytest.raises(SamplingError, match="expected the encoder that made the latents"):
        _ = MMLDLM.from_run(run_folder).encoder
    config = json.loads((run_folder / "config.json").read_text())
    config["encoder"] = {"name": "minilm"}
    (run_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FingerprintError, match="expected the encoder with fingerprint 0000"):
        _ = MMLDLM.from_run(run_folder).encoder
    unknown = parts.write_run(tmp_path / "run-2", encoder={"name": "minilm"}, fingerprints={})
    with pytest.raises(SamplingError, match="expected an encoder of dimension 6, found one of dimension 384"):
        _ = MMLDLM.from_run(unknown).encoder
    assert MMLDLM.from_run(run_folder, encoder=bag_encoder).encoder is bag_encoder


def test_the_encoder_is_loaded_by_its_fingerprint_onto_the_device_of_the_model(monkeypatch):
    asked = []
    monkeypatch.setattr(
        loading, "load_encoder",
        lambda config, **keys: asked.append((config.name, keys)) or SimpleNamespace(fingerprint="ab"),
    )  # fmt: skip
    assert loading._encoder_loader({"name": "minilm"}, "ab", torch.device("cuda:1"))().fingerprint == "ab"
    loading._encoder_loader({"name": "minilm"}, "", torch.device("cpu"))()
    assert asked == [
        ("minilm", {"device": "cuda:1", "expected": "ab"}), ("minilm", {"device": "cpu", "expected": None})
    ]  # fmt: skip
    with pytest.raises(FingerprintError, match=r"expected the encoder with fingerprint cd.*'minilm' with ab"):
        loading._encoder_loader({"name": "minilm"}, "cd", torch.device("cpu"))()
    assert loading._encoder_loader({}, "ab", torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("name", "what"), [("tokenizer", "vocabulary"), ("encoder", "encoder"), ("label_names", "classes")]
)
def test_a_run_is_used_on_data_of_its_own_vocabulary_encoder_and_classes(name, what):
    ours = {"tokenizer": "a" * 20, "encoder": "b" * 20, "label_names": "c" * 20, "latents": "d" * 20}
    run = SimpleNamespace(fingerprints=ours, checkpoint="the run")
    other = {**ours, "latents": "e" * 20}
    loading.refuse_other_data(run, other)
    loading.refuse_other_data(None, other)
    del other[name]
    loading.refuse_other_data(run, other)
    other[name] = "f" * 20
    with pytest.raises(
        FingerprintError, match=rf"the run: .* {what} of the dataset \(ffffffffffff\).*another {what} \("
    ):
        loading.refuse_other_data(run, other)


def test_its_text_names_run_and_step(run_folder):
    model = MMLDLM.from_run(run_folder)
    assert repr(model).startswith(f"MMLDLM({run_folder.name}, step {model.parts.step:,}, ")
    assert "\n" not in repr(model)


def test_batch_size_is_a_parameter(run_folder, unit_latents):
    small, auto = MMLDLM.from_run(run_folder, batch_tokens=8), MMLDLM.from_run(run_folder)
    assert (small.batch_tokens, auto.batch_tokens) == (8, 1024)
    assert small.invert(unit_latents(5), length=4).tokens == auto.invert(unit_latents(5), length=4).tokens
    assert np.isfinite(auto.score(["w1 w2"]).nll).all()
