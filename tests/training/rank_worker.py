"""Worker of the multi-process tests: `python -m rank_worker CASE.json` runs the synthetic task with faults.

The case: {"root": folder, "spec": arguments of helpers.spec, "rows": n, "pause_at": step | null, "fault": {...}}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import faults
import helpers

from mm_ldlm.distributed import failure
from mm_ldlm.distributed.logs import append_output
from mm_ldlm.distributed.process import die_with_parent
from mm_ldlm.training.worker import train


def main(path: str) -> None:
    case = json.loads(Path(path).read_text())
    fault = case.get("fault") or {}
    die_with_parent()
    append_output()
    try:
        train(
            helpers.spec(**case.get("spec", {})),
            root=Path(case["root"]),
            data=helpers.data(case.get("rows", 64), poisoned=tuple(case.get("poisoned", ()))),
            pause_at=case.get("pause_at"),
            wrap_objective=(lambda inner: faults.Faulty(inner, **fault)) if fault else None,
        )
    except BaseException as error:
        failure.record(error)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
