"""Every registry entry trains ten steps, resumes bit for bit, loads from its run folder alone and samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest

from mm_ldlm import MMLDLM
from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS
from mm_ldlm.training.jsonl import read_events
from mm_ldlm.training.worker import train

SMALL = {"dim": 16, "depth": 2, "heads": 2}
SMALLER = {"latent_mlp": {"dim": 16, "depth": 2}}


def fits(model: str, objective: str, process: str | None = None) -> bool:
    keys = {"kind": objective} | ({"process": {"kind": process}} if process else {})
    try:
        parse_kind(OBJECTIVES, keys, at="objective").capabilities(
            parse_kind(MODELS, {"kind": model, **SMALLER.get(model, SMALL)}, at="model")
        )
    except ConfigurationError:
        return False
    return True


PAIRS = [(model, objective) for model in MODELS.known for objective in OBJECTIVES.known if fits(model, objective)]
CASES: list[tuple[str, str, str | None]] = [
    (model, objective, process)
    for model, objective in PAIRS
    for process in (
        TEXT_PROCESSES.known
        if "process" in vars(parse_kind(OBJECTIVES, {"kind": objective}, at="objective"))
        else (None,)
    )
    if fits(model, objective, process)
]


def test_every_model_and_every_objective_has_a_partner() -> None:
    assert {model for model, _ in PAIRS} == set(MODELS.known)
    assert {objective for _, objective in PAIRS} == set(OBJECTIVES.known)
    assert {process for *_, process in CASES} >= set(TEXT_PROCESSES.known)


def tiered(case: tuple[str, str, str | None]) -> Any:
    """Every process on the plain text model and every pair with its first process; the other cases are slow."""
    model, objective, process = case
    usual = process in (None, "absorbing") or (model, objective) == ("dit", "text_diffusion")
    return pytest.param(*case, marks=() if usual else pytest.mark.slow)


@pytest.mark.parametrize(("model", "objective", "process"), [tiered(case) for case in CASES])
def test_ten_steps_are_five_and_five_resumed_and_the_run_samples(
    model: str, objective: str, process: str | None, tmp_path: Path
) -> None:
    helpers.write_stores(tmp_path)
    keys: dict[str, Any] = {"kind": objective} | ({"process": {"kind": process}} if process else {})
    parts: dict[str, Any] = {"model": {"kind": model, **SMALLER.get(model, SMALL)}, "objective": keys}
    spec = helpers.planned(tmp_path, **parts)
    for root in ("whole", "parts"):
        (tmp_path / root).mkdir()
    whole = train(helpers.planned(tmp_path, show_every_seconds=60, **parts), root=tmp_path / "whole")
    shown = read_events(whole.directory / "training_log.jsonl", "preview")
    assert len(shown) == (0 if "image" in objective or "classification" in objective else 2), "first and last step"
    assert not read_events(whole.directory / "training_log.jsonl", "preview_failed")
    assert train(spec, root=tmp_path / "parts", pause_at=5).ending == "paused"
    assert train(spec, root=tmp_path / "parts").ending == "finished"
    for name in ("model", "ema", "optimizer"):
        a, b = (helpers.tensors(tmp_path / root / "run", 10, name) for root in ("whole", "parts"))
        assert helpers.same_bits(a, b), name
    sample_everything(MMLDLM.from_run(whole.directory, encoder=Encoder()))


class Encoder:
    """Stands in for the encoder of the dataset, which has no weights."""

    dim = helpers.DIM

    def encode(self, sentences: Any) -> Any:
        return helpers.Rows(len(sentences)).field("latents", slice(None))


def fitting_samplers(run: MMLDLM) -> set[str]:
    """The text samplers that fit the run's process; `ddpm_cache` needs a model without time conditioning besides."""
    process = getattr(run.model, "process", None)
    if process is None:
        return {"autoregressive"}
    joint = {"joint_states"} if "objective ccdd" in run.capabilities.trained_as else set()
    if process.mask_schedule is None:
        return joint | {"ancestral"} | ({"self_correction"} if process.revises else set())
    return set(TEXT_SAMPLERS.known) - {"autoregressive", "ddpm_cache", "self_correction", "joint_states"} | joint


def sample_images(run: MMLDLM) -> None:
    """Draw images and captions with every latent sampler and every text sampler that fits the run."""
    for kind in LATENT_SAMPLERS.known:
        drawn = run.images.draw(["w3 w4"], sampler={"kind": kind, "steps": 2} if kind != "one_step" else kind)
        assert drawn.pixels.shape == (1, *helpers.IMAGE), kind
        assert 0 <= drawn.pixels.min() <= drawn.pixels.max() <= 1
    discrete = "score" in run.capabilities
    for kind in ("ancestral", "ddim"):
        if (kind == "ancestral") != discrete:
            with pytest.raises(SamplingError, match=f"'{kind}'"):
                run.images.caption(drawn.pixels, sampler=kind)
            continue
        written = run.images.caption(drawn.pixels, sampler=kind)
        assert not {run.shape.mask_id, run.shape.pad_id} & {token for row in written.tokens for token in row}
    both = run.images.generate(3, steps=2)
    assert len(both) == 3
    assert both.pixels.shape == (3, *helpers.IMAGE)


def sample_everything(run: MMLDLM) -> None:
    """Run each sampler that fits the run; the others are refused. A classifier assigns classes instead."""
    if "classify" in run.capabilities:
        second = ["w5"] * 2 if run.capabilities.classifies == "pairs" else None
        found = run.classify(["w3 w4", "w6"], second=second)
        assert found.probabilities.sum(axis=1) == pytest.approx([1, 1])
        assert set(found.labels) <= {"first", "second", "similar"}
        return
    fitting = fitting_samplers(run)
    if run.capabilities.reads_images:
        sample_images(run)
        return
    for kind in TEXT_SAMPLERS.known:
        sampler = {"kind": kind} | ({"inner": {"kind": "confidence", "steps": 2}} if kind == "blocks" else {})
        length: Any = 4 if run.model.has_length else "sample"
        if kind not in fitting:
            with pytest.raises(SamplingError, match=f"'{kind}'"):
                run.generate(3, length=length, sampler=sampler)
            continue
        out = run.generate(3, length=length, sampler=sampler)
        assert len(out) == 3
        assert not {run.shape.mask_id, run.shape.pad_id} & {token for row in out.tokens for token in row}, kind
    if "t2l" in run.capabilities.uses:
        for kind in LATENT_SAMPLERS.known:
            assert run.embed(["w3 w4"], sampler={"kind": kind}).latents.shape == (1, helpers.DIM), kind
