"""A pipe in the place of a file is refused: reading it would wait for a writer that never comes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mm_ldlm.inference.inputs import read_npy, read_texts

from mm_ldlm import cli
from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.data.corpus import pretrained
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.store import verified
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.evaluation.config import TextFile
from mm_ldlm.evaluation.sts_sets import read_semeval, read_sick, read_stsb
from mm_ldlm.evaluation.suites.likelihood import read_lines
from mm_ldlm.extras.comparison.sessions import finished_before
from mm_ldlm.extras.foreign_checkpoints.importing import read_yaml
from mm_ldlm.training.checkpoints import folder

PATIENCE = 5
"""Seconds after which somebody writes into the pipe, so that a test of a reader that waits fails."""


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Make a pipe; another process opens it in the end, because libraries wait where no signal reaches Python."""
    writers = []

    def make(name: str) -> None:
        os.mkfifo(tmp_path / name)
        command = ["sh", "-c", f'sleep {PATIENCE}; exec 3<>"$1"', "sh", str(tmp_path / name)]
        writers.append(subprocess.Popen(command))

    yield make
    for writer in writers:
        writer.kill()
        writer.wait()


def read_pairs_of_2012(where: Path) -> Any:
    (where / "STS.gs.a.txt").write_text("1\n")
    return read_semeval(where, name="x")


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "tokenizer of the data": ("tokenizer.json", TextTokenizer.load),
    "own tokenizer": ("own.json", lambda where: pretrained.from_path(where / "own.json", lowercase=True)),
    "own vocabulary": ("vocab.txt", lambda where: pretrained.from_path(where / "vocab.txt", lowercase=True)),
    "pointer of a run": ("best", lambda where: folder.pointer(where, "best")),
    "texts of a request": ("a.txt", lambda where: read_texts(where / "a.txt")),
    "vectors of a request": ("a.npy", lambda where: read_npy(where / "a.npy", dim=3)),
    "names of tensors": ("names.yml", lambda where: read_yaml(where / "names.yml")),
    "options of a command": ("run.yml", lambda where: cli._options_in(where / "run.yml")),
    "other texts of the likelihood": ("o.gz", lambda where: read_lines(TextFile(name="m", path=str(where / "o.gz")))),
    "STS-B": ("a.tsv", lambda where: read_stsb(where / "a.tsv")),
    "SICK": ("SICK.txt", lambda where: read_sick(where / "SICK.txt")),
    "SemEval": ("STS.input.a.txt", read_pairs_of_2012),
    "session of a comparison": ("session.json", lambda where: finished_before(SimpleNamespace(folder=where))),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_by_its_name(name: str, tmp_path: Path, pipe: Callable[[str], None]) -> None:
    file, read = READERS[name]
    pipe(file)
    with pytest.raises(MMLDLMError, match=f"{file}.* is a named pipe"):
        read(tmp_path)


def test_a_pipe_as_the_record_of_digests_is_no_record(tmp_path: Path, pipe: Callable[[str], None]) -> None:
    pipe(verified.RECORD)
    began = time.monotonic()
    assert verified._lines(tmp_path) == set()
    assert time.monotonic() - began < PATIENCE


def test_no_line_is_written_to_a_pipe_in_the_place_of_the_record(tmp_path: Path, pipe: Callable[[str], None]) -> None:
    """Opening it for writing would wait for somebody who reads it."""
    pipe(verified.RECORD)
    (tmp_path / "a").write_bytes(b"1")
    began = time.monotonic()
    verified.verify_file(tmp_path, "a", sha256=file_sha256(tmp_path / "a"), remedy="")
    assert time.monotonic() - began < PATIENCE
