"""Sanity checks of a configuration: properties of a correct run, checked in about a minute.

They run in one process on the configured device, on a few examples of the real data, with the real model and optimizer.
Their results are not saved.
"""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import Duration, Fraction, NonNegativeFloat, PositiveFloat, Rows, config
from mm_ldlm.distributed.process import joined
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.objectives.base import Batch
from mm_ldlm.training.batches import Planned, deal
from mm_ldlm.training.build import build
from mm_ldlm.training.data import Data, open_data
from mm_ldlm.training.loop import Run
from mm_ldlm.training.preflight import Check
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.tracker import Silent


@config
class SanityConfig:
    """Limits of the sanity checks.

    Attributes:
        examples: number of examples in the batch that is overfitted.
        max_steps, max_seconds: limits of the overfitting, whichever is reached first.
        fall: the last loss must be below this fraction of the first one.
        lr: learning rate of AdamW during the checks; null uses the configured one.
        tolerance: relative tolerance of the first losses.
    """

    examples: Rows = 16
    max_steps: Rows = 150
    max_seconds: Duration = 40.0
    fall: Fraction = 0.5
    lr: PositiveFloat | None = 3e-3
    tolerance: NonNegativeFloat = 0.05


def check_sanity(
    spec: TrainingSpec, *, root: Path, config: SanityConfig, data: Data | None = None, wrap: Any = None
) -> list[Check]:
    """Run every check and return all results; `wrap` changes the built run (tests inject faults with it)."""
    # Schedule, clipping and the run folder are not used: they would only disturb the checks.
    training = dataclasses.replace(
        spec.training,
        optimizer=dataclasses.replace(
            spec.training.optimizer, lr=config.lr or spec.training.optimizer.lr, schedule="constant", warmup_steps=0
        ),
        parallel="ddp", resume="never", preflight=False, validate_every=0,
        checkpoint=dataclasses.replace(spec.training.checkpoint, best_metric=None),  # nothing is validated or saved
    )  # fmt: skip
    spec = dataclasses.replace(spec, training=training)
    with joined(device=training.device, threads=training.threads) as process:
        data = data or open_data(spec, root)
        parts = build(spec, root=root, data=data, process=process, tracker=Silent())
        if wrap is not None:
            wrap(parts)
        batch = _batch(parts, data, config.examples)
        parts.stepper.parallel.module.train()
        checks = [
            placement(parts, batch),
            train_mode(parts),
            attached(parts, batch),
            first_losses(parts, batch, config, fresh=training.init_from is None),
            precision(parts, batch),
            in_place(parts, batch),
        ]
        try:
            checks += learning(parts, batch, config)
        except RuntimeError as error:
            text = str(error).strip().splitlines()[0]
            checks.append(Check("overfit one batch", text, "the backward pass fails; see the lines above"))
        checks.append(groups(parts))
        return checks


def as_table(checks: list[Check]) -> str:
    return "\n".join(str(check) for check in checks)


# -- the checks --------------------------------------------------------------------------------------------------------


def placement(parts: Run, batch: Batch) -> Check:
    """Check that parameters, buffers, EMA and batch are on the configured device (optimizer state: see `learning`)."""
    root, device = parts.stepper.root, parts.process.device
    held: dict[str, Tensor] = {**dict(root.named_parameters()), **dict(root.named_buffers())}
    held |= {f"ema {name}": value for name, value in parts.ema.values.items()}
    held |= {f"batch {name}": value for name, value in batch.tensors.items()}
    wrong = [f"{name} on {value.device}" for name, value in held.items() if value.device != device]
    found = f"{len(held)} tensors on {device}"
    if wrong:
        return Check("placement", f"{len(wrong)} of them elsewhere: {', '.join(wrong[:4])}", f"move them to {device}")
    return Check("placement", found)


def train_mode(parts: Run) -> Check:
    """Check that every module is in training mode."""
    modules = list(parts.stepper.root.modules())
    evaluating = [type(module).__name__ for module in modules if not module.training]
    if evaluating:
        names = ", ".join(sorted(set(evaluating)))
        return Check("train mode", f"{len(evaluating)} modules are in evaluation mode: {names}", "call .train()")
    drops = sum(isinstance(module, nn.Dropout) for module in modules)
    return Check("train mode", f"{len(modules)} modules in training mode" + (f", {drops} dropout" if drops else ""))


def attached(parts: Run, batch: Batch) -> Check:
    """Check that the loss of every kind of step is a finite number with a gradient graph."""
    faults = []
    for kind in parts.stepper.objective.kinds:
        loss = _loss(parts, batch, kind)
        if loss.grad_fn is None:
            faults.append(f"{kind}: the loss has no gradient graph")
        if not bool(torch.isfinite(loss)):
            faults.append(f"{kind}: loss is {float(loss.detach())}")
    if faults:
        return Check("loss", "; ".join(faults), "look for .detach(), .item() or a constant in the objective")
    return Check("loss", f"attached and finite in {', '.join(parts.stepper.objective.kinds)}")


def first_losses(parts: Run, batch: Batch, config: SanityConfig, *, fresh: bool) -> Check:
    """Check that the losses at initial weights have the expected values, such as log V per token."""
    expected = parts.stepper.objective.expected_first_loss()
    if not fresh or not expected:
        return Check("first loss", "not checked: " + ("no value is expected" if fresh else "the weights are trained"))
    found, remedies = [], []
    for kind in parts.stepper.objective.kinds:
        with torch.no_grad():
            losses = parts.stepper.losses(batch, kind=kind, draw=0, step=0)
        for name, want in expected.items():
            if name in losses:
                have = float(losses[name][0] / losses[name][1])
                found.append(f"{kind}/{name} {have:.4f}, expected {want:.4f}")
                if abs(have - want) > config.tolerance * abs(want):
                    remedies.append(f"{kind}/{name}: the head must start at 0, and ids that cannot occur be excluded")
    return Check("first loss", "; ".join(found), "; ".join(remedies))


def precision(parts: Run, batch: Batch) -> Check:
    """Check that linear layers compute in the configured type, parameters are float32, and only fp16 has a scaler."""
    kind, scaler = parts.config.precision.autocast, parts.stepper.scaler
    want = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    seen: set[torch.dtype] = set()
    model: Any = parts.stepper.root.model
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
        for name, module in model.blocks.named_modules()
        if isinstance(module, nn.Linear)
    ]
    _loss(parts, batch, parts.stepper.objective.kinds[0])
    for hook in hooks:
        hook.remove()
    held = {p.dtype for p in parts.stepper.root.parameters()}
    found = f"{kind}: blocks compute in {_names(seen)}, parameters in {_names(held)}"
    if (seen and seen != {want}) or held != {torch.float32}:
        return Check("precision", found, f"blocks should compute in {want} and parameters be float32")
    if (scaler is not None) != (kind == "fp16"):
        return Check("precision", f"{found}, scaler {scaler}", "use a GradScaler for fp16 only")
    return Check("precision", found)


def in_place(parts: Run, batch: Batch) -> Check:
    """Run a backward pass in anomaly mode: no needed value was overwritten, and all gradients are finite."""
    try:
        with torch.autograd.set_detect_anomaly(True):
            for kind in parts.stepper.objective.kinds:
                _loss(parts, batch, kind).backward()
    except RuntimeError as error:
        return Check(
            "in place", str(error).splitlines()[0], "the operation named above changes a tensor that backward needs"
        )
    finally:
        parts.optimization.drop_gradients()
    return Check("in place", "nothing that the backward pass needs is overwritten")


def learning(parts: Run, batch: Batch, config: SanityConfig) -> list[Check]:
    """Overfit one batch with the same noise in every step, and check gradients and movement of parameters."""
    root, kinds = parts.stepper.root, parts.stepper.objective.kinds
    start = {name: p.detach().clone() for name, p in root.named_parameters()}
    seen: set[str] = set()
    bad: set[str] = set()
    losses: list[float] = []
    begun, step = time.perf_counter(), 0
    while step < config.max_steps and time.perf_counter() - begun < config.max_seconds:
        value = 0.0
        for kind in kinds:
            loss = _loss(parts, batch, kind)
            loss.backward()
            value += float(loss.detach()) / len(kinds)
        if step < 8 or step % 16 == 0:
            for name, p in root.named_parameters():
                if p.grad is not None:
                    bad |= set() if bool(torch.isfinite(p.grad).all()) else {name}
                    seen |= {name} if bool((p.grad != 0).any()) else set()
        losses.append(value)
        parts.optimization.clip(float(parts.optimization.norm()))
        parts.optimization.step()
        parts.optimization.drop_gradients()
        step += 1
        if value < 0.5 * config.fall * losses[0] and step >= 8:
            break
    trains: list[str] = []
    frozen: list[str] = []
    idle = parts.stepper.objective.idle_parts
    for name, part, p in tagged_parameters(root):
        if not p.requires_grad:
            frozen.append(name)
        elif not part.occasional and part.name not in idle:
            trains.append(name)
    moved = {name for name, p in root.named_parameters() if not torch.equal(p.detach(), start[name])}
    checks = [
        _listed("gradients", trains, [n for n in trains if n not in seen], "has had no gradient",
                "its output reaches no loss"),
        _listed("finite gradients", trains, sorted(bad), "has had a non-finite gradient", "see anomaly mode"),
        _listed("movement", trains, [n for n in trains if n not in moved], "has not moved",
                "is it in an optimizer group?"),
        _listed("frozen", frozen, [n for n in frozen if n in moved or n in seen],
                "is frozen and moved or had a gradient", "freeze it before the optimizer is made"),
    ]  # fmt: skip
    devices = {str(t.device) for t in parts.optimization.tensors().values() if t.ndim}
    wrong = devices - {str(parts.process.device)}
    checks.append(
        Check("optimizer state", f"on {', '.join(sorted(devices))}", "move it to the parameters" if wrong else "")
    )
    last = min(losses[-5:]) if losses else math.nan
    found = f"loss {losses[0]:.3f} → {last:.3f} in {len(losses)} steps on one batch of {len(batch.examples_B)} examples"
    enough = last < config.fall * losses[0]
    remedy = (
        ""
        if enough
        else f"it should fall below {config.fall:g} of its start: check the learning rate, then the objective"
    )
    return [*checks, Check("overfit one batch", found, remedy)]


def groups(parts: Run) -> Check:
    """Check that every trainable parameter is in exactly one optimizer group; list rates and decays."""
    lines = [
        f"{group['optimizer']} lr {group['lr']:g} decay {group['weight_decay']:g}: {group['tensors']} tensors, "
        f"{group['elements']:,} numbers"
        for group in parts.optimization.describe()
    ]
    want = sum(1 for p in parts.stepper.root.parameters() if p.requires_grad)
    have = len(parts.optimization.parameters)
    wrong = have != want
    return Check(
        "optimizer groups", " | ".join(lines), f"{have} of {want} trainable tensors are in a group" if wrong else ""
    )


# -- helpers -----------------------------------------------------------------------------------------------------------


def _batch(parts: Run, data: Data, count: int) -> Batch:
    chosen = np.arange(min(count, len(data.train.lengths)))
    lengths = data.train.lengths[chosen]
    length = min(-(-int(lengths.max()) // 8) * 8, data.shape.max_length)
    planned = Planned(0, 0, chosen, length, len(chosen), int(lengths.sum()))
    fields = parts.stepper.objective.fields
    dealt = deal(planned, data.train, fields=fields, rank=0, world=1, accumulation=1, fill=False)
    return dealt[0].to(parts.process.device)


def _loss(parts: Run, batch: Batch, kind: str) -> Tensor:
    return parts.stepper.total(batch, kind=kind, draw=0, step=0)


def _listed(name: str, everyone: list[str], faulty: list[str], fault: str, remedy: str) -> Check:
    if not faulty:
        return Check(name, f"{len(everyone)} parameters as expected")
    more = f" and {len(faulty) - 4} more" if len(faulty) > 4 else ""
    return Check(name, f"{', '.join(faulty[:4])}{more} {fault}", remedy)


def _names(types: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(t).removeprefix("torch.") for t in types)) or "nothing"
