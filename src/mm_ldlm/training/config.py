"""Parameters of training: batches, optimizer, EMA, precision, guard and checkpoints."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from mm_ldlm.core import (
    AutoDevice,
    ConfigurationError,
    Duration,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rows,
    RowsOrNone,
    Seed,
    Workers,
    bounded,
    config,
    parse,
    refuse_if,
    show,
    to_dict,
)
from mm_ldlm.distributed.launch import RanksConfig

Decay = Annotated[float, bounded(ge=0, lt=1)]
"""Decay of an exponential moving average; with 1 the average would never change."""


FOLDER_NAME = re.compile(r"(?!\.|(logs|training_spec\.json)$)[^/\\\x00-\x1f\x7f]{1,60}")
_SIZES = ("tokens", "examples", "tokens_per_device", "examples_per_device")


@config
class BatchConfig:
    """Global batch of one optimizer step, over all ranks and micro-batches.

    Exactly one of the first four attributes sets its size. The plan of a run replaces a size per device by the size
    of the global batch (`of_processes`).

    Attributes:
        tokens: padded tokens in a global batch; the number of examples then depends on their length.
        examples: examples in a global batch (the batch size).
        tokens_per_device: padded tokens of one micro-batch of one process.
        examples_per_device: examples of one micro-batch of one process; the global batch has this many × processes ×
            hosts × accumulation.
        accumulation: number of micro-batches that each rank splits its part into.
        length_multiple: lengths are padded to a multiple of this, so that few shapes occur.
        example_multiple: the number of examples of a token-budget batch is a multiple of this; processes ×
            accumulation should divide it.
        prefetch: number of batches that a thread prepares ahead; 0 prepares them in the loop.
    """

    tokens: Rows | None = None
    examples: Rows | None = None
    tokens_per_device: Rows | None = None
    examples_per_device: Rows | None = None
    accumulation: Rows = 1
    length_multiple: Rows = 8
    example_multiple: Rows = 8
    prefetch: RowsOrNone = 4

    def __post_init__(self) -> None:
        found = {name: getattr(self, name) for name in _SIZES if getattr(self, name) is not None}
        listed = " and ".join(f"{name}={value}" for name, value in found.items()) or "none of them"
        refuse_if(
            len(found) != 1,
            f"set exactly one of {', '.join(_SIZES)} and the others to null, found {listed}",
            *(found or _SIZES),
        )

    def of_processes(self, world: int) -> Self:
        """Return this configuration with the global size of `world` processes instead of a size per device.

        Every batch of a budget of tokens then has examples for each micro-batch of each process.
        """
        ways = world * self.accumulation
        if self.examples_per_device is not None:
            size: dict[str, Any] = {"examples": self.examples_per_device * ways}
        elif self.tokens_per_device is not None:
            size = {"tokens": self.tokens_per_device * ways, "example_multiple": math.lcm(self.example_multiple, ways)}
        else:
            return self
        per_device = {"examples_per_device": None, "tokens_per_device": None}
        return parse(type(self), to_dict(self) | per_device | size, at="training.batch")


@config
class OptimizerConfig:
    """AdamW and its learning-rate schedule.

    Attributes:
        lr, betas, eps, weight_decay: of AdamW; norms, biases, embeddings and other vectors have no weight decay.
        schedule: after a linear rise over `warmup_steps`, `cosine` and `linear` fall from lr to lr · min_lr_ratio at
            the last step.
        clip: largest global gradient norm; null disables clipping.
    """

    RETIRED: ClassVar[dict[str, Any]] = {"name": "adamw", "muon_lr": 1e-3, "muon_momentum": 0.95}

    lr: PositiveFloat = 1e-3
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: NonNegativeInt = 100
    min_lr_ratio: Fraction = 0.1
    clip: PositiveFloat | None = 1.0


@config
class EmaConfig:
    """Exponential moving average (EMA) of the weights, in float32; the decay is min(`decay`, (1 + n)/(10 + n))."""

    enabled: bool = True
    decay: Decay = 0.999


@config
class PrecisionConfig:
    """Numerical precision and compilation.

    Attributes:
        autocast: type of the forward pass: fp32, bf16, or fp16 with a GradScaler; auto is bf16 if the devices of all
            ranks compute products faster in bf16, otherwise fp32. Parameters, optimizer and EMA stay float32.
        tf32: allow TensorFloat-32 matrix products on GPUs.
        compile: compile the model by `torch.compile`.
        detect_anomaly: use autograd's anomaly mode, which is slow but names the operation whose gradient became NaN.
    """

    autocast: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    tf32: bool = False
    compile: bool = False
    detect_anomaly: bool = False


@config
class GuardConfig:
    """Guard against non-finite steps and spikes.

    Attributes:
        max_consecutive_skips: number of skipped steps in a row after which the run rolls back to the last checkpoint; a
            shorter run takes the number of its steps.
        max_rollbacks: largest number of roll-backs; if another one is needed, training stops with a diagnosis.
        rollback_lr_factor: factor of the learning rate at each roll-back.
        spike_z: robust z-score of the loss or gradient norm above which a step is a spike.
        spike_window: number of the last finite steps of a kind from which the score is computed, once there are a
            quarter of them, and at least 8.
        spike_action: `log` reports a spike and relies on clipping; `skip` also skips the update.
        spike_patience: number of spikes in a row that count as divergence and cause a roll-back.
    """

    max_consecutive_skips: PositiveInt = 5
    max_rollbacks: NonNegativeInt = 2
    rollback_lr_factor: Annotated[float, bounded(gt=0, le=1)] = 0.5
    spike_z: PositiveFloat = 10.0
    spike_window: Annotated[int, bounded(ge=8, le=10**8)] = 128
    spike_action: Literal["log", "skip"] = "log"
    spike_patience: PositiveInt = 25


@config
class CheckpointConfig:
    """Intervals and retention of checkpoints.

    Attributes:
        every_steps, every_minutes: intervals of checkpoints; null disables one of them. The last step is always saved.
        keep_last: number of the newest checkpoints to keep.
        keep_every: also keep every checkpoint whose step is a multiple of this.
        best_metric: name of a metric in the training log; the checkpoint with its best value is kept as `best`. null:
            none. `every_steps` must be a multiple of the interval at which it is measured.
        best_is: whether the smallest or the largest value is best.
        background: write in a thread while training continues.
    """

    every_steps: PositiveInt | None = 500
    every_minutes: Duration | None = 10
    keep_last: PositiveInt = 2
    keep_every: PositiveInt | None = None
    best_metric: str | None = None
    best_is: Literal["min", "max"] = "min"
    background: bool = True


@config
class TrainingConfig:
    """Parameters of training, independent of model and objective.

    Attributes:
        max_steps, epochs, max_tokens: limits of training; the first that is reached ends it, and null means no limit.
            They are numbers of optimizer steps, of passes over all training examples, and of valid tokens (pads are not
            counted; the run ends with the step that reaches the number). At least one is needed: the plan of a run
            replaces max_steps by the number of steps that they allow, so that the learning-rate schedule ends there.
        max_minutes: end the run with a checkpoint after this many minutes of training; null: no limit.
        log_every, diagnose_every, validate_every: intervals in steps; 0 disables the last two.
        validation_examples: number of examples of the validation split that a validation loss is averaged over.
        validation_batch: number of examples in a validation batch, over all processes; null: as in training.
        show_every_seconds: interval at which a sentence is shown that the model rebuilds or writes from noise; null:
            never. A model that is sharded over ranks (fsdp) shows none.
        parallel: data parallelism over ranks: ddp, or fsdp, which shards the model.
        device: auto, cpu, cuda or cuda:N.
        threads: CPU threads of each rank.
        collective_timeout_minutes: a rank that waits longer for the others ends the run with an error.
        resume: auto (from the newest checkpoint of this run, if any), never, or the folder of another run or of one of
            its checkpoints.
        seed: seed of initial values, batches and noise; null: the project's seed, which data, sampling and evaluation
            always use.
        init_from: folder of a run or a checkpoint whose weights the run starts from (at step 0, with a new optimizer).
        run_name: name of the run folder; null derives it from the fingerprint of the run.
        preflight: check the machine before the first step.
    """

    batch: BatchConfig
    max_steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    max_minutes: Duration | None = None
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    ema: EmaConfig = dataclasses.field(default_factory=EmaConfig)
    precision: PrecisionConfig = dataclasses.field(default_factory=PrecisionConfig)
    guard: GuardConfig = dataclasses.field(default_factory=GuardConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    launch: RanksConfig = dataclasses.field(default_factory=RanksConfig)
    log_every: PositiveInt = 10
    diagnose_every: NonNegativeInt = 100
    validate_every: NonNegativeInt = 0
    validation_examples: Rows = 512
    validation_batch: Rows | None = None
    show_every_seconds: Duration | None = 60
    parallel: Literal["ddp", "fsdp"] = "ddp"
    device: AutoDevice = "auto"
    threads: Workers = 1
    collective_timeout_minutes: Duration = 10
    resume: str = "auto"
    seed: Seed | None = None
    init_from: Annotated[str, bounded(min_length=1)] | None = None
    run_name: str | None = None
    preflight: bool = True

    def __post_init__(self) -> None:
        refuse_if(
            self.max_steps is None and self.epochs is None and self.max_tokens is None,
            "expected at least one limit of the training, found null for each: the learning-rate schedule needs "
            "its last step. Set epochs or max_steps",
            "max_steps",
            "epochs",
            "max_tokens",
        )
        refuse_if(
            self.max_steps is not None and self.optimizer.warmup_steps > self.max_steps,
            f"optimizer.warmup_steps must be at most max_steps ({self.max_steps}), found {self.optimizer.warmup_steps}",
            "optimizer.warmup_steps",
            "max_steps",
        )
        if (best := self.checkpoint.best_metric) is not None:
            name = "validate_every" if best.startswith("validation/") else "log_every"
            interval, steps = getattr(self, name), self.checkpoint.every_steps
            refuse_if(
                interval == 0 or steps is None or steps % interval,
                f"checkpoint.best_metric {best!r} is measured every {name} steps, so checkpoint.every_steps must be a "
                f"multiple of {name}, found {'null' if steps is None else steps} and {interval}",
                "checkpoint.best_metric",
                "checkpoint.every_steps",
            )
        refuse_if(
            self.run_name is not None and not FOLDER_NAME.fullmatch(self.run_name),
            "run_name must be the name of a folder: 1 to 60 characters, no separators, no leading dot, and not one of "
            f"the other names in the folder of the runs (logs, training_spec.json), found {show(self.run_name)}",
            "run_name",
        )

    @property
    def steps(self) -> int:
        """Number of optimizer steps of a planned run."""
        assert self.max_steps is not None, "the plan of a run sets max_steps"
        return self.max_steps


def splits_read(training: TrainingConfig) -> dict[str, str]:
    """Return parameter → the split that it reads, for all splits but the training split."""
    return {"training.validate_every": "validation"} if training.validate_every else {}


def refuse_empty_splits(counts: Mapping[str, int], *, read: Mapping[str, str]) -> None:
    """Refuse splits without examples that a run will read.

    Args:
        counts: examples of each split.
        read: parameter → the split that it reads.
    """
    for parameter, split in read.items():
        if not counts.get(split):
            raise ConfigurationError(
                f"parameter '{parameter}' reads the split '{split}', which has no examples. Add texts, hold out more "
                "of them (`--params ingestion.splits.validation=0.1,ingestion.splits.test=0.1`, or 0.3 for fewer than "
                f"30 texts, files or groups), or set {parameter} to 0."
            )
