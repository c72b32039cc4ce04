"""The files of the older folder layout, in a directory or a .zip, and the rows that its lists or its names describe."""

import os
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from mm_ldlm.core import SourceError, UnsafePathError
from mm_ldlm.core.files import InputFile, check_name
from mm_ldlm.data.corpus.quarantine import Unusable
from mm_ldlm.data.corpus.sources.base import SPLIT_WORDS, describe_files, read_named
from mm_ldlm.data.corpus.sources.jsonl import parse_json
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

LISTS: dict[str, str] = {split: f"{split}_data.json" for split in SPLITS}
Item = dict[str, Any]
"""One row, as in a list: `id`, `text` or `text_path`, `latent_path`, `meta`; each may be missing"""


class Folder:
    """The files of a layout; close it after use."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, zipfile.ZipInfo] = {}
        if os.path.isdir(path):
            return
        file = InputFile(path, remedy="Give a folder or a .zip of the folder layout.", error=SourceError)
        with file.parsing("a folder or a .zip", zipfile.BadZipFile, NotImplementedError, ValueError):
            self._zip = zipfile.ZipFile(file.check())
        for member in self._zip.infolist():
            member.filename = _plain(member.filename)
            name = check_name(path, member.filename).as_posix()
            if name in self._members and not member.is_dir():
                file.refuse("members with unique names", f"two with the name {name}")
            self._members[name] = member

    def close(self) -> None:
        """Close an archive."""
        if self._zip is not None:
            self._zip.close()

    def read(self, name: str | None, *, max_bytes: int | None = None) -> bytes:
        """Read a file of the layout.

        Raises:
            Unusable: the file is missing, damaged or larger, or its name leads out of the folder.
        """
        if name is None:
            raise Unusable("missing_column", "the list names no file")
        most = -1 if max_bytes is None else max_bytes + 1
        raw = read_named(self.path, name, most)[1] if self._zip is None else self._member(self._zip, name, most)
        if max_bytes is not None and len(raw) > max_bytes:
            raise Unusable("oversized", f"{name!r:.200} has more than {max_bytes} bytes", raw)
        return raw

    def _member(self, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
        try:
            check_name(self.path, name)
            with archive.open(self._members[name]) as opened:
                return opened.read(most)
        except KeyError:
            raise Unusable("missing_file", f"{name!r:.200} does not exist") from None
        except UnsafePathError:
            raise Unusable("unsafe_path", f"{name!a:.200} is not the name of a file inside the folder") from None
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
            raise Unusable("unreadable_file", f"{name!r:.200}: {error}") from None

    def names(self, below: str) -> list[str]:
        """List everything below a folder, such as "texts", that is not a folder, sorted."""
        if self._zip is not None:
            return sorted(n for n, each in self._members.items() if n.startswith(f"{below}/") and not each.is_dir())
        found = (self.path / below).rglob("*")
        return sorted(path.relative_to(self.path).as_posix() for path in found if not path.is_dir())

    def items(self) -> list[tuple[str, Item]]:
        """List (split, row) in order, held-out splits first.

        Raises:
            SourceError: a list is not a JSON list of objects, or there is neither a list nor a text.
        """
        named = [(split, LISTS[split]) for split in reversed(SPLITS)]
        lists = [(split, self._list(name)) for split, name in named if self._exists(name)]
        if lists:
            return [(split, item) for split, items in lists for item in items]
        found = [
            (SPLIT_WORDS[folder], {"text_path": name})
            for name in self.names("texts")
            if (folder := name.split("/")[1]) in SPLIT_WORDS and name.endswith(".txt")
        ]
        if not found:
            raise SourceError(
                f"{self.path}: expected {', '.join(LISTS.values())}, texts/<split>/*.txt, "
                "found none of them. Check that the path points to a folder layout."
            )
        return found

    def _exists(self, name: str) -> bool:
        return name in self._members if self._zip is not None else os.path.lexists(self.path / name)

    def _list(self, name: str) -> list[Item]:
        try:
            found = parse_json(self.read(name))
        except Unusable as error:
            raise SourceError(f"{self.path}/{name}: cannot be read ({error.detail}). Write the list again.") from None
        found = found.get("data", found) if isinstance(found, dict) else found
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise SourceError(
                f"{self.path}/{name}: expected a JSON list of objects, found {type(found).__name__}. Write it again."
            )
        return [item | {key: _plain(item[key]) for key in item if key.endswith("_path")} for item in found]

    def describe(self, parts: list[str]) -> str:
        """Return a digest of the archive, or of the lists, the texts and the files of `parts` ("latents").

        A list may name texts outside of texts/; other files do not count. The files of `parts` are described by size
        and time of modification, because they are large together.
        """
        if self._zip is not None:
            return file_sha256(self.path)
        lists = {name: file_sha256(self.path / name) for name in LISTS.values() if os.path.isfile(self.path / name)}
        named = {PurePosixPath(str(item.get("text_path"))).as_posix() for _, item in self.items()}
        texts = [name for name in self.names(".") if name.startswith("texts/") or name in named]
        regular = describe_files(path for name in texts if (path := self.path / name).is_file())
        found = [(name, (self.path / name).lstat()) for part in parts for name in self.names(part)]
        return fingerprint([lists, texts, regular, [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]])


def _plain(name: Any) -> Any:
    """Return the name of a file with slashes, also where Windows wrote it; anything else unchanged."""
    return name.replace("\\", "/") if isinstance(name, str) else name


def paths_of(split: str, number: int) -> dict[str, str]:
    """Return text_path, token_path and latent_path of row `number` of a split."""
    stem = f"{split}/{number:08d}"
    return {"text_path": f"texts/{stem}.txt", "token_path": f"tokens/{stem}.npz", "latent_path": f"latents/{stem}.npy"}


def latents_of(item: Item) -> str | None:
    """Return the path of the latent of a row: from the list, or else the one with the name of the row's text."""
    if item.get("latent_path") is not None:
        return str(item["latent_path"])
    folder, _, name = (item.get("text_path") or "").partition("/")
    return f"latents/{PurePosixPath(name).with_suffix('.npy')}" if folder == "texts" and name else None
