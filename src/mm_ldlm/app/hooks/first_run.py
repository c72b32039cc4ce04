"""Estimate of the training time in the first minute of a first run, from trial steps once there are records."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.app.tracking.outlook import training_time
from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.core.messages import escape, shorten
from mm_ldlm.training.expected import EXPECTED

log = logging.getLogger(__name__)

RECORDS = "records"
FEWEST_STEPS = 200
"""A training of fewer steps is not measured, because it soon estimates its own time"""
_NEEDS = frozenset({"ingestion", "embedding", "training"})
_READS = frozenset({"model", "objective", "training", "encoder", "tokenizer"})


def measures_training(
    typed: Mapping[str, Any], executed: Collection[str], *, seconds: Mapping[str, float], runs: Path
) -> bool:
    """Return whether a run measures trial steps: the first run in its folder, if it ingests, embeds and trains.

    Args:
        typed: the parsed parameters by section.
        executed: names of the pipelines of this run.
        seconds: time of each pipeline in the last run in the same folder.
        runs: folder of the training runs. If it contains a run, nothing is measured, because this run may continue it.
    """
    if not (set(executed) >= _NEEDS and typed.keys() >= _READS):
        return False
    if any(name in seconds for name in executed) or any(runs.glob("*/config.json")):
        return False
    return measurable(typed)


def measurable(typed: Mapping[str, Any]) -> bool:
    """Return whether trial steps would represent the training, given the machine, the training and its data.

    This holds on the CPU of one Linux host without a GPU, with one thread per process, for an objective whose only
    field is the latents, if an encoder on this host computes them.
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
    """Measure trial steps, log the expected training time and store it for embedding, which adds its own time."""
    from mm_ldlm.training.trial import measure

    try:
        found = measure(records, typed, seed=seed, fewest_steps=FEWEST_STEPS)
    except Exception as error:  # an estimate never ends a run
        reason = str(error) if isinstance(error, MMLDLMError) else f"{type(error).__name__}: {error}"
        log.info(
            "time: the training could not be measured (%s); it will show its time after its first steps",
            shorten(escape(reason), 300),
        )
        return
    if found is not None:
        EXPECTED.training = found.seconds
        log.info(training_time(**dataclasses.asdict(found)))
