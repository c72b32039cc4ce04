"""Export of a run as a folder with `model.pt`, for programs that read the files of the older trainers.

The parameters keep their names, without the prefix `model.`. The folder also has all that an import needs: the
configuration, the tokenizer and the normaliser.
"""

import shutil
from pathlib import Path

from mm_ldlm.core import CheckpointError
from mm_ldlm.core.files import is_taken, new_directory
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.inference.files import newest_run
from mm_ldlm.inference.loading import run_config
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import CONFIG

_COUNTERS = ("step", "epoch", "batch_in_epoch", "examples", "tokens")


def export_checkpoint(run: Path, target: Path, *, checkpoint: str = "latest", use_ema: bool = True) -> Path:
    """Write the weights of a run to `target/model.pt`; return the checkpoint that they come from.

    Optimizer and random states are not exported.

    Args:
        run: folder of a run, of one of its checkpoints, or of runs (the newest one).
        target: a new folder.
        use_ema: the averaged weights, if the run has them.

    Raises:
        CheckpointError: there is no such run or checkpoint, or the folder exists.
    """
    refuse_existing(target)
    run = newest_run(run)
    found = folder.find(run, which=checkpoint.removeprefix("step-"))
    run_config(run, found)  # refuses a run that cannot be imported again
    config = next(place / CONFIG for place in (run, *found.parents[:2]) if (place / CONFIG).is_file())
    averaged = use_ema and (found / "ema.safetensors").is_file()
    tensors = folder.tensors(found, "ema.safetensors" if averaged else "model.safetensors")
    counters = folder.document(found, "training_state.json").get("state") or {}
    state = {key: counters[key] for key in _COUNTERS if key in counters}
    try:
        with new_directory(target) as new:
            weights = "averaged" if averaged else "last"
            legacy.write(new, tensors, {"step": folder.step_of(found), **state, "weights": weights})
            shutil.copyfile(config, new / CONFIG)
            for part in (each for each in found.iterdir() if each.is_dir()):
                shutil.copytree(part, new / part.name)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written ({error.strerror}). Choose another folder.") from None
    return found


def refuse_existing(target: Path) -> None:
    """Raise CheckpointError if a folder that is to be written exists, or cannot exist."""
    try:
        taken = is_taken(target)
    except OSError as error:
        raise CheckpointError(
            f"{str(target)[:200]!r} cannot be a folder ({error.strerror}). Choose another name."
        ) from None
    if taken:
        raise CheckpointError(
            f"{target}: expected a new folder, found one with files. Choose another name, or remove it."
        )
