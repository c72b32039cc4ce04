"""Check of every model of the registry on the device against the CPU: losses and gradients in float32, TF32 off."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Any

import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.distributed.process import joined
from mm_ldlm.extras.gpu_check import task
from mm_ldlm.extras.gpu_check.kernels import relative_error
from mm_ldlm.extras.gpu_check.outcome import Finding, Number, Setting
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training.build import build
from mm_ldlm.training.loop import Run
from mm_ldlm.training.spec import TrainingSpec

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 1e-3
"""Largest relative errors; those of a gradient are relative to the largest entry of all gradients of the model"""
LARGER = DataShape(vocab_size=2000, pad_id=0, mask_id=1, max_length=96, latent_dim=64, image_size=(8, 8, 1))


def models(setting: Setting) -> Finding:
    """Every model of the registry with the first objective that fits, at random weights."""
    size = {"dim": 16, "depth": 2} if setting.small else {"dim": 128, "depth": 4}
    shape = task.TINY if setting.small else LARGER
    numbers: dict[str, Number] = {"models": 0}
    faults: list[str] = []
    loss_errors, gradient_errors = [0.0], [0.0]
    for kind in MODELS.known:
        model = {"kind": kind, **size} | ({} if kind == "latent_mlp" else {"heads": 2})
        try:
            objective = partner(model)
            loss_error, gradient_error = compare(setting, model, objective, shape)
        except Exception as error:
            faults.append(f"{kind}: {type(error).__name__}: {error}")
            continue
        numbers["models"] = int(numbers["models"] or 0) + 1
        loss_errors.append(loss_error)
        gradient_errors.append(gradient_error)
        if not (loss_error <= LOSS_TOLERANCE and gradient_error <= GRADIENT_TOLERANCE):
            faults.append(
                f"{kind} with {objective}: expected the losses within {LOSS_TOLERANCE:g} and the gradients within "
                f"{GRADIENT_TOLERANCE:g} of those on the CPU, found {loss_error:.3g} and {gradient_error:.3g}. Run the "
                "checks attention, cross_entropy and normalisation to find the operation."
            )
    numbers |= {
        "loss error": max(loss_errors), "gradient error": max(gradient_errors),
        "loss tolerance": LOSS_TOLERANCE, "gradient tolerance": GRADIENT_TOLERANCE,
    }  # fmt: skip
    return Finding(numbers, tuple(faults))


def partner(model: dict[str, Any]) -> str:
    """Return the first objective of the registry that can train a model."""
    made = parse_kind(MODELS, model, at="model")
    for kind in OBJECTIVES.known:
        try:
            parse_kind(OBJECTIVES, {"kind": kind}, at="objective").capabilities(made)
        except ConfigurationError:
            continue
        return kind
    raise ConfigurationError(
        f"model {made.kind!r}: expected an objective that can train it with default parameters, found none. "
        "Add one to objectives/registry.py."
    )


def compare(setting: Setting, model: dict[str, Any], objective: str, shape: DataShape) -> tuple[float, float]:
    """Return the largest relative errors of losses and gradients over all kinds of steps."""
    chosen = parse_kind(OBJECTIVES, {"kind": objective}, at="objective")
    if "token_states" in chosen.fields:
        shape = dataclasses.replace(shape, state_dim=task.STATE_DIM)
    stores = {name: torch.from_numpy(task.STORES[name]) for name in chosen.stores}
    shape = dataclasses.replace(shape, noise_ids=chosen.noise_ids(shape, **stores))
    given = task.spec(model, {"kind": objective}, device="cpu", shape=shape)
    reference = results(setting, given)
    found = results(setting, task.replace_training(given, device=setting.device))
    loss_error = max(relative_error(found[0][name], reference[0][name]) for name in reference[0])
    largest = max(float(value.abs().max()) for value in reference[1].values())
    differences = [
        float((found[1][name].double() - value.double()).abs().max()) / max(largest, 1e-30)
        for name, value in reference[1].items()
    ]
    finite = all(bool(torch.isfinite(value).all()) for value in found[1].values())
    return loss_error, max(differences) if finite else float("inf")


def results(setting: Setting, spec: TrainingSpec) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Compute the losses and the gradients of one batch, in every kind of step, on the CPU as float32."""
    with joined(device=spec.training.device) as process, closing(task.Recorder()) as tracker:
        data = task.data(spec)
        parts = build(spec, root=setting.folder, data=data, process=process, tracker=tracker)
        perturb(parts)
        stepper = parts.stepper
        losses: dict[str, torch.Tensor] = {}
        gradients: dict[str, torch.Tensor] = {}
        stepper.parallel.module.train()
        batch = parts.loader.make(next(parts.loader.plan.first(1)))[0].to(process.device)
        for kind in stepper.objective.kinds:
            for name, (value, count) in stepper.losses(batch, kind=kind, draw=0, step=0).items():
                if name in stepper.objective.weights:
                    losses[f"{kind} {name}"] = (value / count).detach().float().cpu()
            found = stepper.parallel.gradients(stepper.total(batch, kind=kind, draw=0, step=0))
            gradients |= {f"{kind} {name}": g.float().cpu() for name, g in found.items() if g is not None}
    return losses, gradients


def perturb(parts: Run) -> None:
    """Add noise to every parameter, because heads and gates that start at zero would hide errors before them."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in parts.stepper.root.parameters():
            p.add_((torch.randn(p.shape, generator=generator) * 0.05).to(p.device))
