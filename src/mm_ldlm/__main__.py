"""Entry point `mm-ldlm` and `python -m mm_ldlm`: the commands of `app.console`, and `run`, which starts Kedro."""

import contextlib
import io
import logging
import sys

import click
from click.shell_completion import CompletionItem

from mm_ldlm.app.console import commands


class KedroRun(click.Command):
    """A command that imports Kedro only when it runs or completes a word."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        with contextlib.redirect_stderr(io.StringIO()):  # Kedro logs what it reads
            return kedro_run().shell_complete(ctx, incomplete)


@click.command(cls=KedroRun, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Run pipelines, with the options of `kedro run`."""
    kedro_run().main(arguments, prog_name="mm-ldlm run")


def kedro_run() -> click.Command:
    """Import the command `kedro run` of the project."""
    from kedro.framework.project import configure_project

    configure_project("mm_ldlm")
    from mm_ldlm.cli import cli

    return cli.commands["run"]


def main() -> None:
    """Run a command; without a command the options belong to `run`, as in every packaged Kedro project."""
    words = sys.argv[1:]
    if words and words[0].startswith("-") and words[0] not in ("--help", "--version"):
        words = ["run", *words]
    logging.basicConfig(format="%(message)s")
    logging.getLogger("mm_ldlm").setLevel(logging.INFO)  # progress too, where stderr is not a terminal
    commands.main(words, prog_name="mm-ldlm")


if __name__ == "__main__":
    main()
