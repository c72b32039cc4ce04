"""Sanity checks of a configuration: properties of a correct run, checked in about a minute.

They run in one process on the configured device, on a few examples of the real data, with the real model and optimizer.
No run folder is written.
"""

import dataclasses
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from mm_ldlm.core import Duration, Fraction, NonNegativeFloat, PositiveFloat, Rows, config, reason_of
from mm_ldlm.distributed.process import joined
from mm_ldlm.extras.sanity.preflight import Check
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.objectives.base import Batch
from mm_ldlm.training.batches import Planned
from mm_ldlm.training.build import build
from mm_ldlm.training.data import Data, open_data
from mm_ldlm.training.forward_backward import AUTOCAST
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.loop import Run
from mm_ldlm.training.spec import TrainingSpec


@config
class SanityConfig:
    """Limits of the sanity checks.

    Attributes:
        examples: number of examples in the batch that is overfitted.
        max_steps, max_seconds: limits of the overfitting, whichever is reached first.
        fall: the smallest of the last five losses must be below this fraction of the first one.
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
    spec: TrainingSpec, *, root: Path, config: SanityConfig, data: Data | None = None,
    samplers: Mapping[str, Any] = MappingProxyType({}),
) -> list[Check]:  # fmt: skip
    """Run every check and return all results; `samplers` are the samplers of texts by task."""
    with joined(device=spec.training.device, threads=spec.training.threads) as process:
        # Schedule, checkpoints and validation are switched off, because they would disturb the checks.
        optimizer = dataclasses.replace(
            spec.training.optimizer, lr=config.lr or spec.training.optimizer.lr, schedule="constant", warmup_steps=0
        )
        checkpoint = dataclasses.replace(spec.training.checkpoint, best_metric=None)
        training = dataclasses.replace(
            spec.training, optimizer=optimizer, checkpoint=checkpoint, parallel="ddp", validate_every=0
        )
        data = data or open_data(spec, root)
        spec = dataclasses.replace(spec, training=training)
        run = build(spec, root=root, data=data, process=process, tracker=Tracker())
        run.stepper.parallel.module.train()
        return [*checks_of(run, _batch(run, config.examples), config), writing(run, samplers)]


def checks_of(run: Run, batch: Batch, config: SanityConfig) -> list[Check]:
    """Run every check on a built run in training mode."""
    root, ema, device = run.learner.root, run.learner.ema, run.process.device
    held = {**dict(root.named_parameters()), **dict(root.named_buffers()), **batch.tensors}
    held |= {f"ema {name}": value for name, value in ema.values.items()}
    modules = dict(root.named_modules())
    fixed = tuple(
        name for name, each in modules.items() if [*each.children()] and not [*each.parameters()]
    )  # modules without parameters, such as a teacher, stay in evaluation mode
    losses = {kind: run.stepper.total(batch, kind=kind, draw=0, step=0) for kind in run.stepper.objective.kinds}
    unusable = [kind for kind, loss in losses.items() if not bool(torch.isfinite(loss))]
    checks = [
        _listed("placement", held, [name for name, value in held.items() if value.device != device],
                "is not on the device", f"move it to {device}"),
        _listed("train mode", modules,
                [name for name, module in modules.items() if not module.training and not f"{name}.".startswith(fixed)],
                "is in evaluation mode", "call .train()"),
        _listed("loss", losses, unusable, "has a non-finite loss", "check the objective and its process"),
        first_losses(run, batch, tolerance=config.tolerance),
        precision(run, batch),
        in_place(run, batch),
    ]  # fmt: skip
    try:
        checks += learning(run, batch, config)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        checks.append(Check("overfit one batch", reason, "the backward pass fails; see the lines above"))
    groups = [
        f"{group['optimizer']} lr {group['lr']:g} decay {group['weight_decay']:g}: {group['tensors']} tensors, "
        f"{group['elements']:,} numbers"
        for group in run.learner.optimization.describe()
    ]
    grouped = {id(p) for p in run.learner.optimization.parameters}
    lost = [name for name, p in root.named_parameters() if p.requires_grad and id(p) not in grouped]
    return [*checks, Check("optimizer groups", " | ".join(groups), f"in no group: {', '.join(lost)}" if lost else "")]


# -- the checks --------------------------------------------------------------------------------------------------------


def first_losses(run: Run, batch: Batch, *, tolerance: float) -> Check:
    """Check that the losses at initial weights have their expected values, such as log V per token."""
    expected = {} if run.config.init_from is not None else run.stepper.objective.expected_first_loss()
    if not expected:
        return Check("first loss", "not checked: no value is expected, or the weights are trained")
    found, wrong = [], []
    for kind in run.stepper.objective.kinds:
        with torch.no_grad():
            losses = run.stepper.losses(batch, kind=kind, draw=0, step=0)
        for name in (name for name in expected if name in losses):
            have, want = float(losses[name][0] / losses[name][1]), expected[name]
            found.append(f"{kind}/{name} {have:.4f}, expected {want:.4f}")
            wrong += [f"{kind}/{name}"] if abs(have - want) > tolerance * abs(want) else []
    remedy = f"{', '.join(wrong)}: the head must start at 0, and impossible ids must be excluded" if wrong else ""
    return Check("first loss", "; ".join(found), remedy)


def precision(run: Run, batch: Batch) -> Check:
    """Check that linear layers compute in the configured type, parameters are float32, and only fp16 has a scaler."""
    kind, scaled = run.config.precision.autocast, run.learner.optimization.scaler.is_enabled()
    want = AUTOCAST.get(kind, torch.float32)
    seen: set[torch.dtype] = set()
    model: Any = run.learner.root.model
    linear = [module for module in model.blocks.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype)) for module in linear]
    run.stepper.total(batch, kind=run.stepper.objective.kinds[0], draw=0, step=0)
    for hook in hooks:
        hook.remove()
    held = {p.dtype for p in run.learner.root.parameters()}
    blocks = f"blocks compute in {_names(seen)}" if seen else "blocks have no linear layers"
    found = f"{kind}: {blocks}, parameters in {_names(held)}, loss scaled: {scaled}"
    right = seen <= {want} and held == {torch.float32} and scaled == (kind == "fp16")
    remedy = f"blocks should compute in {_names({want})}, parameters should be float32, and only fp16 scales the loss"
    return Check("precision", found, "" if right else remedy)


def in_place(run: Run, batch: Batch) -> Check:
    """Check in anomaly mode that no value that backward needs is overwritten and no gradient is NaN."""
    try:
        with torch.autograd.set_detect_anomaly(True):
            for kind in run.stepper.objective.kinds:
                run.stepper.total(batch, kind=kind, draw=0, step=0).backward()
    except RuntimeError as error:
        fault = (
            "returns NaN in its backward pass" if "nan values" in str(error) else "changes a tensor that backward needs"
        )
        return Check("in place", str(error).splitlines()[0], f"the operation named above {fault}")
    finally:
        run.learner.optimization.drop_gradients()
    return Check("in place", "nothing that the backward pass needs is overwritten")


def learning(run: Run, batch: Batch, config: SanityConfig) -> list[Check]:
    """Overfit one batch with the same noise in every step, and check gradients and movement of parameters."""
    root, optimization, kinds = run.learner.root, run.learner.optimization, run.stepper.objective.kinds
    start = {name: p.detach().clone() for name, p in root.named_parameters()}
    seen, bad, losses = set[str](), set[str](), list[float]()
    ends = time.perf_counter() + config.max_seconds
    while len(losses) < config.max_steps and time.perf_counter() < ends:
        value = 0.0
        for kind in kinds:
            loss = run.stepper.total(batch, kind=kind, draw=0, step=0)
            loss.backward()
            value += float(loss.detach()) / len(kinds)
        if len(losses) < 8 or len(losses) % 16 == 0:
            grads = {name: p.grad for name, p in root.named_parameters() if p.grad is not None}
            bad |= {name for name, grad in grads.items() if not bool(torch.isfinite(grad).all())}
            seen |= {name for name, grad in grads.items() if bool((grad != 0).any())}
        losses.append(value)
        optimization.clip(float(optimization.norm()))
        optimization.optimizer.step()  # without the scaler: the loss is not scaled here
        optimization.drop_gradients()
        if value < 0.5 * config.fall * losses[0] and len(losses) >= 9:
            break
    idle = run.stepper.objective.idle_parts
    tagged = list(tagged_parameters(root))
    frozen = [name for name, _, p in tagged if not p.requires_grad]
    trains = [name for name, part, p in tagged if p.requires_grad and not part.occasional and part.name not in idle]
    moved = {name for name, p in root.named_parameters() if not torch.equal(p.detach(), start[name])}
    states = {name: value for name, value in optimization.tensors().items() if value.ndim}
    elsewhere = [name for name, value in states.items() if value.device != run.process.device]
    last = min(losses[-5:])
    found = f"loss {losses[0]:.3f} → {last:.3f} in {len(losses)} steps on one batch of {len(batch.examples_B)} examples"
    remedy = f"it should fall below {config.fall:g} of its start: check the learning rate, then the objective"
    return [
        _listed("gradients", trains, [n for n in trains if n not in seen], "has had no gradient",
                "its output reaches no loss"),
        _listed("finite gradients", trains, sorted(bad), "has had a non-finite gradient", "see anomaly mode"),
        _listed("movement", trains, [n for n in trains if n not in moved], "has not moved",
                "is it in an optimizer group?"),
        _listed("frozen", frozen, [n for n in frozen if n in moved or n in seen],
                "is frozen and moved or had a gradient", "freeze it before the optimizer is made"),
        _listed("optimizer state", states, elsewhere, "is not on the device", "move it to the parameters"),
        Check("overfit one batch", found, "" if last < config.fall * losses[0] else remedy),
    ]  # fmt: skip


def writing(run: Run, samplers: Mapping[str, Any]) -> Check:
    """Check that the model writes a text with its sampler."""
    preview: Any = run.observers.get("preview")
    if preview is None:
        return Check("writing", "not checked: this run shows no texts")
    try:
        text, *_ = preview.texts(sampler=samplers.get(preview.task))
    except Exception as error:  # of any component
        return Check("writing", reason_of(error), "correct the sampler or the model: sampling would fail like this")
    return Check("writing", repr(text))


# -- helpers -----------------------------------------------------------------------------------------------------------


def _batch(run: Run, count: int) -> Batch:
    lengths, longest = run.loader.plan.lengths[:count], run.loader.plan.max_length
    length = min(-(-int(lengths.max()) // 8) * 8, longest)
    planned = Planned(0, 0, np.arange(len(lengths)), length, len(lengths), int(lengths.sum()))
    return run.loader.make(planned)[0].to(run.process.device)


def _listed(name: str, everyone: Collection[str], faulty: list[str], fault: str, remedy: str) -> Check:
    if not faulty:
        return Check(name, f"{len(everyone)} as expected")
    more = f" and {len(faulty) - 4} more" if len(faulty) > 4 else ""
    return Check(name, f"{', '.join(faulty[:4])}{more} {fault}", remedy)


def _names(types: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(t).removeprefix("torch.") for t in types))
