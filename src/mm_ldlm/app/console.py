"""Commands of a run that need neither Kedro nor an environment: `mm-ldlm invert`, `embed`, `import-checkpoint` and
`export-checkpoint`.

`python -m mm_ldlm` has the same commands. Results go to standard output or to the named file, everything else to
standard error.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from mm_ldlm.core.credentials import mask
from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.core.files import refuse_other, write_bytes
from mm_ldlm.core.messages import show

if TYPE_CHECKING:
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.sampling.config import Keep

_RUNS = "data/06_models/runs"
"""Folder of the runs of the default configuration, of which the newest is used."""
_NPY = b"\x93NUMPY"
"""How a .npy file begins"""
COLUMNS = ("row", "sample", "cosine", "log_prob", "text")
"""Columns of `mm-ldlm invert --table`."""


@click.group()
@click.version_option(package_name="mm-ldlm", message="%(prog)s %(version)s")
def commands() -> None:
    """Use, import or export a run. With options alone, `mm-ldlm` runs the pipelines like `kedro run`."""


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


@commands.command()
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
    file: str,
    samples: int,
    keep: str,
    temperature: float | None,
    steps: int | None,
    cosine: bool,
    table: bool,
    **run: Any,
) -> None:
    """Print a text for each latent of FILE.npy, one per line.

    The file contains raw latents (n, d), as the encoder of the run makes them.
    """
    with messages_only():
        model, seed = _load(**run)
        sampler = None
        if temperature is not None:
            sampler = model.model.default_sampler(conditional=True).override(temperature=temperature)
        made = model.invert(
            Path(file),
            sampler=sampler,
            steps=steps,
            reembed=cosine,
            seed=seed,
            samples=samples,
            keep=cast("Keep", keep),
        )
        if not table:
            _print(_line(text) for text in made.texts)
            return
        rows = range(len(made)) if made.rows is None else made.rows
        numbers = [0] * len(made) if made.samples is None else made.samples
        cosines = [""] * len(made) if made.cosines is None else [f"{value:.4f}" for value in made.cosines]
        probabilities = [f"{value:.3f}" for value in made.log_probs]
        _print(["\t".join(COLUMNS)])
        _print(
            "\t".join((str(row), str(number), cosine_, log_prob, _line(text)))
            for row, number, cosine_, log_prob, text in zip(
                rows, numbers, cosines, probabilities, made.texts, strict=True
            )
        )


@commands.command()
@click.argument("file")
@click.argument("output")
@click.option("--draws", type=int, default=4, show_default=True, help="Number of samples whose mean is the latent.")
@click.option("--steps", type=int, default=None, help="Number of steps of the sampler.")
@_of_run
def embed(file: str, output: str, draws: int, steps: int | None, **run: Any) -> None:
    """Embed the texts of FILE, one per line, by the model, and write the latents (n, d) to OUTPUT.npy in float32."""
    import numpy as np

    from mm_ldlm.inference.arguments import read_texts

    with messages_only():
        texts = read_texts(file)
        refuse_own_file(Path(output))
        model, seed = _load(**run)
        made = model.embed(texts, steps=steps, draws=draws, seed=seed)
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(made.latents, dtype=np.float32), allow_pickle=False)
        try:
            write_bytes(output, buffer.getvalue())
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written ({error.strerror}). Choose another file.") from None
        click.echo(f"{len(made)} latents of dimension {made.latents.shape[1]} in {output}", err=True)


@commands.command("import-checkpoint")
@click.argument("source")
@click.argument("run")
@click.option("--tokenizer", default=None, help="Folder, file or name; by default the files beside the weights.")
@click.option("--like", default=None, help="A run of this project with the same model, tokenizer and normaliser.")
@click.option("--names", default=None, help="YAML file with a mapping of names; see docs/moving.md.")
@click.option("--heads", type=int, default=None, help="Attention heads, if the checkpoint does not contain them.")
@click.option("--max-length", type=int, default=None, help="Longest text in tokens, if the checkpoint has none.")
@click.option(
    "--timesteps", type=click.Choice(["none", "plain"]), default=None,
    help="How the model was trained: without its timestep, or with t in [0, 1] itself.",
)  # fmt: skip
def import_checkpoint(source: str, run: str, names: str | None, like: str | None, **given: Any) -> None:
    """Make the run folder RUN of the weights in SOURCE, a model.pt of another trainer or a folder with one."""
    from mm_ldlm.extras.foreign_checkpoints.formats import summary
    from mm_ldlm.extras.foreign_checkpoints.importing import Given, read_names
    from mm_ldlm.extras.foreign_checkpoints.importing import import_checkpoint as imported

    with messages_only():
        mapping = None if names is None else read_names(Path(names))
        made = imported(
            Path(source), Path(run), Given(like=None if like is None else Path(like), names=mapping, **given)
        )
        form = "" if made.format is None else f" of the format {made.format}"
        click.echo(f"{run}: {len(made.tensors)} parameters{form}; left out: {summary(made.left_out) or 'nothing'}")
        click.echo(
            f"Sample from it by `kedro run --pipelines=sampling --params run={run}` or MMLDLM.from_run({run!r}); start "
            f"a training by `--params training.init_from={Path(run).absolute()}`.",
            err=True,
        )


@commands.command("export-checkpoint")
@click.argument("run")
@click.argument("folder")
@click.option("--checkpoint", default="latest", show_default=True, help="latest, best or a step.")
@click.option("--last", is_flag=True, help="The last weights instead of the averaged ones.")
def export_checkpoint(run: str, folder: str, checkpoint: str, last: bool) -> None:
    """Write the weights of RUN to the new FOLDER as model.pt, with the configuration, tokenizer and normaliser."""
    from mm_ldlm.extras.foreign_checkpoints.exporting import export_checkpoint as exported

    with messages_only():
        found = exported(Path(run), Path(folder), checkpoint=checkpoint, use_ema=not last)
        averaged = not last and (found / "ema.safetensors").is_file()
        click.echo(f"{folder}/model.pt: the {'averaged' if averaged else 'last'} weights of {found}")


def refuse_own_file(output: Path) -> None:
    """Refuse an output before the work: the texts themselves, a file of a run, or a name of another format.

    Raises:
        SamplingError: it exists and does not begin like a .npy file, its name does not end in .npy, or its folder
            cannot be made or written to.
    """
    from mm_ldlm.core.errors import SamplingError

    try:
        refuse_other(output)
        if output.exists() and _beginning(output) not in (_NPY, b""):
            raise SamplingError(
                f"{show(str(output))} exists and is no .npy file, so it would be lost. Choose another file, or remove "
                "it."
            )
        if output.suffix.lower() != ".npy":
            raise SamplingError(
                f"{show(str(output))}: expected an output whose name ends in .npy, the format that is written. "
                f"Give {show(str(output.with_suffix('.npy')))}."
            )
        output.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(output.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SamplingError(f"{show(str(output))} cannot be written ({reason}). Choose another file.") from None


def _beginning(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(len(_NPY))


def _load(*, run: str, checkpoint: str, device: str | None, seed: int) -> tuple[MMLDLM, int]:
    from mm_ldlm.inference import MMLDLM
    from mm_ldlm.training.checkpoints.folder import newest_run

    model = MMLDLM.from_run(run, checkpoint=checkpoint, device=device)
    if (newest := newest_run(Path(run))) != Path(run):
        click.echo(f"run {newest}, the newest in {run}; --run chooses another", err=True)
    return model, seed


def _line(text: str) -> str:
    """Return a text on one line without tabs, which separate the columns of a table."""
    return " ".join(text.split())


def _print(lines: Iterator[str] | Sequence[str]) -> None:
    try:
        for line in lines:
            click.echo(line)
    except BrokenPipeError:
        raise  # the reader has enough; click ends without a message
    except OSError as error:
        raise click.ClickException(f"the output cannot be written ({error.strerror}). Write it elsewhere.") from None


@contextmanager
def messages_only() -> Iterator[None]:
    """Print only the message of an error that was raised on purpose; click prints its own exceptions."""
    try:
        yield
    except MMLDLMError as error:
        raise click.ClickException(mask(str(error))) from None
