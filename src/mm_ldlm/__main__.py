"""Entry point `mm-ldlm` and `python -m mm_ldlm`: the commands of `app.console`, and `run`, which starts Kedro."""

import sys

import click

from mm_ldlm.app.console import commands


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Run pipelines, with the options of `kedro run`."""
    from kedro.framework.project import configure_project

    configure_project("mm_ldlm")
    from mm_ldlm.cli import cli

    cli.commands["run"].main(arguments, prog_name="mm-ldlm run")


def main() -> None:
    """Run a command; options without one are those of `run`, as for every packaged project of Kedro."""
    words = sys.argv[1:]
    if words and words[0].startswith("-") and words[0] not in ("--help", "--version"):
        words = ["run", *words]
    commands.main(words, prog_name="mm-ldlm")


if __name__ == "__main__":
    main()
