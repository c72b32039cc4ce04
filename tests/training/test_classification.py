"""Classification in the training loop: sanity checks, a frozen trunk from another run, and the guard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.training.sanity import SanityConfig, as_table, check_sanity
from mm_ldlm.training.worker import train

DIT = {"kind": "dit", "dim": 16, "depth": 1, "heads": 2}
CASES = {
    "latents": ({"kind": "latent_mlp", "dim": 16, "depth": 1}, {"kind": "classification"}),
    "trunk": (DIT, {"kind": "classification", "features": "trunk"}),
    "pairs": (DIT, {"kind": "pairwise_classification", "hidden_dim": 16}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sanity_checks_pass(case: str, tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    model, objective = CASES[case]
    spec = helpers.planned(tmp_path, model=model, objective={**objective, "label_smoothing": 0.0})
    (tmp_path / "runs").mkdir()
    found = check_sanity(spec, root=tmp_path / "runs", config=SanityConfig(max_seconds=20, max_steps=80))
    assert all(check.ok for check in found), as_table(found)
    assert {"first loss", "gradients", "overfit one batch"} <= {check.name for check in found}


def test_a_frozen_trunk_starts_from_another_run_and_does_not_move(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    (tmp_path / "runs").mkdir()
    text = helpers.planned(tmp_path, model=DIT, objective={"kind": "text_diffusion"}, run_name="text")
    origin = helpers.tensors(train(text, root=tmp_path / "runs").directory, 10, "ema")
    options: dict[str, Any] = {"kind": "classification", "features": "frozen_trunk"}
    spec = helpers.planned(tmp_path, model=DIT, objective=options, run_name="frozen", init_from="text")
    run = train(spec, root=tmp_path / "runs")
    found = helpers.tensors(run.directory, 10)
    trunk = {name: value for name, value in found.items() if name.startswith("model.")}
    assert helpers.same_bits(trunk, {name: origin[name] for name in trunk})
    assert float(found["objective.head.linear.weight"].abs().max()) > 0
    assert (folder_of(run.directory) / "label_names" / "manifest.json").is_file()


def folder_of(directory: Path) -> Path:
    from mm_ldlm.training.checkpoints import folder

    return folder.find(directory)


def test_one_non_finite_latent_changes_no_parameter(tmp_path: Path) -> None:
    """The guard skips the step: the head and the model keep their values."""
    helpers.write_stores(tmp_path)
    model, objective = CASES["latents"]
    spec = helpers.planned(tmp_path, model=model, objective=objective, max_steps=2)
    (tmp_path / "runs").mkdir()

    def poisoned(made: Any) -> Any:
        plain = made.batch_logits
        calls = iter([True])
        made.batch_logits = lambda *given: plain(*given) * (torch.nan if next(calls, False) else 1.0)
        return made

    log: list[str] = []
    run = train(spec, root=tmp_path / "runs", wrap_objective=poisoned)
    log = (run.directory / "training_log.jsonl").read_text().splitlines()
    assert sum('"event": "skip' in line or '"skip' in line for line in log) >= 1
    assert run.step == 2


def test_labels_of_another_key_are_refused_before_training(tmp_path: Path) -> None:
    """The store has the labels that validation read; a changed `objective.label` alone does not change them."""
    helpers.write_stores(tmp_path)
    model, objective = CASES["latents"]
    with pytest.raises(ConfigurationError, match=r"'objective\.label' is 'shape'.* are those of 'label'"):
        helpers.planned(tmp_path, model=model, objective={**objective, "label": "shape"})
