"""The command `mm-ldlm`: its help, its speed, and the answers and refusals of its commands, which equal those of the API."""

import functools
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.inference.runs import DIM, BagEncoder, write_run

from mm_ldlm import MMLDLM
from mm_ldlm.app import console
from mm_ldlm.app.commands import COMMANDS
from mm_ldlm.app.console import commands, messages_only
from mm_ldlm.core import Registry, SamplingError
from mm_ldlm.inference.results import Texts
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS

HEAVY = ("torch", "kedro", "mlflow", "transformers", "pandas", "pyarrow", "omegaconf")


def call(*words: str) -> Any:
    return CliRunner().invoke(commands, list(words))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0), (["invert", "--help"], 0), (["score", "missing.txt"], 1), (["generate", "2", "--run", "x"], 1),
        (["generate", "2", "-o", "taken.txt"], 1), (["embed", "taken.txt", "--bogus"], 2), (["generate", "two"], 2),
    ],
)  # fmt: skip
def test_help_and_refusals_import_nothing_heavy(words: list[str], code: int, tmp_path: Path) -> None:
    program = f"""
import sys
sys.argv = ["mm-ldlm", *{words!r}]
from mm_ldlm.__main__ import main
try:
    main()
finally:
    found = [name for name in {HEAVY!r} if name in sys.modules]
    assert not found, found
"""
    (tmp_path / "taken.txt").write_text("a text\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if words == ["--help"]:
        assert all(f"  {name} " in done.stdout for name in COMMANDS)
        assert "--pipelines" not in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    command = commands.get_command(click.Context(commands), name)
    assert command.name == name
    assert len(command.get_short_help_str()) > 20
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert not [each.name for each in options if not (each.help or "").endswith((".", ")"))], "complete sentences"
    shown = command.get_help(click.Context(command, info_name=name))
    assert not re.findall(r"\b(None|True|False)\b", shown)  # words of Python
    for option in options:
        named = {"sampler": LATENT_SAMPLERS if name == "embed" else TEXT_SAMPLERS, "latent_sampler": LATENT_SAMPLERS}
        choices = named.get(str(option.name), getattr(option.type, "choices", []))
        assert all(choice in shown for choice in choices)
        assert not (isinstance(option.type, click.Choice) and option.name in named), "which may be of another package"
        assert option.name not in {"keep", "order", "which", "path", "too_long"} or len(choices) > 1


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


@pytest.mark.parametrize(
    ("words", "word"),
    [("in", "invert"), ("invert --sam", "--samples"), ("invert te", "te"), ("run --pipel", "--pipelines")],
)
def test_the_shell_completes_commands_options_and_files(words: str, word: str) -> None:
    line = f"mm-ldlm {words}"
    asked = {"_MM_LDLM_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    program = "from mm_ldlm.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert word in [each.partition(",")[2] for each in done.stdout.splitlines()]
    assert not done.stderr  # it would appear in the line that is typed


def test_the_encoder_of_an_option_is_loaded_on_the_device_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mm_ldlm.data.encoders.load_encoder", lambda config, *, device: (config.name, config.batch_rows, device)
    )
    found = [console.encoder_of(value, device="cuda:1") for value in ("e5", "{kind: local, name: e5, batch_rows: 2}")]
    assert found == [("e5", 64, "cuda:1"), ("e5", 2, "cuda:1")]


@pytest.mark.parametrize("package", ["no_such_package", "broken_of_a_test.module", "odd_of_a_test"])
def test_an_unknown_command_is_refused_and_a_broken_one_too(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("invrt").exit_code == 2
    (tmp_path / "broken_of_a_test").mkdir()
    (tmp_path / "broken_of_a_test/__init__.py").write_text("raise RuntimeError")
    (tmp_path / "odd_of_a_test.py").write_text("import math\ndef y(model, *, x: float = math.inf): ...")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(console, "COMMANDS", Registry("command", {"x": f"{package}:y"}, "commands_of_a_test"))
    broken = call("x")
    assert broken.exit_code == 1
    assert package in broken.output
    assert isinstance(broken.exception, SystemExit)


def test_errors_on_purpose_are_messages_and_defects_are_not() -> None:
    with pytest.raises(click.ClickException, match=r"http://\*\*\*@h"), messages_only():
        raise SamplingError("no http://user:word@h")
    with pytest.raises(KeyError), messages_only():
        raise KeyError("x")


# --- requests ---------------------------------------------------------------------------------------------------------

TEXTS, MASKED = ["w1 w2", "w3 w7", "w4 w5 w6"], ["w1 [MASK]", "[MASK] w3", "w4 [MASK] w6"]
CASES: dict[str, tuple[list[str], Callable[[MMLDLM, Any], Any]]] = {
    "invert": (["latents.npy", "--steps", "2"], lambda model, z: model.invert(z, steps=2)),
    "invert texts": (["texts.txt", "--search", "--steps", "2"], lambda model, z: model.invert(TEXTS, search=True, steps=2)),
    "invert several": (
        ["latents.npy", "--samples", "2", "--keep", "all", "--temperature", "1", "--length", "4", "--seed", "1"],
        lambda model, z: model.invert(z, samples=2, keep="all", temperature=1.0, length=4, seed=1),
    ),
    "generate": (["3", "--steps", "2"], lambda model, z: model.generate(3, steps=2)),
    "embed": (
        ["texts.txt", "--draws", "2", "--steps", "2"], lambda model, z: model.embed(TEXTS, draws=2, steps=2),
    ),
    "encode": (["texts.txt"], lambda model, z: model.encode(TEXTS)),
    "score": (
        ["texts.txt", "--latents", "latents.npy", "--draws", "2"],
        lambda model, z: model.score(TEXTS, latents=z, draws=2),
    ),
    "neighbours": (["latents.npy", "latents.npy", "--k", "2"], lambda model, z: model.neighbours(z, z, k=2)),
    "infill": (["masked.txt", "--steps", "2"], lambda model, z: model.infill(MASKED, steps=2)),
    "edit": (
        ["texts.txt", "--targets", "latents.npy", "--steps", "2"],
        lambda model, z: model.edit(TEXTS, targets=z, steps=2),
    ),
    "interpolate": (["latents.npy", "latents.npy"], lambda model, z: model.interpolate(z, z)),
}  # fmt: skip
"""The words of a command, and the same request in Python"""
EVERY_FORMAT = ("invert several", "embed", "score", "neighbours")
"""A command for each class of results"""
READ: dict[str, Callable[[str], pd.DataFrame]] = {
    "csv": pd.read_csv, "tsv": functools.partial(pd.read_csv, sep="\t"),
    "jsonl": functools.partial(pd.read_json, lines=True), "parquet": pd.read_parquet,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, three texts and three latents."""
    monkeypatch.chdir(tmp_path)
    load = MMLDLM.from_run
    monkeypatch.setattr(
        MMLDLM, "from_run", lambda run, encoder=None, **named: load(run, encoder=encoder or BagEncoder(), **named)
    )
    write_run(tmp_path / "run")
    Path("texts.txt").write_text("\n".join(TEXTS))
    Path("masked.txt").write_text("\r\n".join([*MASKED, ""]))
    np.save("latents.npy", np.eye(3, DIM, dtype=np.float32))
    return tmp_path


def ask(name: str, *words: str, raw: bytes = b"") -> Any:
    return CliRunner().invoke(commands, [name.split()[0], *words, "--run", "run", "--device", "cpu"], input=raw)


@pytest.mark.parametrize("name", CASES)
def test_a_command_answers_as_the_api_from_a_file_or_standard_input_in_every_format(name: str, folder: Path) -> None:
    words, request = CASES[name]
    made = request(MMLDLM.from_run("run", device="cpu"), np.load("latents.npy"))
    answers = getattr(made, made.main) if hasattr(made, "main") else made
    plain = ask(name, *words)
    assert plain.exit_code == 0, plain.output
    if name in ("embed", "encode"):
        assert np.array_equal(np.load(io.BytesIO(plain.stdout_bytes)), answers)
    elif isinstance(answers, tuple):
        assert plain.stdout.splitlines() == list(answers)
    assert len(answers) == {"invert several": 6, "interpolate": 15}.get(name, 3)
    if "." in words[0]:
        assert ask(name, "-", *words[1:], raw=Path(words[0]).read_bytes()).stdout_bytes == plain.stdout_bytes
    forms = ("txt", *READ) if name in EVERY_FORMAT else ("csv",)
    for form in forms:
        done = ask(name, *words, "--output", f"out.{form}")
        assert (done.exit_code, done.stdout) == (0, ""), done.output
        content = Path(f"out.{form}").read_bytes()
        if form != "parquet":  # whose bytes name the library
            assert ask(name, *words, "--format", form).stdout_bytes == content
    tables = [READ[form](f"out.{form}") for form in forms if form in READ]
    assert len({(*table.columns, len(table)) for table in tables}) == 1
    if isinstance(made, Texts):
        assert ask(name, *words, "--trace", "trace.html").stdout_bytes == plain.stdout_bytes
        assert Path("trace.html").read_text().count("<h3>") == len(made)
    assert ask(name, *words, "-o", "out.csv", "--overwrite", "--format", "jsonl").exit_code == 0
    assert Path("out.csv").read_text().startswith("{")
    assert ask(name, *words, "-o", "OUT.CSV").exit_code == 0
    refused = [["-o", "out.doc"], ["--checkpoint", "7"], *([] if name in ("embed", "encode") else [["-o", "out.npy"]])]
    assert {ask(name, *words, *more).exit_code for more in refused} == {1}


@pytest.mark.parametrize("option", ["--output", "--trace"])
def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    option: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MMLDLM, "from_run", lambda *given, **named: pytest.fail("a model was loaded"))
    Path("folder.html").mkdir()
    for file in ("", "folder.html", "none/page.html", "texts.txt/page.html", "/proc/page.html"):
        for words in ([], ["--overwrite"]):
            done = ask("invert", "latents.npy", option, file, "--format", "csv", *words)
            assert (done.exit_code, done.stdout) == (1, ""), (file, done.output)
            assert "expected" in done.output
    Path("page.html").touch()
    assert "--overwrite" in ask("invert", "latents.npy", option, "page.html", "--format", "csv").output
    assert ask("invert", "latents.npy", "--trace", "page.htm").exit_code == 1
    assert not Path("none").exists()


@pytest.mark.parametrize("name", [name for name in CASES if name != "generate"])
def test_no_input_has_no_answers_and_a_wrong_one_is_refused(name: str, folder: Path) -> None:
    words, _ = CASES[name]
    Path("empty.txt").touch()
    np.save("empty.npy", np.zeros((0, DIM), np.float32))
    places = [place for place, word in enumerate(words) if Path(word).is_file()]
    for file in ("missing.txt", "out.csv", "latin.txt", "blank.txt", "cut.npy"):
        Path("latin.txt").write_bytes(b"caf\xe9")
        Path("cut.npy").write_bytes(b"w1\n\nw2")
        Path("blank.txt").write_bytes(b"w1\n\nw2")
        Path("out.csv").write_text("text")
        done = ask(name, file, *words[1:], "-o", "none.txt")
        assert (done.exit_code, done.stdout, Path("none.txt").exists()) == (1, "", False), file
        assert file in done.output
    each = {place: f"empty{Path(words[place]).suffix}" for place in places[: 1 if name == "neighbours" else None]}
    done = ask(name, *[each.get(place, word) for place, word in enumerate(words)])
    assert done.exit_code == 0, done.output
    assert len(done.stderr.splitlines()) == 1  # that there was nothing to do
    assert not done.stdout.strip() or np.load(io.BytesIO(done.stdout_bytes)).shape == (0, DIM)


@given(
    lines=st.lists(st.sampled_from(["w1 w2", " w3", "w4 [MASK]", "", " ", "\u2028"]), min_size=1, max_size=5),
    end=st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_line_has_an_answer_or_the_request_is_refused(lines: list[str], end: str, folder: Path) -> None:
    done = ask("score", "-", raw="".join(line + end for line in lines).encode())
    blank = [str(number) for number, line in enumerate(lines, 1) if not line.strip()]
    assert done.exit_code == (1 if blank else 0), done.output
    assert len(done.stdout.splitlines()) == (0 if blank else len(lines))
    assert not blank or f"({', '.join(blank)})" in done.output
