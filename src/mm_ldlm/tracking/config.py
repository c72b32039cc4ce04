"""Where runs are recorded."""

from __future__ import annotations

from mm_ldlm.config import config


@config
class TrackingConfig:
    """Parameters under `tracking`.

    Attributes:
        enabled: False records nothing; the run folder's own log is written all the same.
        uri: MLflow tracking URI. A relative `sqlite:///` path counts from the project's root, wherever `kedro` was
        started. experiment: MLflow experiment, made when missing.
        run_name: name of the MLflow run; null names it after its pipelines and environment.
    """

    enabled: bool
    uri: str
    experiment: str
    run_name: str | None = None
