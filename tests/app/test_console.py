"""The command `mm-ldlm`: its help, its speed, and what its commands print and refuse."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from mm_ldlm import MMLDLM
from mm_ldlm.app import console
from mm_ldlm.app.console import COLUMNS, COMMANDS, commands, messages_only
from mm_ldlm.core import Registry, SamplingError

HEAVY = ("torch", "kedro", "mlflow", "transformers", "pandas", "pyarrow", "omegaconf")


def call(*words: str) -> Any:
    return CliRunner().invoke(commands, list(words))


def test_the_help_has_one_line_for_each_command_and_imports_nothing_heavy() -> None:
    program = f"""
import sys
sys.argv = ["mm-ldlm", "--help"]
from mm_ldlm.__main__ import main
try:
    main()
finally:
    found = [name for name in {HEAVY!r} if name in sys.modules]
    assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"  {name} " in done.stdout
    assert "--pipelines" not in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    command = COMMANDS.load(name)
    assert command.name == name
    assert len(command.get_short_help_str()) > 20
    undocumented = [each.name for each in command.params if isinstance(each, click.Option) and not each.help]
    assert not undocumented


def test_options_without_a_command_are_those_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from mm_ldlm import __main__

    seen = []
    monkeypatch.setattr(type(commands), "main", lambda self, words, **named: seen.append(words))
    for words in (["--env=test"], ["-p", "training"], ["run", "--env=test"], ["--help"], ["--version"], []):
        monkeypatch.setattr(sys, "argv", ["mm-ldlm", *words])
        __main__.main()
    assert seen == [
        ["run", "--env=test"],
        ["run", "-p", "training"],
        ["run", "--env=test"],
        ["--help"],
        ["--version"],
        [],
    ]


def test_an_unknown_command_is_refused_and_a_broken_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("invrt").exit_code == 2
    assert "0.1" in call("--version").output
    monkeypatch.setattr(console, "COMMANDS", Registry("command", {"x": "no_such_package:y"}, "commands_of_a_test"))
    broken = call("x")
    assert broken.exit_code == 1
    assert "no_such_package" in broken.output
    assert isinstance(broken.exception, SystemExit)


def test_errors_on_purpose_are_messages_and_defects_are_not() -> None:
    with pytest.raises(click.ClickException, match=r"http://\*\*\*@h"), messages_only():
        raise SamplingError("no http://user:word@h")
    with pytest.raises(KeyError), messages_only():
        raise KeyError("x")


@pytest.fixture(scope="module")
def latents(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("latents") / "latents.npy"
    vectors = np.random.default_rng(0).standard_normal((3, 384)).astype(np.float32)
    np.save(file, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return file


@pytest.fixture
def run(finished: Path) -> str:
    return str(finished / "data/test/06_models/runs")


def test_latents_become_lines_or_a_table(latents: Path, run: str) -> None:
    plain = call("invert", str(latents), "--run", run, "--device", "cpu")
    assert plain.exit_code == 0, plain.output
    lines = plain.stdout.splitlines()
    assert lines == list(MMLDLM.from_run(run, device="cpu").invert(latents).texts)
    options = ["--samples", "2", "--keep", "all", "--temperature", "1", "--table", "--seed", "1", "--steps", "2"]
    table = call("invert", str(latents), "--run", run, "--device", "cpu", *options).stdout.splitlines()
    assert table[0].split("\t") == list(COLUMNS)
    assert [row.split("\t")[:2] for row in table[1:]] == [[str(i // 2), str(i % 2)] for i in range(6)]


def test_texts_become_latents(run: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a man rides.\nthe cook sings.\n")
    done = call("embed", str(tmp_path / "texts.txt"), str(tmp_path / "out/x.npy"), "--run", run, "--draws", "1")
    assert done.exit_code == 0, done.output
    assert np.load(tmp_path / "out/x.npy").shape == (2, 384)


@pytest.mark.parametrize(
    "words",
    [
        ("invert", "missing.npy"), ("invert", "texts.txt"), ("embed", "missing.txt", "x.npy"), ("embed", "texts.txt", "x.txt"),
        ("embed", "texts.txt", "texts.txt"), ("invert", "x.npy", "--run", "nowhere"), ("embed", "texts.txt", "texts.txt/x.npy"),
        ("invert", "latents.npy", "--keep", "some"), ("invert", "latents.npy", "--samples", "0"),
        ("invert", "latents.npy", "--device", "gpu"), ("invert", "latents.npy", "--checkpoint", "first"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_message(
    words: tuple[str, ...], run: str, latents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a text\n")
    (tmp_path / "latents.npy").symlink_to(latents)
    done = call(*words, *(() if "--run" in words else ("--run", run)))
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2)
    assert "Error" in done.output
    assert (tmp_path / "texts.txt").read_text() == "a text\n"
