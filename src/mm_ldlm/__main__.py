"""Entry point `python -m mm_ldlm` and `mm-ldlm`: the commands of `console`, and otherwise `kedro run` of the installed
package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mm_ldlm import console
from mm_ldlm.messages import nearest, show


def main() -> None:
    """Run a command of `console` if the first word names one, otherwise the pipelines, with options of `kedro run`."""
    if sys.argv[1:] and not sys.argv[1].startswith("-"):  # `kedro run` has options only
        if sys.argv[1] not in (known := console.commands.commands):
            hint = nearest(sys.argv[1], known)
            print(
                f"Error: {show(sys.argv[1], 80)} is not a command.{hint} Choose one of: {', '.join(known)}; or give "
                "options of `kedro run` alone, to run the pipelines.",
                file=sys.stderr,
            )
            sys.exit(2)
        console.commands.main(prog_name="mm-ldlm")
    from kedro.framework.project import configure_project

    configure_project(Path(__file__).parent.name)
    from mm_ldlm.cli import cli

    if "--help" in sys.argv[1:]:  # the help of the pipelines follows
        print(console.commands.get_help(click.Context(console.commands, info_name="mm-ldlm")), end="\n\n", flush=True)
    cli.commands["run"].main(prog_name="python -m mm_ldlm")


if __name__ == "__main__":
    main()
