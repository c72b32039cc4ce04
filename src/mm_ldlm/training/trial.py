"""Trial steps: the time of a training on the CPU of this machine, measured before its data are complete.

The ranks are forked from this process. They build the model, the objective, the optimizer and the batches of the
training, and exchange their gradients as it does. The texts are a sample of the corpus, and the latents are random.
Nothing is written, and the random generators of this process keep their states.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
from mm_ldlm.data.store import ShardStore
from mm_ldlm.distributed import collectives
from mm_ldlm.distributed.forked import run_forked
from mm_ldlm.distributed.launch import with_environment
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process
from mm_ldlm.models.base import DataShape
from mm_ldlm.training.batches import BatchPlan, Ints, Loader, Planned
from mm_ldlm.training.build import untrained_root
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import Data
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.memory import refuse_beyond_memory, tokens_of_a_batch
from mm_ldlm.training.optimizer import Optimization
from mm_ldlm.training.plan import steps_of
from mm_ldlm.training.precision import resolve
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.stepper import Stepper

TEXTS = 4096
"""Largest number of texts in the sample"""
SECONDS, LONGEST = 1.0, 20.0
"""Steps are measured until `SECONDS` have passed, at least one step; the ranks are killed after `LONGEST` seconds"""
MOST_PARAMETERS, MOST_EXAMPLES = 30_000_000, 1_000_000
"""A training of a larger model, or of more examples, is not measured"""
DRAWS, RARE = 64, 0.1
"""Number of training steps whose kinds are counted; kinds that are a smaller fraction than `RARE` are left out"""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Measured speed of a training.

    Attributes:
        seconds: time of all steps of the training, at most `max_minutes`.
        steps: number of steps of the training.
        per_step: seconds of a step of mean size.
        measured: number of steps that were measured.
        processes: number of processes that computed each step together.
    """

    seconds: float
    steps: int
    per_step: float
    measured: int
    processes: int


class Sample:
    """A sample of the texts with random latents, repeated up to the number of training examples (a `Source`).

    Args:
        texts: the token ids of each text.
        rows: number of training examples.
    """

    def __init__(self, texts: list[Ints], *, shape: DataShape, rows: int) -> None:
        self.texts, self.pad_id = texts, shape.pad_id
        self.lengths: Ints = np.resize(np.array([len(ids) for ids in texts], np.int64), rows)
        self._latents = np.random.default_rng(0).standard_normal((len(texts), shape.latent_dim or 0), np.float32)

    def tokens(self, rows: Ints, *, length: int) -> Ints:
        out = np.full((len(rows), length), self.pad_id, np.int64)
        for place, row in enumerate(rows % len(self.texts)):
            out[place, : len(self.texts[row])] = self.texts[row]
        return out

    def field(self, name: str, rows: Ints) -> npt.NDArray[Any]:
        return self._latents[rows % len(self.texts)]


def measure(records: ShardStore, typed: Mapping[str, Any], *, seed: int, fewest_steps: int) -> Trial | None:
    """Measure trial steps of the training on these records; `typed` contains the parsed parameters by section.

    Returns None for a training of fewer steps than `fewest_steps`, or one that is too large to be measured in seconds.

    Raises:
        ConfigurationError: the training needs more memory than this machine has.
        WorkerFailed: a rank of the measurement failed, or the ranks took longer than `LONGEST` seconds.
    """
    rows = records.manifest.meta["splits"].get("train", 0)
    if not 0 < rows <= MOST_EXAMPLES:
        return None
    texts, shape = sample_of(records, typed["tokenizer"], latent_dim=typed["encoder"].dim)
    source = Sample(texts, shape=shape, rows=rows)
    planned: TrainingConfig = typed["training"]
    processes = with_environment(planned.launch).processes
    training = dataclasses.replace(planned, batch=planned.batch.of_processes(processes))
    steps = min(steps_of(training, source.lengths, max_length=shape.max_length, seed=seed).values())
    if steps < fewest_steps:
        return None
    tokens = tokens_of_a_batch(training, source.lengths)
    if refuse_beyond_memory(typed["model"], shape, training, tokens=tokens).parameters > MOST_PARAMETERS:
        return None
    training = dataclasses.replace(training, max_steps=max(steps, training.optimizer.warmup_steps))
    spec = TrainingSpec(
        seed=seed, dataset="", fingerprints={}, shape=shape, model=typed["model"], objective=typed["objective"],
        training=training,
    )  # fmt: skip
    vectors = np.random.default_rng(0).standard_normal((shape.vocab_size, shape.latent_dim or 0), np.float32)
    data = Data(source, None, shape, folders={}, token_vectors=vectors if spec.model.stores else None)
    importlib.import_module("torch._dynamo")  # the optimizers import it: once here, and not in every rank
    found = run_forked(lambda process: trial_steps(spec, data, process), processes=processes, seconds=LONGEST)
    per_step, measured = float(found["per_step"]), int(found["measured"])
    seconds = steps * per_step
    if training.max_minutes is not None:
        seconds = min(seconds, 60 * training.max_minutes)
    return Trial(seconds, steps, per_step, measured, processes)


# -- the sample --------------------------------------------------------------------------------------------------------


def sample_of(records: ShardStore, config: TokenizerConfig, *, latent_dim: int) -> tuple[list[Ints], DataShape]:
    """Tokenise evenly spaced texts of the first shard; return their token ids and the shape of the data.

    The size of a reduced vocabulary is extrapolated from the sample to the whole corpus.
    """
    first = records.bounds(0)[1]
    chosen = np.linspace(0, first - 1, min(TEXTS, first)).astype(np.int64)
    base = load_tokenizer(config)
    values, offsets = base.encode_base(records.take(chosen).column("text").to_pylist())
    kept = base.with_vocabulary(np.unique(values)) if config.reduce_vocabulary else base
    size = kept.vocab_size
    if config.reduce_vocabulary:
        size = min(base.vocab_size, extrapolated(values, factor=len(records) / len(chosen)))
        size = max(size, kept.vocab_size)
    texts = np.split(kept.from_base(values).astype(np.int64), offsets[1:-1])
    shape = DataShape(
        vocab_size=size, pad_id=kept.pad_id, mask_id=kept.mask_id, max_length=config.max_length, latent_dim=latent_dim
    )  # fmt: skip
    return [ids[: config.max_length] for ids in texts], shape


def extrapolated(values: Ints, *, factor: float) -> int:
    """Extrapolate the number of distinct values to `factor` times as many values, by Heaps' law.

    It grows as a power of the number of values; the exponent is fitted to the first half and to all of `values`.
    """
    whole, half = len(np.unique(values)), len(np.unique(values[: len(values) // 2]))
    return round(whole * factor ** np.log2(whole / max(half, 1)))


# -- the steps ---------------------------------------------------------------------------------------------------------


def trial_steps(spec: TrainingSpec, data: Data, process: Process) -> dict[str, float]:
    """Measure steps on one rank; return the seconds of a step of mean size, and how many steps were measured.

    A step of a small batch comes first and is not counted, because the first step creates kernels. The fastest step of
    each kind counts, because the first batches of a size allocate memory, which takes as long as computing on some
    machines.
    """
    rank = _Rank(spec, data, process)
    batches = list(rank.loader.plan.epoch(0))
    draws = rank.draws_by_kind(batches[0])
    kinds = [kind for kind, found in draws.items() if len(found) >= RARE * DRAWS] or list(draws)
    seconds: dict[str, list[float]] = defaultdict(list)
    small = min(len(batches[0][0]), 8 * process.world)
    rank.step((batches[0][0][:small], batches[0][1]), draw=0)
    began = time.perf_counter()
    for number in range(len(batches)):
        kind = kinds[number % len(kinds)]
        before = time.perf_counter()
        rank.step(batches[number], draw=draws[kind][number % len(draws[kind])])
        now = time.perf_counter()
        seconds[kind].append((now - before) / padded(batches[number]))
        if float(collectives.max_(torch.tensor(now - began))) > SECONDS:  # all ranks decide together
            break
    mean = sum(map(padded, batches)) / len(batches)
    rates = {kind: min(found) for kind, found in seconds.items()}
    weights = {kind: len(draws[kind]) for kind in rates}
    per_token = sum(weights[kind] * rate for kind, rate in rates.items()) / sum(weights.values())
    return {"per_step": per_token * mean, "measured": sum(map(len, seconds.values()))}


def padded(batch: tuple[Ints, int]) -> int:
    """Count the padded tokens of a batch (examples, padded length)."""
    return len(batch[0]) * batch[1]


class _Rank:
    """One rank of a trial step: model, optimizer, averaged weights and batches, as in the training."""

    def __init__(self, spec: TrainingSpec, data: Data, process: Process) -> None:
        config = spec.training
        torch.autograd.set_detect_anomaly(config.precision.detect_anomaly)
        root = untrained_root(spec, data)
        self.lengths, self.steps = data.train.lengths, config.steps
        self.stepper = Stepper(
            Parallel(root, process, strategy=config.parallel), process, precision=resolve(config.precision, process),
            scaler=None, seed=spec.seed,
        )  # fmt: skip
        self.optimization = Optimization(root, config.optimizer, max_steps=config.steps)
        self.ema = Ema(root, config.ema)
        self.loader = Loader(
            BatchPlan(self.lengths, config.batch, seed=spec.seed, max_length=spec.shape.max_length), data.train,
            fields=self.stepper.objective.fields, rank=process.rank, world=process.world, fill=False,
        )  # fmt: skip
        self.stepper.parallel.module.train()

    def draws_by_kind(self, batch: tuple[Ints, int]) -> dict[str, list[int]]:
        """Draw steps of the training at random; return their numbers by kind, the most frequent kind first."""
        micro, found = self.loader.make(self._planned(batch))[0], defaultdict(list)
        for draw in np.random.default_rng(0).integers(self.steps, size=DRAWS).tolist():
            found[self.stepper.objective.kind(self.stepper.generator(micro, draw), step=draw)].append(draw)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def step(self, batch: tuple[Ints, int], *, draw: int) -> None:
        """Compute step `draw` of the training loop on this batch, without what the loop does only at intervals."""
        self.stepper.forward_backward(self.loader.make(self._planned(batch)), draw=draw, step=draw)
        norm = self.optimization.norm()
        collectives.sum_(norm.double().reshape(1))  # the loop sums more numbers, also in one all-reduce
        self.optimization.clip(float(norm))
        self.optimization.step()
        self.ema.update(draw)
        self.optimization.drop_gradients()

    def _planned(self, batch: tuple[Ints, int]) -> Planned:
        examples, length = batch
        return Planned(0, 0, examples, length, len(examples), int(self.lengths[examples].sum()))
