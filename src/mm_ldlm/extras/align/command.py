"""Command `mm-ldlm align`."""

import tempfile
from pathlib import Path

import click

from mm_ldlm.app.console import RUN, encoder_of, messages_only


@click.command("align")
@click.option("--run", help=f"Run that is to read the vectors. {RUN}")
@click.option("--texts", required=True, help="Texts, one per line: at least 50, better thousands.")
@click.option("--vectors", help=".npy file with the vector of each text by the other encoder.")
@click.option("--encoder", help="The other encoder instead of vectors: a name, or its parameters as {kind: …, …}.")
@click.option("--name", default="", help="Name of the encoder of the vectors, for messages.")
@click.option("-o", "--output", required=True, help="New folder of the exported run.")
def align(run: str | None, texts: str, vectors: str | None, encoder: str | None, name: str, output: str) -> None:
    """Export a run with an adapter in front of it, so that it reads the vectors of another encoder.

    The adapter is fitted on texts with their vectors, and the run's encoder embeds the texts.
    """
    if (vectors is None) == (encoder is None):
        raise click.UsageError("expected either --vectors or --encoder. Give one of them.")
    with messages_only():
        from mm_ldlm.data.latents.recognition import named
        from mm_ldlm.extras.align.adapter import ADAPTER
        from mm_ldlm.extras.align.fitting import fit_adapter
        from mm_ldlm.inference.api import MMLDLM
        from mm_ldlm.inference.arguments import array_of, vectors_of
        from mm_ldlm.inference.exporting import export, source_of
        from mm_ldlm.inference.files import read_array, read_texts, run_of

        source, lines = source_of(run_of(run), Path(output)), read_texts(texts)
        model = MMLDLM.from_run(source.run)
        own_nd = model.encode(lines, too_long="truncate")
        if encoder is not None:
            other = encoder_of(encoder)
            given_nm, name = other.encode(lines), name or other.located.name
            click.echo(f"{name} embedded {len(lines):,} texts.", err=True)
        else:
            given = array_of(read_array(str(vectors)), name="vectors")
            given_nm = vectors_of(given, dim=given.shape[-1], name="vectors", count=len(lines))
        adapter, tried = fit_adapter(
            given_nm, own_nd, normaliser=model.normaliser, encoder=name or named(given_nm)
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as stage:
            adapter.save(Path(stage) / ADAPTER)
            export(source, Path(output), folders={ADAPTER: Path(stage) / ADAPTER})
        for choice, cosine in tried.items():
            click.echo(f"{choice}: cosine {cosine:.3f} on held-out pairs")
        click.echo(f"{output}: {adapter.about.kind}, fitted on {adapter.about.pairs:,} pairs")
