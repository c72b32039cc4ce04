"""The command line `mm-ldlm`: registered commands, most of them requests of `MMLDLM`.

The command of a request has an argument or an option for each of its parameters. torch is imported when a model is
loaded. Results go to standard output or to the named file, everything else to standard error.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import click
from click.shell_completion import CompletionItem

from mm_ldlm.app.commands import COMMANDS, Request, request_at
from mm_ldlm.core import MMLDLMError, Precision, SamplingError, mask, nearest, reason_of, show
from mm_ldlm.core.files import refuse_other, write_bytes, write_problem
from mm_ldlm.inference.files import DEFAULT, RUNS, read_array, read_texts, run_of


class Commands(click.Group):
    """The registered commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            missing = f"No such command {show(cmd_name)}.{nearest(cmd_name, COMMANDS)}"
            return None if ctx.resilient_parsing else ctx.fail(missing)
        with messages_only():
            request = request_at((COMMANDS.external | COMMANDS.known)[cmd_name])
            return cast(click.Command, COMMANDS.load(cmd_name)) if request is None else command_of(cmd_name, request)


@click.command(cls=Commands, name="mm-ldlm")
@click.version_option(package_name="mm-ldlm", message="%(prog)s %(version)s")
def commands() -> None:
    """Run the pipelines, or use, import and export a trained run.

    Most commands read a file, or standard input (`-`), and write an answer for each of its lines.
    """


@contextmanager
def messages_only() -> Iterator[None]:
    """Print only the message of an error of this project; click prints its own exceptions."""
    try:
        yield
        return
    except MMLDLMError as error:
        message = mask(str(error))
    except BrokenPipeError:
        raise  # the reader has enough; click ends without a message
    except OSError as error:
        message = write_problem(error) or reason_of(error)
    raise click.ClickException(message)


# --- requests ---------------------------------------------------------------------------------------------------------

FORMATS = ("txt", "tsv", "csv", "jsonl", "parquet", "npy")
"""Formats of results: the answers, one per line; tables with all columns; and vectors"""
VECTORS = ("Floats", "Embeddings")
"""Types of results whose answers are vectors"""
RUN = (
    f"A run or a checkpoint; a folder of runs or of data, for its newest run; or {DEFAULT}, the model of the package. "
    f"By default the newest run in the folder {RUNS}, or {DEFAULT} if there is none."
)
"""Help of the run of a command"""
LOADING = (
    click.Option(["--run"], type=click.Path(), help=RUN),
    click.Option(["--checkpoint"], default="latest", show_default=True, help="latest, best or a step of the run."),
    click.Option(["--device"], help="cpu, cuda or cuda:N; by default the first GPU if there is one."),
    click.Option(
        ["--precision"], type=click.Choice(get_args(Precision)), default="fp32", show_default=True,
        help="auto: bf16 if the device is faster with it. With bf16 an answer may depend on its batch.",
    ),
)  # fmt: skip
"""Options of the commands that load one run"""
COMMON = (
    *LOADING,
    click.Option(
        ["--encoder"],
        help="Encoder of texts for a run that has none: a name such as minilm, or its parameters as {kind: …, …}.",
    ),
    click.Option(["-o", "--output"], type=click.Path(), help="File of the results; by default standard output."),
    click.Option(
        ["--format"], type=click.Choice(FORMATS),
        help="By default from the name of the output; without one npy for vectors, else txt, a line for each answer.",
    ),
    click.Option(["--overwrite"], is_flag=True, help="Replace the output if it exists."),
)  # fmt: skip
"""Options of every request"""
TRACE = click.Option(["--trace"], metavar="FILE.html", help="Page that plays how each text was written, step by step.")
"""Option of the requests that write texts"""


def command_of(name: str, request: Request) -> click.Command:
    """Make the command of a request: an argument for each positional parameter, and an option for each other one."""
    text, params = request.help, list[click.Parameter]()
    for each in request.parameters:
        kind: Any = Items(each.texts, each.vectors) if each.texts or each.vectors else each.kind
        if each.positional:
            params.append(click.Argument([each.name], type=kind, required=each.required))
            text += f"\n\n{each.name.upper()}: {each.help}" * bool(each.help)
            continue
        flag = kind is bool
        option = click.Option(
            [f"--{each.name.replace('_', '-')}"], type=click.Choice(each.choices) if each.choices else kind,
            is_flag=flag, required=each.required, show_default=not flag, help=each.help,
            **({} if each.required else {"default": bool(each.default) if flag else each.default}),
        )  # fmt: skip
        params.append(option)
    vectors, common = request.returns in VECTORS, (*COMMON, TRACE) if request.returns == "Texts" else COMMON
    callback = functools.partial(answer, name, [each.name for each in request.parameters], vectors)
    if any(isinstance(each.type, Items) for each in params):
        text += "\n\nA file has one text per line, or vectors if its name ends in .npy; `-` is standard input."
    return click.Command(name, params=[*params, *common], callback=callback, help=text)


def encoder_of(value: str, *, device: str | None = None) -> Any:
    """Load the encoder of an option: a name, or the parameters of an encoder as {kind: …, name: …}."""
    from mm_ldlm.app.params_option import parse_params
    from mm_ldlm.data.encoders import load_encoder, parse_encoder

    given = parse_params(f"encoder={value}")["encoder"] if value.startswith("{") else {"name": value}
    return load_encoder(parse_encoder(given), device=device)


def listen(host: str, port: int) -> socket.socket:
    """Open the port of a server.

    Raises:
        SamplingError: the host is empty, which would be every address of the machine, or the port cannot be opened.
    """
    if not host.strip():
        raise SamplingError("--host: expected an address, found an empty text. 0.0.0.0 means every address.")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        expected, remedy = ("a free port", "--port") if taken else ("an address of this machine", "--host")
        reason = f"expected {expected}, found that {host}:{port} cannot be opened ({error.strerror})"
        raise SamplingError(f"{reason}. Choose another {remedy}.") from None


@dataclasses.dataclass
class Items(click.ParamType):
    """A file of texts, one per line, or of vectors (`.npy`); "-" is standard input."""

    texts: bool
    vectors: bool
    name = "file"

    def shell_complete(self, *asked: Any) -> list[CompletionItem]:
        return click.Path().shell_complete(*asked)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
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
    request: str, given: Sequence[str], vectors: bool, *, run: str | None, output: str | None, format: str | None,
    overwrite: bool, checkpoint: str, encoder: str | None, device: str | None, precision: Precision,
    trace: str | None = None, **values: Any,
) -> None:  # fmt: skip
    """Answer a request by a run, and write the result; everything that can be refused is refused before the work."""
    with messages_only():
        suffix = "" if output is None else Path(output).suffix.lower().removeprefix(".")
        form = format or suffix or ("npy" if vectors else "txt")
        if form not in FORMATS or (form == "npy" and not vectors):
            raise SamplingError(
                f"output {show(output)}: expected one of the formats {', '.join(FORMATS)} (npy only for vectors), "
                f"found '{form}'. Name an output such as answers.csv, or add --format csv."
            )
        for file, ending in ((output, ""), (trace, ".html")):
            if file is not None:
                refuse_result(file, overwrite=overwrite, suffix=ending)
        if output is None and form in ("npy", "parquet") and sys.stdout.isatty():
            raise SamplingError(f"expected a file for the format {form}, found a terminal. Add --output FILE.{form}.")
        found = run_of(run)
        from mm_ldlm.inference.api import MMLDLM

        loaded = None if encoder is None else encoder_of(encoder, device=device)
        model = MMLDLM.from_run(found, encoder=loaded, checkpoint=checkpoint, device=device, precision=precision)
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


def refuse_result(file: str, *, overwrite: bool, suffix: str = "") -> None:
    """Raise `SamplingError` if a result cannot be written to a file, whose name has to end in a suffix."""
    if not file.lower().endswith(suffix):
        raise SamplingError(f"{show(file)}: expected a name that ends in {suffix}. Add it.")
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

    if form == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(answers, dtype=np.float32), allow_pickle=False)
        return buffer.getvalue()
    if form == "txt":
        return "".join(f"{_line(each)}\n" for each in answers).encode()
    frame = frame_of(made)
    if form == "parquet":
        return bytes(frame.to_parquet())
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
