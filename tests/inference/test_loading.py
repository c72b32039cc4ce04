"""Loading a model from a run folder alone."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from mm_ldlm import MMLDLM
from mm_ldlm.errors import CheckpointError, FingerprintError, SamplingError


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
    with pytest.raises(CheckpointError, match=r"does not fit this model\. Missing: \['model\.blocks\.2"):
        MMLDLM.from_run(run_folder)


def test_the_encoder_comes_from_the_config_and_must_be_the_runs_own(run_folder, bag_encoder):
    with pytest.raises(SamplingError, match="expected the encoder that made the latents"):
        _ = MMLDLM.from_run(run_folder).encoder
    config = json.loads((run_folder / "config.json").read_text())
    config["encoder"] = {"name": "minilm"}
    (run_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FingerprintError, match="expected the encoder with fingerprint 0000"):
        _ = MMLDLM.from_run(run_folder).encoder
    config["fingerprints"] = {}
    (run_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SamplingError, match="expected an encoder of dimension 6, found one of dimension 384"):
        _ = MMLDLM.from_run(run_folder).encoder
    assert MMLDLM.from_run(run_folder, encoder=bag_encoder).encoder is bag_encoder


def test_its_text_names_run_and_step(run_folder):
    model = MMLDLM.from_run(run_folder)
    assert repr(model).startswith(f"MMLDLM({run_folder.name}, step {model.parts.step:,}, ")
    assert "\n" not in repr(model)


def test_batch_size_is_a_parameter(run_folder, unit_latents):
    small, auto = MMLDLM.from_run(run_folder, batch_tokens=8), MMLDLM.from_run(run_folder)
    assert (small.batch_tokens, auto.batch_tokens) == (8, 8192)
    assert small.invert(unit_latents(5), length=4).tokens == auto.invert(unit_latents(5), length=4).tokens
    assert np.isfinite(auto.score(["w1 w2"]).nll).all()
