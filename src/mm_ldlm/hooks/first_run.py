"""The time of the training in the first minute of a first run: trial steps as soon as there are records."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.errors import WorkerFailed
from mm_ldlm.tracking.expected import EXPECTED
from mm_ldlm.tracking.outlook import training_time

log = logging.getLogger(__name__)

RECORDS = "records"
FEWEST_STEPS = 200
"""A training of fewer steps is not measured: it soon shows its time itself"""
_NEEDS = frozenset({"ingestion", "embedding", "training"})
_READS = frozenset({"model", "objective", "training", "encoder", "tokenizer"})


def measures_training(
    typed: Mapping[str, Any], executed: Collection[str], *, seconds: Mapping[str, float], runs: Path
) -> bool:
    """Return whether a run measures trial steps: a first one in its folder, which embeds for minutes and then trains.

    Args:
        typed: the parsed parameters by section.
        executed: pipelines that run, training only with its processes.
        seconds: of each pipeline in the last run in the same folder.
        runs: folder of the runs; a run in it may be continued.
    """
    if not (set(executed) >= _NEEDS and typed.keys() >= _READS):
        return False
    if any(name in seconds for name in executed) or any(runs.glob("*/config.json")):
        return False
    return measurable(typed)


def measurable(typed: Mapping[str, Any]) -> bool:
    """Return whether trial steps can be measured: on the CPU of one Linux host without GPUs, in processes of one thread
    each, for an objective whose only field are latents that an encoder computes on this host.
    """
    import torch

    from mm_ldlm.distributed.launch import with_environment

    model, objective, training, encoder = (typed[name] for name in ("model", "objective", "training", "encoder"))
    ranks = with_environment(training.launch)
    return (
        sys.platform == "linux"
        and training.device in ("auto", "cpu")
        and not torch.cuda.is_available()
        and ranks.nodes == 1
        and training.threads == 1
        and (training.parallel == "ddp" or ranks.processes == 1)
        and training.precision.autocast != "fp16"
        and not training.precision.compile
        and (training.max_steps is None or training.max_steps >= FEWEST_STEPS)
        and tuple(objective.fields) == ("latents",)
        and not objective.stores
        and set(model.stores) <= {"token_vectors"}
        and encoder.device is not None
        and encoder.dim is not None
    )


def measure_training(records: Any, typed: Mapping[str, Any], *, seed: int) -> None:
    """Measure trial steps of the training, log its time and store it for embedding, which adds its own."""
    from mm_ldlm.training.trial import measure

    try:
        found = measure(records, typed, seed=seed, fewest_steps=FEWEST_STEPS)
    except WorkerFailed as error:
        log.info("time: the training could not be measured (%s); it will show its time after its first steps", error)
        return
    if found is not None:
        EXPECTED.training = found.seconds
        log.info(
            training_time(
                found.seconds, steps=found.steps, per_step=found.per_step, measured=found.measured,
                processes=found.processes,
            )
        )  # fmt: skip
