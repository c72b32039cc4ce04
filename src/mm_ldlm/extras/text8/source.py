"""text8: one line of lower-case letters and single spaces; the first 90 % are for training, then 5 % and 5 %."""

from collections.abc import Iterator
from pathlib import Path

from mm_ldlm.core import config
from mm_ldlm.data.corpus.quarantine import BadRow, excerpt
from mm_ldlm.data.corpus.sources import Opening, Row, SourceConfig
from mm_ldlm.data.corpus.splits import SPLITS

PIECE = 10_000
"""Most characters of a row"""
_PERCENT = (90, 95, 100)


@config
class Text8Config(SourceConfig):
    """The file `text8`, in pieces that end before a space, as rows of D3PM's splits (arXiv:2107.03006, appendix B).

    With `tokenizer.wrap: {separator: " "}` the rows become the text of the file again.

    Attributes:
        path: the unpacked file.
    """

    kind: str = "text8"
    path: str

    @property
    def meta_keys(self) -> set[str] | None:
        return set()

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        size, start, number = path.stat().st_size, 0, 0
        with path.open("rb") as file:
            for split, percent in zip(SPLITS, _PERCENT, strict=True):
                end = size * percent // 100
                while start < end:
                    file.seek(start)
                    piece = file.read(min(PIECE, end - start))
                    space = piece.rfind(b" ") if start + len(piece) < end else -1
                    piece, number = piece[: space + 1] or piece, number + 1
                    start += len(piece)
                    if piece.isascii():
                        yield Row(piece.decode(), str(path), number, split)
                    else:
                        yield BadRow(str(path), number, "encoding", "expected ASCII characters", excerpt(piece))
