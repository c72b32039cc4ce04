"""Entry point `mm-ldlm` and `python -m mm_ldlm`: the commands of `app.console`."""

import sys

from mm_ldlm.app.console import commands


def main() -> None:
    """Run a command; options without one are those of `run`, as for every packaged project of Kedro."""
    words = sys.argv[1:]
    if words and words[0].startswith("-") and words[0] not in ("--help", "--version"):
        words = ["run", *words]
    commands.main(words, prog_name="mm-ldlm")


if __name__ == "__main__":
    main()
