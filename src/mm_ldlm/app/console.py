"""The command line `mm-ldlm`: a group of registered commands, and those that use a trained run.

Modules of commands import little, so that the help appears at once; torch is imported when a model is loaded. Results
go to standard output or to the named file, everything else to standard error.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from mm_ldlm.core import MMLDLMError, Registry, SamplingError, mask, reason_of, show
from mm_ldlm.core.files import write_bytes, write_problem

if TYPE_CHECKING:
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.inference.generating import Keep

COMMANDS = Registry(
    "command",
    {"run": "mm_ldlm.__main__:run", "invert": "mm_ldlm.app.console:invert", "embed": "mm_ldlm.app.console:embed"},
    group="commands",
)
"""Every command of `mm-ldlm`: objects of click."""
_RUNS = "data/06_models/runs"
"""Folder of the runs of the default configuration, of which the newest is used"""
COLUMNS = ("row", "sample", "cosine", "log_prob", "text")
"""Columns of `mm-ldlm invert --table`"""


class Commands(click.Group):
    """The registered commands, of which the help imports all and a call one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        with messages_only():
            return cast(click.Command, COMMANDS.load(cmd_name)) if cmd_name in COMMANDS else None


@click.command(cls=Commands, name="mm-ldlm")
@click.version_option(package_name="mm-ldlm", message="%(prog)s %(version)s")
def commands() -> None:
    """Run the pipelines, or use, import and export a run."""


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


# --- a trained run ----------------------------------------------------------------------------------------------------


def _of_run(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose the run and its weights."""
    options = (
        click.option(
            "--run", default=_RUNS, show_default=True, help="A run, a checkpoint, or a folder of runs (the newest one)."
        ),
        click.option("--checkpoint", default="latest", show_default=True, help="latest, best or a step of the run."),
        click.option("--device", default=None, help="cpu, cuda or cuda:N; by default the first GPU if there is one."),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random draws."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _load(*, run: str, **weights: Any) -> MMLDLM:
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.training.checkpoints.folder import newest_run

    model = MMLDLM.from_run(run, **weights)
    if (newest := newest_run(Path(run))) != Path(run):
        click.echo(f"run {newest}, the newest in {run}; --run chooses another", err=True)
    return model


@click.command()
@click.argument("file")
@click.option(
    "--samples",
    type=int,
    default=1,
    show_default=True,
    help="Number of texts for each latent; more than one requires a temperature above 0.",
)
@click.option("--keep", default="best", show_default=True, help="Which of several texts to print: best or all.")
@click.option("--temperature", type=float, default=None, help="Temperature of the sampler; 0 by default.")
@click.option("--steps", type=int, default=None, help="Number of steps of the sampler; 4 by default.")
@click.option(
    "--cosine",
    is_flag=True,
    help="Embed the texts again, so that the best is the one with the highest cosine instead of the most probable one. "
    "Requires the encoder of the run.",
)
@click.option("--table", is_flag=True, help=f"Print {', '.join(COLUMNS)}, separated by tabs, under a header.")
@_of_run
def invert(
    file: str, samples: int, keep: str, temperature: float | None, steps: int | None, cosine: bool, table: bool,
    seed: int, **run: Any,
) -> None:  # fmt: skip
    """Print a text for each latent of FILE.npy, one per line.

    The file contains raw latents (n, d), as the encoder of the run makes them.
    """
    with messages_only():
        model = _load(**run)
        sampler = None
        if temperature is not None:
            sampler = model.model.default_sampler(conditional=True).override(temperature=temperature)
        made = model.invert(
            Path(file), sampler=sampler, steps=steps, reembed=cosine, seed=seed, samples=samples,
            keep=cast("Keep", keep),
        )  # fmt: skip
        lines = [" ".join(text.split()) for text in made.texts]  # a tab separates the columns of a table
        if table:
            rows = range(len(made)) if made.rows is None else made.rows
            numbers = [0] * len(made) if made.samples is None else made.samples
            cosines = [""] * len(made) if made.cosines is None else [f"{value:.4f}" for value in made.cosines]
            probabilities = [f"{value:.3f}" for value in made.log_probs]
            cells = zip(rows, numbers, cosines, probabilities, lines, strict=True)
            lines = ["\t".join(COLUMNS), *("\t".join(map(str, row)) for row in cells)]
        for line in lines:
            click.echo(line)


@click.command()
@click.argument("file")
@click.argument("output")
@click.option("--draws", type=int, default=4, show_default=True, help="Number of samples whose mean is the latent.")
@click.option("--steps", type=int, default=None, help="Number of steps of the sampler.")
@_of_run
def embed(file: str, output: str, draws: int, steps: int | None, seed: int, **run: Any) -> None:
    """Embed the texts of FILE, one per line, by the model, and write the latents (n, d) to OUTPUT.npy in float32."""
    import numpy as np

    from mm_ldlm.inference.arguments import read_texts

    with messages_only():
        texts = read_texts(file)
        if Path(output).suffix != ".npy":  # before the work; the texts themselves are no output either
            raise SamplingError(
                f"{show(output)}: expected an output whose name ends in .npy, the format that is written, found "
                f"another name. Give {show(str(Path(output).with_suffix('.npy')))}."
            )
        model = _load(**run)
        made = model.embed(texts, steps=steps, draws=draws, seed=seed)
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(made.latents, dtype=np.float32), allow_pickle=False)
        write_bytes(Path(output), buffer.getvalue())
        click.echo(f"{len(made)} latents of dimension {made.latents.shape[1]} in {output}", err=True)
