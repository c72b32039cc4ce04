"""`.npy` files from outside: every damaged one is refused before memory is allocated for it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.data.store.npy import read_npy


def file_of(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def with_header(header: str, data: bytes = b"\0" * 64, *, version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + data


ABSURD = [
    *(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}" for shape in (
        "(10**15,)", "(1000000000000000, 384)", "(-1,)", "(-4, -4)", "(2**63, 2)", "(0, -1)", "(True, 16)", "'x'",
        "(1.5,)", "(9223372036854775807, 9223372036854775807)", "(4, 4, 4, 4)", "()", "(" * 900 + ")" * 900,
    )),
    "{'descr': '|O', 'fortran_order': False, 'shape': (16,)}",
    "{'descr': '<f4096', 'fortran_order': False, 'shape': (1,)}",
    "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '<f4', 'shape': (16,)}", "{}", "[]", "1", "", "__import__('os')", "{" * 500, "-" * 5000 + "1",
]  # fmt: skip


@pytest.mark.parametrize("version", [1, 2, 3, 9])
def test_absurd_headers_are_refused(version: int, tmp_path: Path) -> None:
    for header in ABSURD:
        data = with_header(header, version=version)
        (tmp_path / "x.npy").write_bytes(data)
        for source in (data, tmp_path / "x.npy"):
            with pytest.raises(ValueError, match=r".") as raised:
                read_npy(source)
            assert type(raised.value) is ValueError, header


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(0, 5), max_size=3), place=st.integers(0, 300), value=st.integers(0, 255),
    cut=st.integers(0, 300),
)  # fmt: skip
def test_a_changed_or_cut_file_is_refused_or_read_in_its_size(
    shape: list[int], place: int, value: int, cut: int
) -> None:
    whole = bytearray(file_of(np.ones(shape, np.float32)))
    whole[place % len(whole)] = value
    for data in (bytes(whole), bytes(whole[: cut % len(whole)])):
        try:
            found = read_npy(data)
        except ValueError:
            continue
        assert found.nbytes <= len(data)


def test_what_numpy_saves_is_read(tmp_path: Path) -> None:
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.zeros((0, 4), np.float16),
        np.array(3),
        np.asfortranarray(np.eye(3)),
    ):
        np.testing.assert_array_equal(read_npy(file_of(array)), array)
    with pytest.raises(ValueError, match="pickled objects, which are never loaded"):
        read_npy(file_of(np.array([{}], dtype=object)))
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    with pytest.raises(ValueError, match="magic string"):
        read_npy(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        read_npy(tmp_path / "none.npy")
