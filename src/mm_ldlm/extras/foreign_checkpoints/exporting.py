"""Export of a run as a folder with `model.pt`, for programs that read the files of the older trainers.

The parameters keep their names, without the prefix `model.`. The folder also has all that an import needs: the
configuration, the tokenizer and the normaliser.
"""

import shutil
from pathlib import Path

from mm_ldlm.core.files import new_directory
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.inference.exporting import Source
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import CONFIG

_COUNTERS = ("step", "epoch", "batch_in_epoch", "examples", "tokens")


def write_model_pt(source: Source, target: Path) -> None:
    """Write the weights of a run to `target/model.pt`, without the states of optimizer and random generators."""
    found = source.checkpoint
    config = next(place / CONFIG for place in (source.run, *found.parents[:2]) if (place / CONFIG).is_file())
    counters = folder.document(found, "training_state.json").get("state") or {}
    state = {key: counters[key] for key in _COUNTERS if key in counters}
    with new_directory(target) as new:
        weights = "averaged" if source.averaged else "last"
        legacy.write(new, source.tensors, {"step": folder.step_of(found), **state, "weights": weights})
        shutil.copyfile(config, new / CONFIG)
        for name, part in source.folders.items():
            shutil.copytree(part, new / name)
