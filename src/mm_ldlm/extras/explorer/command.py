"""Command `mm-ldlm explore`."""

import contextlib

import click

from mm_ldlm.app.console import RUN, listen, messages_only
from mm_ldlm.inference.files import run_of


@click.command("explore")
@click.option("--run", "runs", multiple=True, help=f"{RUN} Several --run are compared side by side.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the page listens on.")
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0 chooses a free port.")
@click.option("--device", help="cpu, cuda or cuda:N; by default the first GPU if there is one.")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in the browser.")
def explore(runs: tuple[str, ...], host: str, port: int, device: str | None, browser: bool) -> None:
    """Explore runs on a local page: watch an embedding become text, change words, interpolate between sentences."""
    with messages_only(), contextlib.suppress(KeyboardInterrupt):
        found = [run_of(run) for run in runs or (None,)]
        listener = listen(host, port)
        from mm_ldlm.extras.explorer.server import serve

        serve(found, listener, device=device, browser=browser)
