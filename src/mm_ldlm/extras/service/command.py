"""Command `mm-ldlm serve`."""

import contextlib
import logging
import os
from typing import Any, get_type_hints

import click

from mm_ldlm.app.console import LOADING, listen, messages_only
from mm_ldlm.core import ConfigurationError, Precision, parse
from mm_ldlm.extras.service.requests import Limits
from mm_ldlm.inference.files import run_of


@click.command("serve", params=[*LOADING])
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: all addresses.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 chooses a free one.")
@click.option("--key-variable", help="Name of the environment variable with the key that requests have to send.")
def serve(
    run: str | None, checkpoint: str, device: str | None, precision: Precision, host: str, port: int,
    key_variable: str | None, **limits: Any,
) -> None:  # fmt: skip
    """Serve a run over HTTP: its requests, and embeddings in the convention of OpenAI.

    The page /docs explains every request. Ctrl-C or SIGTERM stops the service after the requests that it has received.
    """
    with messages_only():
        bounds, key = parse(Limits, limits, at="serve"), None if key_variable is None else _key(key_variable)
        try:
            import uvicorn

            from mm_ldlm.extras.service.app import build
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"serve needs the package '{error.name}'. Install it: pip install -c constraints.txt -e '.[service]'"
            ) from None
        from mm_ldlm.inference.api import MMLDLM

        listener = listen(host, port)
        model = MMLDLM.from_run(run_of(run), checkpoint=checkpoint, device=device, precision=precision)
    host, port = listener.getsockname()[:2]
    click.echo(f"{model!r}\nhttp://{f'[{host}]' if ':' in host else host}:{port}/docs explains the requests.", err=True)
    logging.getLogger("mm_ldlm.inference").setLevel(logging.ERROR)  # its warnings quote the texts of clients
    served = uvicorn.Config(
        build(model, bounds, key=key), access_log=False, server_header=False, limit_concurrency=512,
        timeout_graceful_shutdown=60,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(served).run(sockets=[listener])


def _key(name: str) -> str:
    value = os.environ.get(name, "")
    if not (value and value.isascii() and value.isprintable()):
        raise ConfigurationError(
            "--key-variable: expected the name of an environment variable with a key of printable ASCII characters, "
            "found none. Set the variable, not the option, to the key."
        )
    return value


for _name, _hint in get_type_hints(Limits, include_extras=True).items():
    _default = getattr(Limits, _name)
    click.option(
        f"--{_name.replace('_', '-')}", type=type(_default), default=_default, show_default=True,
        help=_hint.__metadata__[-1].description,
    )(serve)  # fmt: skip
