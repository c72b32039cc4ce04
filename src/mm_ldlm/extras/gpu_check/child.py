"""One check: `python -m mm_ldlm.extras.gpu_check.child NAME DEVICE FOLDER`; it writes `FOLDER/finding.json`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from mm_ldlm.core.files import write_json
from mm_ldlm.distributed.entry import die_with_parent
from mm_ldlm.extras.gpu_check.outcome import Finding, Setting, plain
from mm_ldlm.extras.gpu_check.registry import CHECKS


def run(name: str, setting: Setting) -> Finding:
    """Run a check; an exception becomes a fault."""
    try:
        return CHECKS[name].load()(setting)
    except Exception as error:
        import traceback

        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        return Finding(faults=(f"expected numbers, found {type(error).__name__}: {first}",))


def main(name: str, device: str, folder: str) -> None:
    die_with_parent()
    found = run(name, Setting(device, Path(folder)))
    found = dataclasses.replace(found, numbers={key: plain(value) for key, value in found.numbers.items()})
    write_json(Path(folder) / "finding.json", dataclasses.asdict(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
