"""Commands `mm-ldlm export` and `mm-ldlm push`."""

from pathlib import Path

import click

from mm_ldlm.app.console import messages_only
from mm_ldlm.core import CheckpointError, Registry
from mm_ldlm.core.files import InputFile

EXPORTS = Registry("export format", {}, group="exports")
"""Formats of exported runs: functions of a `Source` and a new folder"""


@click.command("export")
@click.argument("run")
@click.argument("folder")
@click.option(
    "--as", "form", type=click.Choice([*EXPORTS]), default="huggingface", show_default=True,
    help="huggingface: safetensors, for MMLDLM.from_pretrained and SentenceTransformer; model.pt: for older trainers.",
)  # fmt: skip
@click.option("--checkpoint", default="latest", show_default=True, help="latest, best or a step.")
@click.option("--last", is_flag=True, help="Export the last weights, not the averaged ones.")
@click.option(
    "--dtype", type=click.Choice(["bfloat16"]), help="Store the matrices at half the size; by default as trained."
)
@click.option("--licence", help="Licence of the model card, such as apache-2.0; by default unknown.")
@click.option("--notes", type=click.Path(), help="Markdown file that the model card ends with: data, limits, commands.")
@click.option("--without-encoder", is_flag=True, help="Leave out the weights of the encoder.")
def export(
    run: str, folder: str, form: str, checkpoint: str, last: bool, dtype: str | None, licence: str | None,
    notes: str | None, without_encoder: bool,
) -> None:  # fmt: skip
    """Write RUN to the new FOLDER: weights, configuration, tokenizer, normaliser, and a model card."""
    from mm_ldlm.inference.exporting import source_of

    given = {"licence": licence, "notes": notes, "without_encoder": without_encoder}
    options = {name: value for name, value in given.items() if value}
    if options and form != "huggingface":
        raise click.UsageError("--licence, --notes and --without-encoder belong to --as huggingface. Leave them out.")
    with messages_only():
        if notes is not None:
            options["notes"] = InputFile(notes, remedy="Give a Markdown file.", error=CheckpointError).text()
        source = source_of(Path(run), Path(folder), checkpoint=checkpoint, use_ema=not last, dtype=dtype)
        note = EXPORTS.load(form)(source, Path(folder), **options)
        click.echo(f"{folder}: the {'averaged' if source.averaged else 'last'} weights of {source.checkpoint}")
        for line in note or ():
            click.echo(line, err=True)


@click.command("push")
@click.argument("folder")
@click.argument("name")
@click.option("--private", is_flag=True, help="Make a new repository private.")
def push(folder: str, name: str, private: bool) -> None:
    """Upload FOLDER, which `export` wrote, to the repository NAME (owner/name) of the Hugging Face hub.

    The credentials come from `hf auth login` or the variable HF_TOKEN.
    """
    from mm_ldlm.extras.huggingface.hub import upload

    with messages_only():
        click.echo(upload(Path(folder), name, private=private))
