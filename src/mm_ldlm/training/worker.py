"""Training worker: a rank of elastic_launch or torchrun, or a single process.

    python -m mm_ldlm.training.worker data/06_models/runs/training_spec.json
    torchrun --nproc-per-node=2 -m mm_ldlm.training.worker data/06_models/runs/training_spec.json

A GPU host needs only torch, numpy, psutil, pyarrow, pydantic, safetensors, tokenizers and tqdm.
"""

import argparse
import contextlib
import math
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

import mm_ldlm
from mm_ldlm.core import MMLDLMError, WorkerFailed, registered
from mm_ldlm.core.files import remove_temporaries, write_json, write_problem
from mm_ldlm.distributed import collectives, failure
from mm_ldlm.distributed.process import Process, joined
from mm_ldlm.training import loop
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, CONFIG, LOG, aside, latest
from mm_ldlm.training.data import Data, open_data
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.session import read_status, sole_writer, write_status
from mm_ldlm.training.spec import TrainingSpec

ONE_REQUEST = 5.0
"""Seconds within which several signals are one request to stop"""


def train(spec: TrainingSpec, *, root: Path, data: Data | None = None) -> tuple[loop.Ending, int]:
    """Train as `spec` describes, as the rank in the environment variables, or without them as a single process.

    Returns how the session ended, and the step of the run.

    Args:
        root: folder that contains the run folder, and to which the paths of the spec are relative.
        data: data to use instead of the dataset of the spec.

    Raises:
        MMLDLMError: the run cannot start, or diverged.
    """
    config, directory, step = spec.training, root / spec.name, None
    with (
        joined(
            device=config.device, timeout_minutes=config.collective_timeout_minutes, threads=config.threads
        ) as process,
        _alone(root, spec.name, process),
    ):
        launch, attempt = process.run_id, process.attempt
        tracker = _open_folder(directory, spec, process)
        try:
            if attempt > 0 and launch and (before := read_status(directory)).launch == launch:
                raise WorkerFailed(before.reason)  # a restart would fail in the same way
            data = data or open_data(spec, root)
            run = build(spec, root=root, data=data, process=process, tracker=tracker)
            for observer in run.observers.values():
                observer.start()
            resumed = run.checkpointer.resume(config.resume, root)
            state = run.learner.state
            tracker.event(
                state.step, "start", resumed_from=resumed, world=process.world, attempt=attempt,
                precision=run.config.precision.autocast,
            )  # fmt: skip
            step = state.step
            _status(directory, process, "running", step)
            with stop_on_signal() as run.stop_requested:
                ending = loop.train(run)
            newest = latest(directory / CHECKPOINTS)
            metrics = folder.document(newest, "training_state.json")["metrics"] if newest else {}
            ended = {"metrics": metrics, "seconds": state.seconds, "fingerprint": spec.fingerprint}
            _status(directory, process, ending, state.step, **ended)
            tracker.event(state.step, "end", ending=ending)
            collectives.barrier()
            return ending, state.step
        except BaseException as raised:
            reason = write_problem(raised) if isinstance(raised, OSError) else None
            error = raised if reason is None else WorkerFailed(reason)
            step = step if step is None else state.step
            failure.note(error, step=step)
            with contextlib.suppress(OSError):  # a full disk must not replace the error by another one
                recurs = {"launch": launch} if isinstance(error, MMLDLMError) else {}
                _status(directory, process, "failed", step or 0, reason=str(error), **recurs)
                tracker.event(step or 0, "failed", reason=f"{type(error).__name__}: {error}")
            raise error from error.__cause__
        finally:
            with contextlib.suppress(OSError):  # lines that a full disk did not take
                tracker.close()


# -- start and end of a session ----------------------------------------------------------------------------------------


@contextmanager
def _alone(root: Path, name: str, process: Process) -> Iterator[None]:
    """Refuse a second training in a run folder: their logs would mix, and checkpoints be replaced."""
    with sole_writer(root, name) if process.is_main else nullcontext() as other:
        if others := [held for held in collectives.gather(other) if held]:
            raise WorkerFailed(
                f"expected a run that no other process trains, found that {others[0]} writes to {root / name}. Wait "
                "for it, stop it, or set training.run_name to another name."
            )
        yield


def _open_folder(directory: Path, spec: TrainingSpec, process: Process) -> Tracker:
    """Create the run folder with its configuration, and open the log on rank 0."""
    if not process.is_main:
        return Tracker()
    if spec.training.resume == "never" and process.attempt == 0 and directory.exists():
        directory.rename(aside(directory))
    (directory / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    for place in (directory, directory / CHECKPOINTS):
        remove_temporaries(place)
    versions = {"mm_ldlm": mm_ldlm.__version__, "torch": torch.__version__, "python": platform.python_version()}
    others = [point.dist for point in registered() if point.dist is not None]
    versions |= {each.name: each.version for each in others}
    write_json(directory / CONFIG, {**spec.to_dict(), "versions": versions})
    return Tracker(directory / LOG)


def _status(directory: Path, process: Process, status: str, step: int, **more: Any) -> None:
    if process.is_main:
        write_status(directory, status, step, **more)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Make SIGTERM and SIGINT set a flag that the loop reads in every step; a later second signal ends the process.

    A service manager signals all processes of a run, and the launcher then signals its ranks again: signals within
    `ONE_REQUEST` seconds are one request.
    """
    first = math.inf

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        if time.monotonic() - first > ONE_REQUEST:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first = min(first, time.monotonic())

    with contextlib.ExitStack() as restored:
        for number in (signal.SIGTERM, signal.SIGINT):
            restored.callback(signal.signal, number, signal.signal(number, handle))
        yield lambda: first < math.inf


# -- the command -------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="mm_ldlm.training.worker", description="Train one run, as one rank.")
    parser.add_argument("spec", type=Path, help="training_spec.json, written by `kedro run --to-nodes=plan_training`")
    parser.add_argument(
        "--root", type=Path, default=None, help="folder to which the spec's paths are relative (default: its folder)"
    )
    given = parser.parse_args()
    with failure.recorded():
        ending, step = train(TrainingSpec.read(given.spec), root=given.root or given.spec.resolve().parent)
    if ending == "stopped":
        print(
            f"stopped at step {step}; the checkpoint is written. The same command continues from there.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
