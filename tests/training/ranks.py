"""One rank of a training on the task: `python -m tests.training.ranks CASE.json`."""

import sys
from pathlib import Path

from tests.forked import run_forked
from tests.training import task

from mm_ldlm.core.files import InputFile, write_json
from mm_ldlm.distributed import failure
from mm_ldlm.distributed.launch import LaunchConfig, launch
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.worker import train


def train_forked(spec: TrainingSpec, root: Path) -> None:
    """Train a spec in two processes without the launcher."""
    run_forked(main, _case(spec, root))


def train_on_ranks(spec: TrainingSpec, root: Path, *, processes: int = 2, restarts: int = 0) -> None:
    """Train a spec in processes of the launcher. PYTHONPATH must contain the folder of the tests' package."""
    case = _case(spec, root)
    config = LaunchConfig(processes=processes, max_restarts=restarts)
    launch("tests.training.ranks", [str(case)], config=config, log_directory=root / "logs")


def _case(spec: TrainingSpec, root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    write_json(root / "case.json", {"spec": spec.to_dict(), "root": str(root)})
    return root / "case.json"


def main(path: Path) -> None:
    case = InputFile(path, remedy="").json(dict)
    spec = TrainingSpec.from_dict(case["spec"])
    train(spec, root=Path(case["root"]), data=task.data(spec))


if __name__ == "__main__":
    with failure.recorded():
        main(Path(sys.argv[1]))
