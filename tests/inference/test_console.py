"""`mm-ldlm invert` and `mm-ldlm embed`, and several texts for one latent."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from mm_ldlm import MMLDLM, __main__
from mm_ldlm.app import console
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.extras.foreign_checkpoints.converting import Names
from mm_ldlm.extras.foreign_checkpoints.importing import Given
from mm_ldlm.inference.results import Texts

WARM = {"kind": "confidence", "steps": 4, "temperature": 1.0}


def call(*words: Any) -> Any:
    return CliRunner().invoke(console.commands, [str(word) for word in words])


def test_invert_prints_a_text_for_each_latent(
    run_folder: Path, unit_latents: Callable[[int], Any], tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", unit_latents(3))
    texts = MMLDLM.from_run(run_folder).invert(tmp_path / "a.npy").texts
    result = call("invert", tmp_path / "a.npy", "--run", run_folder)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == list(texts)
    several = ("--samples", 3, "--temperature", 1.0, "--table")
    table = call("invert", tmp_path / "a.npy", "--run", run_folder.parent, "--keep", "all", *several)
    assert table.stderr.startswith(f"run {run_folder}, the newest in {run_folder.parent}; --run")
    assert "newest" not in result.stderr, "the run was named"
    header, *lines = [line.split("\t") for line in table.stdout.splitlines()]
    assert tuple(header) == console.COLUMNS
    assert [(line[0], line[1]) for line in lines] == [(str(i), str(k)) for i in range(3) for k in range(3)]
    best = call("invert", tmp_path / "a.npy", "--run", run_folder, *several).stdout.splitlines()[1:]
    nearest = [max(lines[3 * i : 3 * i + 3], key=lambda line: float(line[3])) for i in range(3)]
    assert [line.split("\t") for line in best] == nearest


def test_embed_writes_the_latents_of_texts(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("w1 w2\n\nw3\n")
    result = call(
        "embed", tmp_path / "a.txt", tmp_path / "b" / "a.npy", "--run", run_folder, "--draws", 2, "--steps", 3,
        "--seed", 5,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    expected = MMLDLM.from_run(run_folder).embed(["w1 w2", "w3"], draws=2, steps=3, seed=5).latents
    np.testing.assert_array_equal(np.load(tmp_path / "b" / "a.npy"), expected)
    assert call("invert", tmp_path / "b" / "a.npy", "--run", run_folder).exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["invert", "none.npy"], "'none.npy' does not exist. Give a .npy file of vectors."),
        (["invert", "a.txt"], "is not a .npy file"),
        (["invert", "a.npy", "--samples", "0"], "samples"),
        (["invert", "a.npy", "--keep", "bets"], "Did you mean 'best'?"),
        (["invert", "a.npy", "--temperature", "-1"], "temperature"),
        (["invert", "a.npy", "--run", "nowhere"], "no such run folder"),
        (["embed", "none.txt", "a.npy"], "'none.txt' does not exist. Give a UTF-8 file with one text per line."),
        (["embed", "a.txt", "a.txt/b.npy"], "a.txt/b.npy"),
    ],
)
def test_bad_input_is_one_message(
    words: list[str], message: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.ones((2, 6), dtype=np.float32))
    Path("a.txt").write_text("w1\n")
    result = call(*words, *([] if "--run" in words else ["--run", run_folder]))
    assert result.exit_code == 1
    assert message in result.output
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) <= 3


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("a.txt", "'a.txt' exists and is no .npy file, so it would be lost"),
        ("./b/../a.txt", "so it would be lost"),
        ("link", "so it would be lost"),
        ("b", "expected a file, found that it is a folder"),
        ("a.txt/x.npy", "'a.txt/x.npy' cannot be written (File exists). Choose another file"),
        ("x" * 300, "cannot be written (File name too long). Choose another file"),
        (
            "new/vec.txt",
            "'new/vec.txt': expected an output whose name ends in .npy, the format that is written. Give "
            "'new/vec.npy'.",
        ),
        ("old.txt", "'old.txt': expected an output whose name ends in .npy"),
    ],
)
def test_a_file_that_is_no_earlier_output_is_never_replaced(
    output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before the run is loaded: `mm-ldlm embed texts.txt texts.txt` lost the texts."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("w1\n")
    Path("b").mkdir()
    Path("link").symlink_to("a.txt")
    with open("old.txt", "wb") as file:
        np.save(file, np.ones(2))
    result = call("embed", "a.txt", output, "--run", "no run")
    assert (result.exit_code, Path("a.txt").read_text()) == (1, "w1\n")
    assert message in result.output
    assert not Path("new").exists()


@pytest.mark.parametrize("suffix", [".csv", ".TSV", ".json", ".jsonl", ".parquet"])
def test_a_table_is_no_file_of_texts_and_its_column_can_be_extracted(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mm-ldlm embed reviews.csv o.npy` embedded the header and the raw lines."""
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"id": [1, 2, 3], "review": ["w1, w2", None, "w3\n w4"]})
    write = {
        ".csv": frame.to_csv,
        ".TSV": lambda file: frame.to_csv(file, sep="\t"),
        ".json": frame.to_json,
        ".jsonl": lambda file: frame.to_json(file, lines=True, orient="records"),
        ".parquet": frame.to_parquet,
    }
    write[suffix](f"reviews{suffix}")
    result = call("embed", f"reviews{suffix}", "o.npy", "--run", "no run")
    assert result.exit_code == 1
    start = f"Error: 'reviews{suffix}': expected one text per line, found a {suffix} file, whose lines are no texts."
    assert result.output.startswith(start)
    command = result.output.split("`")[1].replace("FILE", f"reviews{suffix}").replace("COLUMN", "review")
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    assert Path("texts.txt").read_text() == "w1, w2\nw3 w4\n"


def test_an_output_that_cannot_be_written_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mm_ldlm.inference.MMLDLM", Asked())
    monkeypatch.setattr(console.click, "echo", full)
    with pytest.raises(click.ClickException) as caught:
        console.commands.main(["invert", "l.npy", "--run", "R"], standalone_mode=False)
    assert caught.value.message == "the output cannot be written (No space left on device). Write it elsewhere."


def test_a_command_that_does_not_exist_is_no_run(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["mm-ldlm", "invrt", "a.npy"])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert end.value.code == 2
    assert "'invrt' is not a command. Did you mean 'invert'?" in capsys.readouterr().err


# -- several texts for one latent --------------------------------------------------------------------------------------


def test_the_first_of_several_texts_is_that_of_a_request_for_one(
    run_folder: Path, bag_encoder: Any, unit_latents: Callable[[int], Any]
) -> None:
    model, targets = MMLDLM.from_run(run_folder, encoder=bag_encoder), unit_latents(4)
    one = model.invert(targets, sampler=WARM, seed=2)
    all_of = {n: model.invert(targets, sampler=WARM, seed=2, samples=n, keep="all", reembed=True) for n in (2, 5)}
    for n, made in all_of.items():
        assert made.rows.tolist() == np.repeat(np.arange(4), n).tolist()
        assert made.samples.tolist() == list(range(n)) * 4
        assert made.texts[::n] == one.texts
        assert [made.texts[n * i + 1] for i in range(4)] == [all_of[2].texts[2 * i + 1] for i in range(4)]
        best = model.invert(targets, sampler=WARM, seed=2, samples=n, reembed=True)
        np.testing.assert_array_equal(best.cosines, made.cosines.reshape(4, n).max(axis=1))
        assert best.texts == made.take(np.flatnonzero(made.best)).texts
        np.testing.assert_array_equal(best.latents, targets)
        assert (best.encoder_calls == n).all()
    assert isinstance(made.take(np.array([1, 0])), Texts)
    assert len(set(all_of[5].texts)) > 8


def test_equal_texts_are_named(
    run_folder: Path, unit_latents: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = MMLDLM.from_run(run_folder)
    model.invert(unit_latents(2), samples=3)
    assert "the 3 texts of each latent are equal" in caplog.messages[-1]
    caplog.clear()
    model.invert(unit_latents(2), samples=3, sampler=WARM)
    assert caplog.messages == []


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"samples": 1001}, {"samples": 1.5}, {"keep": "bets"}, {"keep": None}]
)
def test_a_wrong_number_is_refused(wrong: dict[str, Any], run_folder: Path, unit_latents: Callable[[int], Any]) -> None:
    with pytest.raises(SamplingError, match=next(iter(wrong))):
        MMLDLM.from_run(run_folder).invert(unit_latents(2), **wrong)


class Asked:
    """A run that notes how it was loaded and what it was asked for."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.model = SimpleNamespace(default_sampler=self.sampler)

    def from_run(self, run: str, **given: Any) -> Asked:
        self.seen.update(run=run, **given)
        return self

    def sampler(self, *, conditional: bool) -> Any:
        return SimpleNamespace(override=lambda **changes: ("sampler", conditional, changes))

    def invert(self, file: Path, **given: Any) -> Any:
        self.seen.update(file=file, **given)
        return Texts(
            ("a  b\tc", "d"), ((1,), (2,)), np.array([-1.25, -2.5]), np.array([4, 4]), np.array([0, 0]), (None, None),
            cosines=np.array([0.5, 0.25]), rows=np.array([0, 0]), samples=np.array([0, 3]),
        )  # fmt: skip

    def embed(self, texts: Any, **given: Any) -> Any:
        self.seen.update(texts=list(texts), **given)
        return Latents(len(texts))


class Latents(list[int]):
    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self.latents = np.ones((count, 7))


OPTIONS = ("--run", "R", "--checkpoint", "best", "--device", "cpu", "--seed", 11, "--steps", 9)
LOADED = {"run": "R", "checkpoint": "best", "device": "cpu", "steps": 9, "seed": 11}


def test_every_option_reaches_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.inference.MMLDLM", asked := Asked())
    result = call("invert", "l.npy", *OPTIONS, "--samples", 3, "--keep", "all", "--temperature", 0.7, "--cosine",
                  "--table")  # fmt: skip
    assert asked.seen == {
        **LOADED, "file": Path("l.npy"), "samples": 3, "keep": "all", "reembed": True,
        "sampler": ("sampler", True, {"temperature": 0.7}),
    }  # fmt: skip
    assert [line.split("\t") for line in result.stdout.splitlines()[1:]] == [
        ["0", "0", "0.5000", "-1.250", "a b c"], ["0", "3", "0.2500", "-2.500", "d"]
    ]  # fmt: skip
    assert len(call("invert", "l.npy", "--run", "R", "--table").stdout.splitlines()) == 3
    usual = {"checkpoint": "latest", "device": None, "steps": None, "seed": 0}
    assert asked.seen == {**LOADED, **usual, "file": Path("l.npy"), "samples": 1, "keep": "best", "reembed": False,
                          "sampler": None}  # fmt: skip
    asked.seen.clear()
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    result = call("embed", tmp_path / "t.txt", tmp_path / "o.npy", *OPTIONS, "--draws", 6)
    assert asked.seen == {**LOADED, "texts": ["one", "two"], "draws": 6}
    assert "2 latents of dimension 7" in result.stderr
    assert np.load(tmp_path / "o.npy").dtype == np.float32
    call("embed", tmp_path / "t.txt", tmp_path / "o.npy", "--run", "R")
    assert asked.seen == {**LOADED, **usual, "texts": ["one", "two"], "draws": 4}


def test_every_option_of_a_checkpoint_reaches_its_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def export(*places: Path, **given: Any) -> Path:
        seen.append((places, given))
        return tmp_path

    def convert(*given: Any) -> Any:
        seen.append(given)
        return SimpleNamespace(tensors={"a": 1}, format="ddit", left_out=["b"])

    monkeypatch.setattr("mm_ldlm.extras.foreign_checkpoints.exporting.export_checkpoint", export)
    monkeypatch.setattr("mm_ldlm.extras.foreign_checkpoints.importing.import_checkpoint", convert)
    (tmp_path / "ema.safetensors").touch()
    for options, given, words in (
        ((), {"checkpoint": "latest", "use_ema": True}, f"the averaged weights of {tmp_path}"),
        (("--checkpoint", "40", "--last"), {"checkpoint": "40", "use_ema": False}, f"the last weights of {tmp_path}"),
    ):
        assert words in call("export-checkpoint", "R", "F", *options).output
        assert seen.pop() == ((Path("R"), Path("F")), given)
    (tmp_path / "n.yml").write_text("names: {a: b}")
    result = call("import-checkpoint", "S", "R", "--tokenizer", "T", "--like", "L", "--names", tmp_path / "n.yml",
                  "--heads", 3, "--max-length", 5, "--timesteps", "plain")  # fmt: skip
    said = Given(tokenizer="T", like=Path("L"), names=Names({"a": "b"}), heads=3, max_length=5, timesteps="plain")
    assert seen.pop() == (Path("S"), Path("R"), said)
    assert "R: 1 parameters of the format ddit; left out: b" in result.output
    call("import-checkpoint", "S", "R")
    assert seen.pop() == (Path("S"), Path("R"), Given())
