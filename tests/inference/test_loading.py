"""A run folder is enough to load a model; what is damaged, or of another run, is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.attack.run_folders import sign
from tests.inference.runs import DIT, TEXT, BagEncoder, write_run

from mm_ldlm import MMLDLM
from mm_ldlm.core import CheckpointError, FingerprintError, MMLDLMError, SamplingError
from mm_ldlm.diffusion.process import TEXT_PROCESSES
from mm_ldlm.inference.loading import refuse_other_data

Refuses = Callable[..., Any]
STEP = "checkpoints/step-00000003"


def change(run: Path, **values: Any) -> None:
    file = run / "config.json"
    config = json.loads(file.read_text())
    for section, value in values.items():
        config[section] = config[section] | value if isinstance(value, dict) and section in config else value
    file.write_text(json.dumps(config))


def test_a_run_folder_is_enough(run_folder: Path, unit_latents: Any) -> None:
    shutil.rmtree(run_folder.parent / "run-1-parts")  # what training took its copies from
    model = MMLDLM.from_run(run_folder, encoder=BagEncoder())
    assert (model.dim, model.max_length) == (6, 12)
    assert len(model.invert(unit_latents(3), reembed=True)) == 3
    assert not model.model.model.training
    assert not any(parameter.requires_grad for parameter in model.model.model.parameters())


def test_averaged_weights_are_used_unless_the_last_ones_are_asked_for(run_folder: Path, unit_latents: Any) -> None:
    averaged, last = MMLDLM.from_run(run_folder), MMLDLM.from_run(run_folder, use_ema=False)
    assert averaged.invert(unit_latents(3), length=6).tokens != last.invert(unit_latents(3), length=6).tokens
    assert next(last.model.model.parameters()).abs().sum() == 0


def test_a_checkpoint_is_found_by_its_name_its_step_or_its_path(run_folder: Path, refuses: Refuses) -> None:
    for checkpoint in ("latest", "3", 3, "step-00000003"):
        assert MMLDLM.from_run(run_folder, checkpoint=checkpoint).parts.step == 3
    for path in (run_folder / STEP, run_folder.parent):
        assert MMLDLM.from_run(path).parts.checkpoint == run_folder / STEP
    for missing in ("best", "7"):
        with refuses(CheckpointError, missing):
            MMLDLM.from_run(run_folder, checkpoint=missing)


def _cut(file: str) -> Callable[[Path], Any]:
    return lambda run: (run / file).write_bytes((run / file).read_bytes()[:-3])


def _flip(run: Path) -> None:
    data = bytearray((run / STEP / "ema.safetensors").read_bytes())
    data[-5] ^= 1
    (run / STEP / "ema.safetensors").write_bytes(bytes(data))


def _poison(run: Path) -> None:
    """Leave one weight that is NaN, as if the training had written it."""
    tensors = load_file(run / STEP / "ema.safetensors")
    next(iter(tensors.values())).flat[0] = np.nan
    save_file(tensors, run / STEP / "ema.safetensors")
    sign(run / STEP)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "renamed": lambda run: run.rename(run.with_name("run-2")), "no marker": lambda run: (run / STEP / "COMPLETE").unlink(),
    "no config": lambda run: (run / "config.json").unlink(), "cut config": _cut("config.json"), "a flipped bit": _flip,
    "a weight of NaN": _poison,
    "cut weights": _cut(f"{STEP}/ema.safetensors"), "cut normaliser": _cut(f"{STEP}/normaliser/normaliser.json"),
    "no tokenizer": lambda run: shutil.rmtree(run / STEP / "tokenizer"),
    "deep config": lambda run: (run / "config.json").write_text("[" * 10**5),
    "a list": lambda run: (run / "config.json").write_text("[]"), "no shape": lambda run: change(run, shape=None),
    "another depth": lambda run: change(run, model={"depth": 3}), "an unknown key": lambda run: change(run, model={"x": 1}),
    "another pad": lambda run: change(run, shape={"pad_id": 1}), "another kind": lambda run: change(run, model={"kind": "x"}),
    "fingerprints": lambda run: change(run, fingerprints=3), "another encoder": lambda run: change(run, fingerprints={"encoder": "1"}),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_refused_by_its_path(damage: str, run_folder: Path) -> None:
    DAMAGES[damage](run_folder)
    with pytest.raises(MMLDLMError) as raised:
        MMLDLM.from_run(run_folder)
    assert "run-1" in str(raised.value) or "model" in str(raised.value)


def test_a_component_that_is_not_installed_is_named_with_the_packages_of_the_run(run_folder: Path) -> None:
    change(run_folder, objective={"process": {"kind": "tilted"}}, versions={"tilted-process": "1.0"})
    with pytest.raises(CheckpointError, match=r"'tilted'.*'tilted-process': '1.0'"):
        MMLDLM.from_run(run_folder)


@pytest.mark.parametrize("kind", [kind for kind in TEXT_PROCESSES if kind != "absorbing"])
def test_weights_mean_something_only_to_the_process_that_they_were_trained_under(kind: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run-1", model=DIT, objective=TEXT)
    MMLDLM.from_run(run)
    change(run, objective={"process": {"kind": kind}})
    with pytest.raises(MMLDLMError):
        MMLDLM.from_run(run)


def test_the_encoder_comes_from_the_config_and_must_be_that_of_the_run(run_folder: Path) -> None:
    with pytest.raises(SamplingError, match="encoder"):
        _ = MMLDLM.from_run(run_folder).encoder
    own = BagEncoder()
    assert MMLDLM.from_run(run_folder, encoder=own).encoder is own
    change(run_folder, encoder={"kind": "local", "name": "minilm"})
    loaded = MMLDLM.from_run(run_folder)  # the encoder is loaded when it is needed
    with pytest.raises(FingerprintError, match="0000"):
        _ = loaded.encoder


@pytest.mark.parametrize("name", ["tokenizer", "encoder"])
def test_pitfall_28_a_run_is_used_on_data_of_its_own_vocabulary_and_encoder(
    name: str, tmp_path: Path, refuses: Refuses
) -> None:
    ours = {"tokenizer": "a" * 20, "encoder": "b" * 20, "latents": "c" * 20}
    parts = MMLDLM.from_run(write_run(tmp_path / "run-1", fingerprints=ours)).parts
    refuse_other_data(parts, ours | {"latents": "d" * 20})
    refuse_other_data(parts, {key: value for key, value in ours.items() if key != name})
    with refuses(FingerprintError, "e" * 12, ours[name][:12]):
        refuse_other_data(parts, ours | {name: "e" * 20})


@pytest.mark.parametrize(("precision", "products"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_samples_have_the_precision_that_is_asked_for_and_likelihoods_float32(
    precision: Any, products: torch.dtype, run_folder: Path, unit_latents: Any
) -> None:
    model, seen = MMLDLM.from_run(run_folder, precision=precision, batch_tokens=8), list[torch.dtype]()
    assert model.batch_tokens == 8 < MMLDLM.from_run(run_folder).batch_tokens
    first = next(each for each in model.model.model.blocks.modules() if isinstance(each, torch.nn.Linear))
    first.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    lengths = list[torch.dtype]()
    in_head = next(each for each in model.model.model.length_head.modules() if isinstance(each, torch.nn.Linear))
    in_head.register_forward_hook(lambda module, inputs, output: lengths.append(output.dtype))
    model.invert(unit_latents(3))
    assert ({*seen}, {*lengths}) == ({products}, {torch.float32}), "lengths are a part of likelihoods"
    seen.clear()
    model.score(["w1 w2"])
    assert {*seen} == {torch.float32}
