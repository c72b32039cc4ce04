"""Sources of a finished record store: a store of other sources is replaced only where that is asked for.

The names of the sources are in a file beside the manifest and not in it, because the digest of the manifest is part of
the fingerprints of everything that was made from the records.
"""

from __future__ import annotations

from pathlib import Path

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.core.messages import show
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.store import Manifest

NAME = "sources.json"


def describe(config: IngestionConfig) -> list[str]:
    """Describe each source by its name, its kind and where it is read; numbers of rows are no other source."""
    return [
        f"{source.label} ({source.kind}"
        + (f": {', '.join(source.paths) or source.dataset}" if source.paths or source.dataset else "")
        + ")"
        for source in config.with_path_in_source().sources
    ]


def write(config: IngestionConfig, workspace: Path) -> None:
    """Store the sources that `workspace` is filled from."""
    workspace.mkdir(parents=True, exist_ok=True)
    write_json(workspace / NAME, {"sources": describe(config)})


def refuse_other_sources(config: IngestionConfig, workspace: Path, *, fingerprint: str) -> None:
    """Refuse to replace the finished store in `workspace` if it has other sources, unless `config.replace` is set.

    Args:
        fingerprint: digest of the sources and their files; a store of an earlier version has only that.

    Raises:
        ConfigurationError: the store has other sources; the message names both and what to do.
    """
    if config.replace or not Manifest.exists(workspace):
        return
    kept = (recorded(workspace / NAME) or {}).get("sources")  # None: a store of an earlier version
    wanted = describe(config)
    same = kept == wanted if kept is not None else Manifest.read(workspace).fingerprints.get("sources") == fingerprint
    if not same:
        found = show(kept) if kept else "sources that it does not name"
        raise ConfigurationError(
            f"parameter 'ingestion.sources': {workspace} holds {Manifest.read(workspace).rows:,} finished records of "
            f"{found}, and this run reads {show(wanted)}. Choose another folder (`--params data=FOLDER`, or 'data' "
            "in the environment's globals.yml), or replace the records by `--params ingestion.replace=true`."
        )
