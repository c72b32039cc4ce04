"""Parameters of experiment tracking."""

import re

from mm_ldlm.core import config, mask, refuse_if

ADDRESS = re.compile(
    r"^((sqlite|https?|file|uc|(mysql|postgresql|mssql)(\+[a-z0-9]+)?)://(?=\S)([\w.-]*|\[[\da-f:.]+\])(:\d+)?([/?#]\S*)?"
    r"|databricks(://[\w.-]+(:[\w.-]+)?)?|[\w./-]+)$"
)
"""Addresses that MLflow reads, with a host and the number of a port; a text without a scheme is a folder."""
EXPECTED = "expected the address of an MLflow server or database (sqlite:///FILE, http://HOST:PORT, …)"


@config
class TrackingConfig:
    """Parameters under `tracking`.

    Attributes:
        enabled: false disables MLflow; the log in the run folder is always written.
        uri: MLflow tracking URI, without credentials, which MLflow reads from the environment. A relative `sqlite:///`
            path is resolved from the project's root.
        experiment: MLflow experiment, created when missing.
        run_name: name of the MLflow run; null derives it from pipelines and environment.
        parent_run: id of the MLflow run that this one is nested in; null for none.
        system_metrics: record the load of processor, memory, disk, network and GPU every 10 seconds.
        log_model: log the model of an evaluated run, for `mlflow models serve`, without the weights of its encoder.
        register: name in the model registry under which a logged model gets the alias "best", if its evaluation is
            better than the one that has it; null for none.
    """

    enabled: bool
    uri: str
    experiment: str
    run_name: str | None = None
    parent_run: str | None = None
    system_metrics: bool = True
    log_model: bool = True
    register: str | None = None

    def __post_init__(self) -> None:
        # The refusal does not repeat the address: it may be a password.
        refuse_if(
            not ADDRESS.match(self.uri) or re.search("@|%40", self.uri) or mask(self.uri) != self.uri,
            f"{EXPECTED} without user, password or token, because it is stored with every run, found another text. Set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment",
            "uri",
        )
