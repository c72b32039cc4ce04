"""Locks of the data folders: one run at a time writes to a part of them, and none while another run reads it.

The parts are the three starts of the paths in the catalog: data (ingestion), features (embedding), and results (all
other pipelines). A run locks the parts that it writes to, and shares the locks of the parts before them, so that models
can be trained at the same time on the same data. The sessions of a comparison have separate results. Reading outside
`kedro run` (kedro-viz, notebooks, `MMLDLM.from_run`) takes no lock.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from kedro.pipeline import Pipeline

from mm_ldlm.core import ConfigurationError, locks

FOLDERS = {"data": "records", "features": "latents", "results": "dataset"}
"""Part, in the order of a run → a catalog entry in one of its layers"""
WRITERS = {"ingestion": "data", "embedding": "features"}
"""Pipeline → the part that it writes to; all others write to the results."""


def lock_folders(held: ExitStack, pipeline: Pipeline, folders: Mapping[str, Path]) -> None:
    """Lock the parts that the nodes of a run write to or may read, in these folders, until `held` is closed.

    Raises:
        ConfigurationError: another run holds one of them; the message names it.
    """
    written = {
        next((part for name, part in WRITERS.items() if name in node.tags), "results") for node in pipeline.nodes
    }
    writes = [part for part in FOLDERS if part in written]
    reads = pipeline.datasets().intersection(FOLDERS.values())  # none by a comparison, of which the sessions read
    used = list(FOLDERS)[: list(FOLDERS).index(writes[-1]) + 1] if writes and reads else writes
    for part in used:
        path = folders[part] / f".{part}.lock"
        use: locks.Use = "write" if part in writes else "read"
        if (file := locks.take(path, use)) is None:
            mine, theirs = ("writes", "uses") if use == "write" else ("uses", "writes")
            raise ConfigurationError(
                f"expected no other run that {theirs} the {part} in {path.parent} while this one {mine} them, found "
                f"{locks.holder(path)}. Wait for it, stop it, or choose another folder: "
                f"`--params {'results' if part == 'results' else 'data'}=FOLDER`."
            )
        held.enter_context(file)
