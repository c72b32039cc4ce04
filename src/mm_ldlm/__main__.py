"""Entry point `python -m mm_ldlm` and `mm-ldlm`: the commands of `console`, and otherwise `kedro run` of the installed
package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from mm_ldlm.app import console
from mm_ldlm.core.messages import nearest, show

COMPLETION = "_MM_LDLM_COMPLETE"
"""Environment variable by which a shell asks click for its completions"""


def main() -> None:
    """Run a command of `console` if the first word names one, otherwise the pipelines, with options of `kedro run`.

    `python -m mm_ldlm` alone runs them too, like every packaged project of Kedro; `mm-ldlm` alone shows its help.
    """
    words, known = sys.argv[1:], console.commands.commands
    if words and not words[0].startswith("-") and words[0] not in known:  # `kedro run` has options only
        print(
            f"Error: {show(words[0], 80)} is not a command.{nearest(words[0], known)} Choose one of: "
            f"{', '.join(known)}; or give options of `kedro run` alone, to run the pipelines.",
            file=sys.stderr,
        )
        sys.exit(2)
    if COMPLETION in os.environ or words[:1] == ["--version"] or (words and words[0] in known):
        console.commands.main(prog_name="mm-ldlm")
    if not words and Path(sys.argv[0]).name != "__main__.py":
        print(_help())
        sys.exit(0)
    from kedro.framework.project import configure_project

    configure_project(Path(__file__).parent.name)
    from mm_ldlm.cli import cli

    if "--help" in words:  # the help of the pipelines follows
        print(_help(), end="\n\n", flush=True)
    cli.commands["run"].main(prog_name="python -m mm_ldlm")


def _help() -> str:
    return console.commands.get_help(click.Context(console.commands, info_name="mm-ldlm"))


if __name__ == "__main__":
    main()
