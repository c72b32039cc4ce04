"""Command `mm-ldlm import-checkpoint`."""

from pathlib import Path
from typing import Any

import click

from mm_ldlm.app.console import messages_only


@click.command("import-checkpoint")
@click.argument("source")
@click.argument("run")
@click.option("--tokenizer", default=None, help="Folder, file or name; by default the files next to the weights.")
@click.option("--like", default=None, help="A run of this project with the same model, tokenizer and normaliser.")
@click.option("--heads", type=int, default=None, help="Attention heads, if the checkpoint does not contain them.")
@click.option("--max-length", type=int, default=None, help="Longest text in tokens, if the checkpoint has none.")
@click.option(
    "--timesteps", type=click.Choice(["none", "plain", "sigma"]), default=None,
    help="Timestep that the model was trained with: none, t in [0, 1] (plain), or −log α_t (sigma).",
)  # fmt: skip
def import_checkpoint(source: str, run: str, like: str | None, **given: Any) -> None:
    """Make the run folder RUN from the weights in SOURCE, a model.pt of another trainer or a folder with one."""
    from mm_ldlm.extras.foreign_checkpoints.importing import import_checkpoint as imported
    from mm_ldlm.extras.foreign_checkpoints.parameter_names import summary

    with messages_only():
        made = imported(Path(source), Path(run), like=None if like is None else Path(like), **given)
        form = "" if made.format is None else f" of the format {made.format}"
        averages = "with averaged weights (EMA)" if made.averaged else "without averaged weights (EMA)"
        click.echo(
            f"{run}: {len(made.tensors)} parameters{form}, {averages}; left out: {summary(made.left_out) or 'nothing'}"
        )
        click.echo(
            "Nothing was compared with outputs of the original code (reference.pt next to its weights)."
            if (found := made.differences) is None
            else f"Compared with {found.file}: predictions differ by at most {found.predictions:.1e} (the largest "
            f"logit is {found.largest:.3g}), the bound by at most {found.bound:.1e} nats per token."
        )
        if found is not None and found.predictions > 1e-3 * found.largest:
            click.echo(
                "This is not the function of the original code. Compare --timesteps, --heads and the tokenizer, and "
                "make the reference with the averaged weights if the checkpoint has them.",
                err=True,
            )
        click.echo(
            f"Sample from it by `mm-ldlm generate 4 --length 8 --run {run}`, by `mm-ldlm invert VECTORS.npy --length 8 "
            f"--run {run}` if it reads embeddings, or by MMLDLM.from_run({run!r}); "
            f"start a training by `--params training.init_from={Path(run).absolute()}`.",
            err=True,
        )
