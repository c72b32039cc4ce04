"""An encoder outside the package, `kind: tests.data.latents.toy:ToyEncoderConfig`, and records for it to embed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core import EncoderError, config, to_dict
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, described_by, record_id
from mm_ldlm.data.encoders.base import Encoder, LocatedEncoder
from mm_ldlm.data.latents.config import ExtractConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore, write_store
from mm_ldlm.data.store.fingerprint import fingerprint

DIM = 5
TEXTS = [f"text {number} {'with more words ' * (number % 4)}" for number in range(23)]


@config
class ToyEncoderConfig:
    """Vectors from digests of texts.

    Attributes:
        salt: another salt is another encoder.
        wrong: texts with this word have a non-finite vector.
        large: texts with this word have a vector beyond float16.
        batch: size of a batch.
        changes: file whose existence means that the encoder is no longer the one that was located.
        about: another one is the same encoder, with about the same vectors.
    """

    kind: str = "tests.data.latents.toy:ToyEncoderConfig"
    name: str = "toy"
    salt: str = ""
    wrong: str = "no such word"
    large: str = "no such word"
    batch: int = 8
    changes: str = "/no/such/file"
    about: str = ""
    device: str | None = "cpu"
    dim: ClassVar[int] = DIM

    @property
    def batching(self) -> dict[str, int]:
        return {"batch_rows": self.batch}

    def portable(self) -> dict[str, Any]:
        return {key: value for key, value in to_dict(self).items() if key != "about"}

    def missing(self) -> str | None:
        return None

    def locate(self, *, expected: str | None = None) -> LocatedEncoder:
        mark = expected if self.about and expected else fingerprint([self.salt, self.about])
        return LocatedEncoder(name=self.name, dim=DIM, normalised=False, fingerprint=mark, about={}, dtype="float32")

    def load(self, located: LocatedEncoder, *, device: str | None = None) -> Encoder:
        return ToyEncoder(self, device)


class ToyEncoder(Encoder):
    """The loaded toy encoder; `asked` has (device, lanes, threads, threads of torch) of every run, and its texts."""

    dim = DIM
    asked: ClassVar[list[tuple[Any, list[str]]]] = []

    def __init__(self, options: ToyEncoderConfig, device: str | None = None) -> None:
        super().__init__(options.locate())
        self.options, self.device = options, device

    def run(self, prepared: Sequence[str]) -> npt.NDArray[np.float32]:
        self.asked.append(((self.device, self.lanes, self.threads, torch.get_num_threads()), [*prepared]))
        found = np.stack([digest_vector(text, self.options.salt) for text in prepared] or [np.zeros(DIM)])
        for row, text in enumerate(prepared):
            if self.options.wrong in text:
                found[row, row % DIM] = np.nan
            if self.options.large in text:
                found[row, 0] = 1e6
        return found[: len(prepared)].astype(np.float32)

    def verify(self) -> None:
        if Path(self.options.changes).exists():
            raise EncoderError("expected the encoder that was located, found another one. Restore it.")


def digest_vector(text: str, salt: str = "") -> npt.NDArray[np.float64]:
    """Return a vector (DIM,) that depends on the text only."""
    raw = hashlib.shake_256(f"{salt}{text}".encode()).digest(4 * DIM)
    return np.frombuffer(raw, "<i4") / 2.0**31


def records(
    folder: Path,
    texts: Sequence[str] = TEXTS,
    meta: Sequence[str | None] | None = None,
    *,
    splits: Sequence[str] = ("train",) * 4 + ("test",),
    shard_rows: int = 7,
) -> ShardStore:
    """Write records of these texts; `splits` repeats until every text has one."""
    count = len(texts)
    metas = list(meta or [None] * count)
    columns = {
        "id": [record_id(text, None, described_by(about)) for text, about in zip(texts, metas, strict=True)],
        "text": list(texts), "source": ["s"] * count, "split": [splits[row % len(splits)] for row in range(count)],
        "meta": metas,
    }  # fmt: skip
    write_store(folder, [columns], kind="records", schema=RECORD_SCHEMA, shard_rows=shard_rows)
    return ShardStore.open(folder, "records")


def embedded(stored: ShardStore, workspace: Path, encoder: Any = None, **options: Any) -> LatentStore:
    """Extract latents and open them."""
    settings: dict[str, Any] = {"shard_rows": 4, "processes": 1, **options}
    extract(stored, encoder=encoder or ToyEncoderConfig(), config=ExtractConfig(**settings), workspace=workspace)
    return LatentStore.open(workspace)


def content(workspace: Path) -> dict[str, bytes]:
    """Return every file of a store, hidden ones too, without the notes that a run leaves for itself."""
    notes = (".verified", "progress.json")
    files = (path for path in workspace.rglob("*") if path.is_file() and path.name not in notes)
    return {str(path.relative_to(workspace)): path.read_bytes() for path in files}
