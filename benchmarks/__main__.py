"""Run every benchmark and write benchmarks/results.json: name → value, unit, the peer's value, ratio.

`python -m benchmarks` runs all of them, `python -m benchmarks NAME ...` those modules; results of modules that did not
run are kept. A benchmark is a module here with `run() -> list[dict]`, each dict holding `name`, `value`, `unit`, and,
where there is a peer, `peer` (its name), `peer_value` and `ratio` (ours to the peer's, so that above 1 is better).
"""

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
FIELDS = ("value", "unit", "peer", "peer_value", "ratio")


def names() -> list[str]:
    """List the benchmark modules next to this file."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def collect(chosen: list[str], *, results: dict[str, Any]) -> dict[str, Any]:
    """Run the modules `chosen`, and return `results` with the new ones added by name."""
    merged = dict(results)
    for module in chosen:
        print(f"{module} …", flush=True)
        start = time.perf_counter()
        for row in importlib.import_module(f"benchmarks.{module}").run():
            entry = {field: row.get(field) for field in FIELDS}
            merged[row["name"]] = {**entry, **{key: row[key] for key in row if key not in (*FIELDS, "name")}}
            peer = (
                f"   {row['peer']}: {row.get('peer_value'):.6g}   ratio {row['ratio']:.3g}" if row.get("peer") else ""
            )
            print(f"  {row['name']}: {row['value']:.6g} {row['unit']}{peer}", flush=True)
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    merged["machine"] = {"cores": _cores(), "system": platform.system(), "python": platform.python_version()}
    return merged


def main() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the settings of Kedro
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; all when none is given")
    chosen = parser.parse_args().names or names()
    if unknown := sorted(set(chosen) - set(names())):
        print(f"no benchmark named {', '.join(unknown)}; there are {', '.join(names())}.", file=sys.stderr)
        return 2
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(collect(chosen, results=results), indent=2, ensure_ascii=False) + "\n")
    print(f"written: {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")
    return 0


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
