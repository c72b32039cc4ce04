"""Command `mm-ldlm explore`."""

import contextlib
import errno
import socket

import click

from mm_ldlm.app.console import RUN, address, messages_only
from mm_ldlm.core import SamplingError
from mm_ldlm.inference.files import run_of


@click.command("explore", epilog=f"RUN: {RUN}")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--host", type=address, default="127.0.0.1", show_default=True, help="Address that the page listens on.")
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0 chooses a free port.")
@click.option("--device", help="cpu, cuda or cuda:N; by default the first GPU if there is one.")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in the browser.")
def explore(runs: tuple[str, ...], host: str, port: int, device: str | None, browser: bool) -> None:
    """Open a local page on RUN: watch an embedding become text, change words, interpolate between sentences.

    Several runs can be compared side by side.
    """
    with messages_only(), contextlib.suppress(KeyboardInterrupt):
        found = [run_of(run) for run in runs or (None,)]
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            expected, remedy = ("a free port", "--port") if taken else ("an address of this machine", "--host")
            reason = f"expected {expected}, found that {host}:{port} cannot be opened ({error.strerror})"
            raise SamplingError(f"{reason}. Choose another {remedy}.") from None
        from mm_ldlm.extras.explorer.server import serve

        serve(found, listener, device=device, browser=browser)
