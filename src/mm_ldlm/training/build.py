"""Construction of a run: model, objective, optimizer, batches and checkpoints of one rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import to_dict
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.distributed.parallel import Parallel, shard
from mm_ldlm.distributed.process import Process
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.models.freezing import freeze
from mm_ldlm.objectives.base import BuildsOnModel, Objective, UsesTokenCounts, UsesTrainingLength
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.alerts import Alerts
from mm_ldlm.training.batches import BatchPlan, Loader
from mm_ldlm.training.checkpointer import Checkpointer
from mm_ldlm.training.checkpoints.identity import identity_of
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import Data, no_validation, token_counts
from mm_ldlm.training.diagnostics import Diagnostics
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.guard import Guard
from mm_ldlm.training.initial import initialise
from mm_ldlm.training.loop import Run
from mm_ldlm.training.optimizer import Optimization
from mm_ldlm.training.precision import resolve
from mm_ldlm.training.preview import Preview, task_of
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.state import TrainingState, seed_everything, step_seed
from mm_ldlm.training.stepper import Stepper
from mm_ldlm.training.throughput import Throughput
from mm_ldlm.training.tracker import Tracker
from mm_ldlm.training.validation import Validation


def build(
    spec: TrainingSpec, *, root: Path, data: Data, process: Process, tracker: Tracker,
    wrap_objective: Callable[[Objective], Objective] | None = None,
) -> Run:  # fmt: skip
    """Build the components of the training loop; nothing has been trained or resumed yet.

    Args:
        root: folder that the spec's relative paths start from.
        wrap_objective: wraps the objective (tests inject faults with it).
    """
    config = dataclasses.replace(spec.training, precision=resolve(spec.training.precision, process))
    seed_everything(step_seed(spec.seed, 0, f"global/{process.rank}"))
    torch.backends.cuda.matmul.allow_tf32 = config.precision.tf32
    torch.backends.cudnn.allow_tf32 = config.precision.tf32
    torch.autograd.set_detect_anomaly(config.precision.detect_anomaly)

    trainable = _trainable_root(spec, data, root, wrap_objective, tracker).to(process.device)
    objective: Objective = trainable.objective
    model: Any = trainable.model
    if config.parallel == "fsdp":
        if isinstance(objective, nn.Module) and list(objective.parameters()):
            raise ConfigurationError(
                "parameter 'training.parallel' is 'fsdp', which shards only the model, but this objective has "
                "parameters of its own, whose gradients would not be reduced over ranks. Set training.parallel to ddp."
            )
        shard(model, list(model.blocks), process)
    plan = BatchPlan(data.train.lengths, config.batch, seed=spec.seed, max_length=data.shape.max_length)
    if config.precision.compile:
        trainable.call_as(_compiled(model, graphs=2 * len(plan.shapes()) * len(objective.kinds)))
    parallel = Parallel(trainable, process, strategy=config.parallel)
    scaler = torch.amp.GradScaler(process.device.type) if config.precision.autocast == "fp16" else None
    stepper = Stepper(parallel, process, precision=config.precision, scaler=scaler, seed=spec.seed)
    optimization = Optimization(trainable, config.optimizer, max_steps=config.steps)
    ema, guard, state = Ema(trainable, config.ema), Guard(config.guard), TrainingState()
    loader = Loader(
        plan, data.train, fields=objective.fields, rank=process.rank, world=process.world,
        fill=config.precision.compile, pin=process.device.type == "cuda",
    )  # fmt: skip
    identity = identity_of(model=spec.model, shape=spec.shape, objective=spec.objective, fingerprints=spec.fingerprints)
    checkpointer = Checkpointer(
        root / spec.name / "checkpoints", config.checkpoint, root=trainable, ema=ema, optimization=optimization,
        guard=guard, state=state, scaler=scaler, process=process, identity=identity,
        session=_session(spec, config, process), folders=data.folders, tracker=tracker,
    )  # fmt: skip
    return Run(
        config=config, process=process, stepper=stepper, optimization=optimization, ema=ema, loader=loader, state=state,
        guard=guard, checkpointer=checkpointer, tracker=tracker,
        diagnostics=Diagnostics(
            config.diagnose_every, trainable, compiled=config.precision.compile, scaler=scaler, device=process.device,
            gradients=root / spec.name if config.parameter_gradients else None, writes=process.is_main,
        ),
        throughput=Throughput(
            loader, state, process, max_steps=config.steps, max_minutes=config.max_minutes
        ),
        alerts=Alerts(tracker), stop_requested=lambda: False, validate=_validation(spec, data, trainable, ema, process),
        preview=_preview(spec, data, trainable, process, tracker),
    )  # fmt: skip


def _trainable_root(
    spec: TrainingSpec, data: Data, root: Path, wrap_objective: Callable[[Objective], Objective] | None,
    tracker: Tracker,
) -> TrainableRoot:  # fmt: skip
    """Build model and objective with their initial values or those of `init_from`, and freeze the frozen parts."""
    trainable = _initial_root(spec, data, data.shape, wrap_objective)
    if spec.training.init_from is not None:
        initialise(
            trainable, root / spec.training.init_from, vocabulary=spec.training.init_vocabulary,
            tokenizer=data.folders.get("tokenizer"), shape=data.shape, tracker=tracker,
            build=lambda shape: _initial_root(spec, data, shape, wrap_objective), options=to_dict(spec.model),
        )  # fmt: skip
    trained = spec.training.init_from is not None
    freeze(trainable, trainable.objective.frozen_parts(trained=trained), trained=trained)
    return trainable


def _initial_root(
    spec: TrainingSpec, data: Data, shape: DataShape, wrap_objective: Callable[[Objective], Objective] | None
) -> TrainableRoot:
    """Build model and objective with their initial values, for the data or for a larger vocabulary."""

    def tensor(values: npt.NDArray[Any]) -> Tensor:
        more = shape.vocab_size - data.shape.vocab_size if len(values) == data.shape.vocab_size else 0
        return torch.from_numpy(np.concatenate([values, *[values[-1:]] * more]))

    vectors = None if data.token_vectors is None else tensor(data.token_vectors)
    generator = torch.Generator().manual_seed(step_seed(spec.seed, 0, "model"))
    model = spec.model.build(shape, generator=generator, token_vectors=vectors)
    stores = {name: tensor(value) for name, value in data.stores.items()}
    objective: Objective = spec.objective.build(shape, fixed_shapes=spec.training.precision.compile, **stores)
    if isinstance(objective, BuildsOnModel):
        objective.attach(model)
    if isinstance(objective, nn.Module):
        init_weights(objective, generator)
    if isinstance(objective, UsesTokenCounts):
        objective.set_token_counts(lambda: token_counts(data.train, data.shape))
    if isinstance(objective, UsesTrainingLength):
        objective.set_training_length(spec.training.steps)
    return TrainableRoot(model, objective if wrap_objective is None else wrap_objective(objective))


def _session(spec: TrainingSpec, config: TrainingConfig, process: Process) -> dict[str, Any]:
    return {
        "seed": spec.seed, "world": process.world,
        "batch": to_dict(config.batch), "optimizer": to_dict(config.optimizer),
        "max_steps": config.steps, "objective": to_dict(spec.objective), "precision": to_dict(config.precision),
        "torch": torch.__version__,
        "data": {name: value for name, value in spec.fingerprints.items() if name not in ("tokenizer", "normaliser")},
    }  # fmt: skip


def _compiled(model: Any, *, graphs: int) -> Any:
    """Compile a model with room for `graphs` graphs: one per shape and kind of step (two with self-conditioning).

    Beyond its limit, 8 by default, dynamo would run further graphs uncompiled and only warn.
    """
    import torch._dynamo  # the import takes seconds

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, graphs + 1)
    return torch.compile(model, dynamic=False)


def _validation(
    spec: TrainingSpec, data: Data, root: TrainableRoot, ema: Ema, process: Process
) -> Validation | None:  # fmt: skip
    config = spec.training
    if config.validate_every == 0:
        return None
    if data.validation is None:
        raise no_validation(config.validate_every)
    size = config.validation_batch
    batch = (
        config.batch if size is None else dataclasses.replace(config.batch, tokens=None, examples=size, accumulation=1)
    )
    return Validation(
        data.validation, root, ema, process, batch=batch, examples=config.validation_examples, seed=spec.seed,
        max_length=data.shape.max_length, fill=config.precision.compile,
        capabilities=spec.objective.capabilities(spec.model),
    )  # fmt: skip


def _preview(
    spec: TrainingSpec, data: Data, root: TrainableRoot, process: Process, tracker: Tracker
) -> Preview | None:  # fmt: skip
    """Build the preview of the first rank; None if it is off or nothing can be shown."""
    config, folder = spec.training, data.folders.get("tokenizer")
    if config.show_every_seconds is None or not process.is_main or folder is None:
        return None
    if config.parallel == "fsdp" and process.world > 1:
        return None  # a forward pass of a sharded model needs all ranks
    capabilities = spec.objective.capabilities(spec.model)
    if (task := task_of(capabilities)) is None:
        return None
    return Preview(
        root, data.validation or data.train, tokenizer=folder, capabilities=capabilities, task=task,
        every=config.show_every_seconds, seed=spec.seed, device=process.device, tracker=tracker,
    )  # fmt: skip
