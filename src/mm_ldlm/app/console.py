"""The command line `mm-ldlm`: registered commands, most of them requests of `MMLDLM`.

The command of a request has an argument or an option for each of its parameters, read from its source. torch is
imported when a model is loaded. Results go to standard output or to the named file, everything else to standard error.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from mm_ldlm.core import MMLDLMError, Registry, SamplingError, contributed, mask, reason_of, show
from mm_ldlm.core.files import refuse_other, write_bytes, write_problem

COMMANDS = Registry(
    "command",
    {
        "run": "mm_ldlm.__main__:run",
        "invert": "mm_ldlm.inference.generating:invert",
        "generate": "mm_ldlm.inference.generating:generate",
        "embed": "mm_ldlm.inference.reading:embed",
        "encode": "mm_ldlm.inference.reading:encode",
        "score": "mm_ldlm.inference.reading:score",
        "neighbours": "mm_ldlm.inference.reading:neighbours",
    },
    group="commands",
)
"""Every command of `mm-ldlm`: objects of click, and requests of `MMLDLM`"""


class Commands(click.Group):
    """The registered commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        path = (COMMANDS.external | COMMANDS.known)[cmd_name]
        request = request_at(path)
        with messages_only():
            if request is None:
                return cast(click.Command, COMMANDS.load(cmd_name))
            return command_of(cmd_name, request, module=path.partition(":")[0])


@click.command(cls=Commands, name="mm-ldlm")
@click.version_option(package_name="mm-ldlm", message="%(prog)s %(version)s")
def commands() -> None:
    """Run the pipelines, or use, import and export a trained run.

    Most commands read a file, or standard input (`-`), and write an answer for each of its lines.
    """


@contextmanager
def messages_only() -> Iterator[None]:
    """Print only the message of an error that was raised on purpose; click prints its own exceptions."""
    try:
        yield
    except MMLDLMError as error:
        raise click.ClickException(mask(str(error))) from None
    except BrokenPipeError:
        raise  # the reader has enough; click ends without a message
    except OSError as error:
        raise click.ClickException(write_problem(error) or reason_of(error)) from None


# --- requests ---------------------------------------------------------------------------------------------------------

FORMATS = ("txt", "tsv", "csv", "jsonl", "parquet", "npy")
"""Formats of results: the answers, one per line; tables with all columns; and vectors"""
VECTORS = ("Floats", "Embeddings")
"""Types of results whose answers are vectors"""
SHARED = {
    "seed": "Seed of the random draws.",
    "steps": "Number of sampling steps; by default the sampler's.",
    "temperature": "Temperature of the sampler; by default its own.",
    "sampler": "Kind of the sampler; by default the model's.",
    "too_long": "For texts of more tokens than are read: refuse or truncate.",
}
"""Help of options that many requests have; others are explained under `Args:` in the docstring of the request"""
COMMON = (
    click.Option(
        ["--run"], default="data", show_default=True, type=click.Path(),
        help="A run, a checkpoint, or a folder of runs or of data, of which the newest run is used.",
    ),
    click.Option(["--checkpoint"], default="latest", show_default=True, help="latest, best or a step of the run."),
    click.Option(
        ["--encoder"],
        help="Encoder of texts, such as minilm, for a run on given vectors that names none; by default the run's.",
    ),
    click.Option(["--device"], help="cpu, cuda or cuda:N; by default the first GPU if there is one."),
    click.Option(["-o", "--output"], type=click.Path(), help="File of the results; by default standard output."),
    click.Option(
        ["--format"], type=click.Choice(FORMATS),
        help="By default by the name of the output; without one npy for vectors, else txt, a line for each answer.",
    ),
    click.Option(["--overwrite"], is_flag=True, help="Replace the output if it exists."),
)  # fmt: skip
"""Options of every request"""
TRACE = click.Option(["--trace"], metavar="FILE.html", help="Page that plays how each text was written, step by step.")
"""Option of the requests that write texts"""


def request_at(path: str) -> ast.FunctionDef | None:
    """Read the source of a request, a function of "module:name" whose first argument is the model; None for others.

    Importing the module would import torch, which takes longer than most refusals and every help.
    """
    module, _, name = path.partition(":")
    found = (node for node in _source(module) if isinstance(node, ast.FunctionDef) and node.name == name)
    return next((node for node in found if [each.arg for each in node.args.args[:1]] == ["model"]), None)


@functools.cache
def _source(module: str) -> list[ast.stmt]:
    """Parse a module; one that cannot be read has no statements, and `COMMANDS.load` explains it."""
    try:
        spec = importlib.util.find_spec(module)
        return ast.parse(Path(str(spec and spec.origin)).read_bytes()).body
    except (ImportError, OSError, SyntaxError, ValueError):
        return []


def choices_of(argument: ast.arg, module: str) -> list[str]:
    """List the choices of a parameter: those of a `Literal` or of a registry that `module` defines or imports."""
    name = re.findall(r"\w+", ast.unparse(argument.annotation or ast.Name("str")))[-1]
    for node in _source(module):
        if isinstance(node, ast.ImportFrom) and name in [each.name for each in node.names]:
            return choices_of(argument, str(node.module))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            text = ast.unparse(node.value)
            kinds = [*re.findall(r"'(\w+)':", text), *contributed("".join(re.findall(r"group='(\w+)'", text)))]
            return kinds or re.findall(r"'(\w+)'", text) * text.startswith("Literal")
    return []


def command_of(name: str, request: ast.FunctionDef, *, module: str) -> click.Command:
    """Make the command of a request: an argument for each positional parameter, and an option for each other one."""
    text, explained = help_of(request)
    params: list[click.Parameter] = []
    required = required_by(request)
    for argument in request.args.args[1:]:
        params.append(click.Argument([argument.arg], type=type_of(argument), required=argument.arg in required))
        if argument.arg in explained:
            text += f"\n\n{argument.arg.upper()}: {explained[argument.arg]}"
    for argument, default in zip(request.args.kwonlyargs, request.args.kw_defaults, strict=True):
        choices = choices_of(argument, module)
        if (kind := type_of(argument, choices)) is None:
            continue
        value, flag = None if default is None else ast.literal_eval(default), kind is bool
        kinds = f" One of {', '.join(choices)}." if choices and kind is str else ""
        option = click.Option(
            [f"--{argument.arg.replace('_', '-')}"], type=None if flag else kind, is_flag=flag,
            default=bool(value) if flag else value, required=argument.arg in required, show_default=not flag,
            help=explained.get(argument.arg, "") + kinds,
        )  # fmt: skip
        params.append(option)
    returns = "" if request.returns is None else ast.unparse(request.returns)
    vectors, common = returns in VECTORS, (*COMMON, TRACE) if returns == "Texts" else COMMON
    callback = functools.partial(answer, name, [each.name for each in params], vectors)
    if any(isinstance(each.type, Items) for each in params):
        text += "\n\nA file has one text per line, or vectors if its name ends in .npy; `-` is standard input."
    return click.Command(name, params=[*params, *common], callback=callback, help=text)


def required_by(request: ast.FunctionDef) -> list[str]:
    """List the parameters of a request that have no default."""
    positional, keywords = request.args.args, zip(request.args.kwonlyargs, request.args.kw_defaults, strict=True)
    first = positional[1 : len(positional) - len(request.args.defaults)]
    return [each.arg for each in (*first, *(argument for argument, default in keywords if default is None))]


def help_of(request: ast.FunctionDef) -> tuple[str, dict[str, str]]:
    """Return what the docstring of a request explains: the request, and each parameter by its name."""
    text, _, arguments = (ast.get_docstring(request) or "").partition("\n\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*)", re.sub(r"\n {8}", " ", arguments), re.MULTILINE)
    return text, SHARED | {key: words[0].upper() + words[1:] for key, words in found}


def type_of(argument: ast.arg, choices: Sequence[str] = ()) -> Any:
    """Return the type of an option of the command line; None for a parameter that has none."""
    hint = ast.unparse(argument.annotation) if argument.annotation else "str"
    if "Sequence[Sequence" in hint:  # token ids
        return None
    if "Sequence[str]" in hint or "Latents" in hint:
        return Items(texts="Sequence[str]" in hint, vectors="Latents" in hint)
    if hint == "Length":
        return length
    if choices and "Any" not in hint:
        return click.Choice(choices)
    return bool if "bool" in hint else {"int": int, "float": float}.get(hint.split(" ")[0], str)


def registered(value: Any) -> Any:
    """Return the kind that a client of a service chose.

    Raises:
        ValueError: it contains an import path.
    """
    if re.search(r"\S:\S", repr(value)):
        raise ValueError("expected a registered kind; import paths are refused, because they would run other code")
    return value


def address(value: str) -> str:
    """Return a host to listen on; an empty one, which would be every address of the machine, is refused."""
    if not value.strip():
        raise click.ClickException("--host: expected an address, found an empty text. 0.0.0.0 means every address.")
    return value


def length(value: str) -> str | int:
    """Return a length in words, or a number of tokens."""
    return int(value) if value.isdecimal() else value


@dataclasses.dataclass
class Items(click.ParamType):
    """A file of texts, one per line, or of vectors (`.npy`); "-" is standard input."""

    texts: bool
    vectors: bool
    name = "file"

    def shell_complete(self, *asked: Any) -> list[CompletionItem]:
        return click.Path().shell_complete(*asked)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from mm_ldlm.inference.files import read_array, read_texts

        if not isinstance(value, str) or (not self.texts and Path(value).is_dir()):
            return value  # a data folder, which the request reads
        name = ""
        with tempfile.NamedTemporaryFile() as copy, messages_only():
            is_array = value.endswith(".npy")
            if value == "-":
                raw = sys.stdin.buffer.read()
                copy.write(raw)
                copy.flush()
                value, name, is_array = copy.name, "standard input", raw.startswith(b"\x93NUMPY")
            array = self.vectors and (is_array or not self.texts)
            return read_array(value, name=name) if array else read_texts(value, name=name)


def answer(
    request: str, given: Sequence[str], vectors: bool, *, run: str, output: str | None, format: str | None,
    overwrite: bool, checkpoint: str, encoder: str | None, device: str | None, trace: str | None = None, **values: Any,
) -> None:  # fmt: skip
    """Answer a request by a run, and write the result; everything that can be refused is refused before the work."""
    from mm_ldlm.inference.files import newest_run

    with messages_only():
        suffix = "" if output is None else Path(output).suffix.lower().removeprefix(".")
        form = format or suffix or ("npy" if vectors else "txt")
        if form not in FORMATS or (form == "npy" and not vectors):
            raise SamplingError(
                f"output {show(output)}: expected one of the formats {', '.join(FORMATS)} (npy only for vectors), "
                f"found '{form}'. Name an output such as answers.csv, or add --format csv."
            )
        if trace is not None and Path(trace).suffix.lower() != ".html":
            raise SamplingError(f"trace {show(trace)}: expected a name that ends in .html. Add it.")
        for file in (output, trace):
            if file is not None:
                refuse_result(file, overwrite=overwrite)
        if output is None and form in ("npy", "parquet") and sys.stdout.isatty():
            raise SamplingError(f"expected a file for the format {form}, found a terminal. Add --output FILE.{form}.")
        found = newest_run(run)
        from mm_ldlm.data.encoders import load_encoder, parse_encoder
        from mm_ldlm.inference import MMLDLM

        loaded = None if encoder is None else load_encoder(parse_encoder({"name": encoder}), device=device)
        model = MMLDLM.from_run(found, encoder=loaded, checkpoint=checkpoint, device=device)
        model = model if trace is None else model.traced()
        made = COMMANDS.load(request)(model, **{name: values[name] for name in given})
        answers = getattr(made, getattr(made, "main", ""), made)
        if not len(answers):
            click.echo(f"{request}: nothing to do, because the input is empty.", err=True)
        data = encoded(made, answers, form)
        if output is None:
            click.echo(data, nl=False)
        else:
            write_bytes(Path(output), data)
        if trace is not None:
            from mm_ldlm.evaluation.report.traces import trace_page

            write_bytes(Path(trace), trace_page(made, title=found.name).encode())


def refuse_result(file: str, *, overwrite: bool) -> None:
    """Raise `SamplingError` if a result cannot be written to a file."""
    refuse_other(Path(file), error=SamplingError)
    if not overwrite and os.path.lexists(file):
        raise SamplingError(
            f"{show(file)}: expected a new file, found an existing one. Give another name, or add --overwrite."
        )
    try:
        tempfile.TemporaryFile(dir=Path(file).parent).close()
    except OSError as error:
        raise SamplingError(
            f"{show(file)}: expected a file in a folder with permission to write, found that none can be made there "
            f"({error.strerror}). Make the folder, correct its permissions, or give another name."
        ) from None


def encoded(made: Any, answers: Any, form: str) -> bytes:
    """Return a result with its answers, or an array of vectors, as the bytes of a file."""
    import numpy as np

    buffer = io.BytesIO()
    if form == "npy":
        np.save(buffer, np.asarray(answers, dtype=np.float32), allow_pickle=False)
        return buffer.getvalue()
    if form == "txt":
        return "".join(f"{_line(each)}\n" for each in answers).encode()
    frame = frame_of(made)
    if form == "parquet":
        frame.to_parquet(buffer)
        return buffer.getvalue()
    if form == "jsonl":
        return (frame.to_json(orient="records", lines=True, force_ascii=False) or "").lstrip("\n").encode()
    plain = frame.map(lambda value: json.dumps(value.tolist()) if isinstance(value, np.ndarray) else value)
    return str(plain.to_csv(index=False, sep="\t" if form == "tsv" else ",", lineterminator="\n")).encode()


def frame_of(made: Any) -> Any:
    """Return a result, or an array of vectors, as a table."""
    import pandas as pd

    return made.to_frame() if hasattr(made, "to_frame") else pd.DataFrame({"latent": list(made)})


def _line(value: Any) -> str:
    """Return one answer on one line: a text, a number, or several of them, separated by tabs."""
    if isinstance(value, str):
        return " ".join(value.split())
    if hasattr(value, "tolist"):
        value = value.tolist()
    return "\t".join(map(_line, value)) if isinstance(value, (list, tuple)) else f"{value:.6g}"
