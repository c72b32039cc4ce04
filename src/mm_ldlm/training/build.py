"""Build a run: model, objective, optimizer, batches and checkpoints of one rank."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.core import ConfigurationError
from mm_ldlm.distributed.parallel import Parallel, shard
from mm_ldlm.distributed.process import Process
from mm_ldlm.models.parts import freeze
from mm_ldlm.objectives.root import TrainableRoot, build_root
from mm_ldlm.training.batches import BatchPlan, Loader
from mm_ldlm.training.checkpointer import Checkpointer
from mm_ldlm.training.data import Data, token_counts
from mm_ldlm.training.forward_backward import Stepper
from mm_ldlm.training.initial import initialise
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.learner import Learner
from mm_ldlm.training.loop import Run
from mm_ldlm.training.observers import OBSERVERS
from mm_ldlm.training.precision import resolve
from mm_ldlm.training.seeds import seed_everything, step_seed
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.throughput import Throughput
from mm_ldlm.training.validation import Validation


def build(spec: TrainingSpec, *, root: Path, data: Data, process: Process, tracker: Tracker) -> Run:
    """Build the components of the training loop; nothing has been trained or resumed yet.

    Args:
        root: folder to which the paths of the spec are relative.
    """
    directory = root / spec.name  # the name covers the parameters as they were planned
    config = dataclasses.replace(spec.training, precision=resolve(spec.training.precision, process))
    spec = dataclasses.replace(spec, training=config)
    compiled = config.precision.compile
    seed_everything(spec.seed, 0, rank=process.rank)
    torch.backends.cuda.matmul.allow_tf32 = config.precision.tf32
    torch.backends.cudnn.allow_tf32 = config.precision.tf32
    torch.autograd.set_detect_anomaly(config.precision.detect_anomaly)

    trainable = trainable_root(spec, data, root=root, tracker=tracker).to(process.device)
    objective = trainable.objective
    if config.parallel == "fsdp":
        if list(objective.parameters()):
            raise ConfigurationError(
                "parameter 'training.parallel' is 'fsdp', which shards only the model, but this objective has "
                "parameters, whose gradients would not be reduced over ranks. Set training.parallel to ddp."
            )
        model: Any = trainable.model
        shard(model, list(model.blocks), process)
    plan = BatchPlan(data.train.lengths, config.batch, seed=spec.seed, max_length=data.shape.max_length)
    if compiled:
        trainable.call_as(_compiled(trainable.model, graphs=2 * len(plan.shapes()) * len(objective.kinds)))
    parallel = Parallel(trainable, process, strategy=config.parallel)
    learner = Learner.start(trainable, config, process.device)
    loader = Loader(plan, data.train, objective.fields, process, fill=compiled)
    run = Run(
        spec=spec,
        data=data,
        process=process,
        learner=learner,
        stepper=Stepper(
            parallel, process, precision=config.precision, scaler=learner.optimization.scaler, seed=spec.seed
        ),
        loader=loader,
        checkpointer=Checkpointer(learner, spec, process, tracker, run=directory, folders=data.folders),
        tracker=tracker,
        throughput=Throughput(loader, learner.state, config),
        validate=Validation(data.validation, learner, spec, process)
        if config.validate_every and data.validation is not None
        else None,
    )
    made = {name: OBSERVERS.load(name)(run) for name in OBSERVERS}
    run.observers = {name: observer for name, observer in made.items() if observer is not None}
    return run


def trainable_root(spec: TrainingSpec, data: Data, *, root: Path, tracker: Tracker) -> TrainableRoot:
    """Build model and objective with initial values or the weights of `init_from`, and freeze the frozen parts."""
    generator = torch.Generator().manual_seed(step_seed(spec.seed, 0, "model"))
    stores = {name: torch.from_numpy(value) for name, value in data.stores.items()}
    trainable = build_root(
        spec.model, spec.objective, data.shape, generator=generator, stores=stores,
        fixed_shapes=spec.training.precision.compile,
    )  # fmt: skip
    trainable.objective.set_token_counts(lambda: token_counts(data.train, data.shape))
    trainable.objective.set_training_length(spec.training.steps)
    if trained := spec.training.init_from is not None:
        initialise(trainable, root / spec.training.init_from, spec=spec, tracker=tracker)
    freeze(trainable, trainable.objective.frozen_parts(trained=trained), trained=trained)
    return trainable


def _compiled(model: Any, *, graphs: int) -> Any:
    """Compile a model and allow `graphs` graphs: one for each shape and kind of step (two with self-conditioning).

    Beyond its limit, 8 by default, dynamo would run further graphs uncompiled and only warn.
    """
    import torch._dynamo  # the import takes seconds

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, graphs + 1)
    return torch.compile(model, dynamic=False)
