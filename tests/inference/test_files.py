"""Files of texts, and the runs below a folder."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.inference.runs import write_run

from mm_ldlm import MMLDLM
from mm_ldlm.core import CheckpointError, SamplingError
from mm_ldlm.inference import files
from mm_ldlm.inference.exporting import export, source_of
from mm_ldlm.inference.files import DEFAULT, newest_run, read_texts, run_of


def test_a_text_is_a_line_and_a_blank_line_is_refused_by_its_number(tmp_path: Path, refuses: Any) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffw1 w2\r\n  w3\u2028w4 \n".encode())
    assert read_texts(file) == ["w1 w2", "w3\u2028w4"]
    file.write_bytes(b"")
    assert read_texts(file) == []
    (tmp_path / "table.CSV").write_text("text\nw1\n")
    for raw in (b"\xe9", b"\n", b"w1\n\n \nw2"):
        file.write_bytes(raw)
        for name in ("a.txt", "table.CSV", "none.txt", "."):
            with pytest.raises(SamplingError):
                read_texts(tmp_path / name)
    with refuses(SamplingError, "2 blank of 4 lines (2, 3)"):
        read_texts(file)


def test_the_newest_run_below_a_folder_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [
        tmp_path / "data" / each
        for each in ("06_models/runs/run-b", "06_models/runs/run-c", "own/classification/06_models/runs/run-a")
    ]
    for number, place in enumerate(places):
        write_run(place)
        for written in place.glob("checkpoints/*"):
            os.utime(written, (number, number))
    for folder, expected in (
        (tmp_path / "data", 2),
        (places[0].parent, 1),
        (places[0].parents[1], 1),
        (places[0], 0),
        (places[0] / "checkpoints/step-00000003", None),
    ):
        caplog.clear()
        assert newest_run(folder) == (folder if expected is None else places[expected])
        assert (str(places[0]) in caplog.text) is (expected in (1, 2))
        assert MMLDLM.from_run(folder, device="cpu").parts.step == 3
    assert newest_run(tmp_path / "data/own") == places[2]
    for missing in ("minilm-englsh", None, 3):
        with pytest.raises(CheckpointError, match="no such run folder"):
            newest_run(missing)
    removed, glob = places[0] / "checkpoints/step-00000001", Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, name: [*glob(path, name), removed])
    assert newest_run(tmp_path / "data") == places[2], "a training removes its old checkpoints meanwhile"


DAMAGES: dict[str, Any] = {
    "no marker": lambda path: (path / "COMPLETE").unlink(),
    "renamed": lambda path: path.rename(path.with_name("mine")),
    "removed": shutil.rmtree,
    "no pointer": lambda path: (path.with_name("latest").unlink(), (path / "COMPLETE").unlink()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_pitfall_38_the_newest_run_is_refused_if_its_checkpoint_is_not_whole(damage: str, tmp_path: Path) -> None:
    """A run that was begun earlier and written last is the newest one, and an older one never takes its place."""
    times = {"older": (5, 6), "newest": (1, 9)}
    for name, (begun, ended) in times.items():
        checkpoint = write_run(tmp_path / "runs" / name) / "checkpoints/step-00000003"
        (checkpoint.parent / "step-00000001").mkdir()
        for entry, seconds in (("step-00000001", begun), (checkpoint.name, ended), ("latest", ended)):
            os.utime(checkpoint.parent / entry, (seconds, seconds))
    assert newest_run(tmp_path / "runs").name == "newest"
    DAMAGES[damage](checkpoint)
    with pytest.raises(CheckpointError, match=r"newest.*step-00000003"):
        MMLDLM.from_run(tmp_path / "runs", device="cpu")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a model, and a working directory without data."""
    monkeypatch.setattr(files, "PRETRAINED", tmp_path / "package")
    target = tmp_path / "package" / DEFAULT
    export(source_of(write_run(tmp_path / "run"), target), target)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return target


def test_a_model_of_the_package_is_used_where_there_is_no_run(
    package: Path, caplog: pytest.LogCaptureFixture, refuses: Any
) -> None:
    assert run_of(None) == package
    Path("data/06_models/runs").mkdir(parents=True)
    assert run_of(None) == package
    assert len(caplog.records) == 2, "and a line says so"
    assert run_of(DEFAULT) == package
    own = write_run(Path("data/06_models/runs/own"))
    assert run_of(None) == own
    assert run_of(DEFAULT) == package
    assert len(caplog.records) == 2
    (own / "checkpoints/step-00000003/COMPLETE").unlink()
    assert run_of(None) == own, "a damaged run is refused when it is loaded"
    shutil.rmtree("data")
    shutil.rmtree(package)
    for name in (None, DEFAULT):
        with pytest.raises(CheckpointError, match="no such run folder"):
            run_of(name)


def test_a_name_of_the_package_means_the_same_model_everywhere_and_a_path_a_folder(
    package: Path, caplog: pytest.LogCaptureFixture, refuses: Any
) -> None:
    export(source_of(Path("../run"), Path(DEFAULT)), Path(DEFAULT))
    for name, expected in ((DEFAULT, package), (f"./{DEFAULT}", Path(DEFAULT)), (Path(DEFAULT), Path(DEFAULT))):
        caplog.clear()
        made = MMLDLM.from_pretrained(name, device="cpu", batch_tokens=9)
        assert (made.parts.checkpoint, made.batch_tokens) == (expected, 9)
        assert len(caplog.records) == (expected == package), "a folder of the same name is not ignored silently"
    assert run_of(f"./{DEFAULT}") == Path(DEFAULT)
    os.chdir(package.parent)
    caplog.clear()
    assert run_of(DEFAULT) == package
    assert not caplog.records
    with refuses(CheckpointError, "minilm-german", DEFAULT):
        MMLDLM.from_pretrained("minilm-german")
