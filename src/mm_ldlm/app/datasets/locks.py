"""Locks of the data folders: one run at a time writes to a part of them, and none while another run reads it.

The parts are the three starts of the paths in the catalog: data (ingestion), features (embedding), and results (all
other pipelines). A run locks the parts that it writes to, and shares the lock of those that it only reads, so that
models can be trained at the same time on the same data. The sessions of a comparison have results of their own.
Reading outside `kedro run` (kedro-viz, notebooks, `MMLDLM.from_run`) takes no lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mm_ldlm.core import locks
from mm_ldlm.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

FOLDERS = {"data": "records", "features": "latents", "results": "dataset"}
"""Part → a catalog entry in one of its layers."""
WRITERS = {"ingestion": "data", "embedding": "features"}
"""Pipeline → the part that it writes to; all others write to the results."""
DATASET = "dataset"
"""Catalog entry among the results that names the stores of data and features."""


class FolderLocks:
    """The locks that this process holds for its run."""

    def __init__(self) -> None:
        self._held: dict[str, locks.Lock] = {}
        self._unsaved: dict[str, set[str]] = {}  # part below the results → outputs that are still to be saved

    def take(self, pipeline: Pipeline, folders: Mapping[str, Path]) -> None:
        """Lock the parts that the nodes of a run write to or read, in these folders.

        Raises:
            ConfigurationError: another run holds one of them; the message names it. No lock is held then.
        """
        from kedro.framework.project import pipelines

        whole = [*(pipelines["__default__"].nodes if "__default__" in pipelines else []), *pipeline.nodes]
        writes, read = {_part(node) for node in pipeline.nodes}, pipeline.inputs()
        reads = {_part(node) for node in whole if read.intersection(node.outputs)}
        if DATASET in pipeline.datasets():
            reads |= {"data", "features"}
        self._unsaved = {
            part: {name for node in pipeline.nodes if _part(node) == part for name in node.outputs}
            for part in writes - {"results"}
        }
        try:
            for part, folder in folders.items():
                if part in writes | reads:
                    self._held[part] = _locked(part, folder, "write" if part in writes else "read")
        except BaseException:
            self.release()
            raise

    def saved(self, dataset_name: str) -> None:
        """Share a part with other readers once this run has saved all that it writes there."""
        for part, unsaved in self._unsaved.items():
            if dataset_name not in unsaved:
                continue
            unsaved.remove(dataset_name)
            if not unsaved and part in self._held and not self._held[part].share():
                raise ConfigurationError(_taken(part, self._held[part].path, "read"))

    def release(self) -> None:
        """Release all locks."""
        for held in self._held.values():
            held.release()
        self._held, self._unsaved = {}, {}


def _part(node: Node) -> str:
    """Return the part of the data folders that a node writes to."""
    return next((part for name, part in WRITERS.items() if name in node.tags), "results")


def _locked(part: str, folder: Path, use: locks.Use) -> locks.Lock:
    path = folder / f".{part}.lock"
    try:
        held = locks.take(path, use)
    except OSError as error:
        raise ConfigurationError(
            f"the data folder cannot be written to ({error}). Choose another one: `--params data=FOLDER`, or 'data' in "
            "the environment's globals.yml."
        ) from None
    if held is None:
        raise ConfigurationError(_taken(part, path, use))
    return held


def _taken(part: str, path: Path, use: locks.Use) -> str:
    mine, theirs = ("writes", "uses") if use == "write" else ("uses", "writes")
    return (
        f"expected no other run that {theirs} the {part} in {path.parent} while this one {mine} them, found "
        f"{locks.holder(path)}. Wait for it, stop it, or choose another folder: "
        f"`--params {'results' if part == 'results' else 'data'}=FOLDER`."
    )
