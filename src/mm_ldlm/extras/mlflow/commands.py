"""Command `mm-ldlm send-runs`."""

from pathlib import Path

import click

from mm_ldlm.app.console import messages_only


@click.command("send-runs")
@click.argument("uri")
@click.option("--data", default="data", show_default=True, help="Folder with mlflow_local.db.")
def send_runs(uri: str, data: str) -> None:
    """Send runs that were recorded locally, because their MLflow store did not answer, to the store URI.

    No run is sent twice. The model of a run with `tracking.register` is registered.
    """
    from mm_ldlm.core import TrackingError, mask, reason_of
    from mm_ldlm.core.files import InputFile
    from mm_ldlm.extras.mlflow.client import LOCAL, MlflowRun, resolved
    from mm_ldlm.extras.mlflow.config import ADDRESS, EXPECTED
    from mm_ldlm.extras.mlflow.unsent_runs import send_runs as sent

    with messages_only():
        if not ADDRESS.match(uri):
            raise TrackingError(f"{EXPECTED}, found another text. Correct the URI.")
        file = InputFile(
            Path(data) / Path(LOCAL).name, error=TrackingError,
            remedy="Nothing was recorded locally, or --data names another folder.",
        ).check()  # fmt: skip
        click.echo(f"Connecting to {mask(uri)} …", err=True)
        try:
            store = resolved(uri, Path())
            MlflowRun(store, "").probe()
            for name, run_id in sent(f"sqlite:///{file.resolve().as_posix()}", store):
                click.echo(f"{name}: {run_id}")
        except Exception as error:  # requests, SQLAlchemy and MLflow have different classes
            raise TrackingError(
                f"{mask(uri)}: the store did not accept a run ({reason_of(error)}). Give the same command again when "
                "it answers."
            ) from None
        click.echo("Every finished run was sent.", err=True)
