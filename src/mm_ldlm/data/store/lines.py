"""Lines of a text file, divided everywhere in the same way."""

from __future__ import annotations


def lines_of(raw: bytes) -> list[str]:
    """Decode the lines of a UTF-8 file. Line breaks are LF or CR LF, as in the sources; a byte order mark is dropped.

    `str.splitlines` also divides at form feeds, U+0085 and U+2028, which occur inside texts and in vocabularies: every
    later line would then get the vector, or the id, of another one.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    text = raw.decode("utf-8").removeprefix("\ufeff").removesuffix("\n")
    return [line.removesuffix("\r") for line in text.split("\n")] if text else []
