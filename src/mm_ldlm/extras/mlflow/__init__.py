"""MLflow: records every run with its curves and its model, and reads the metrics of earlier runs for comparisons.

`hooks.py` decides what is recorded when, and `client.py` talks to the store. A run never ends because its tracking
store is unavailable: what the store did not accept is recorded locally, and `mm-ldlm send-runs` sends it later.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"tracking": "mm_ldlm.extras.mlflow.config:TrackingConfig"},
    "hooks": {"mlflow": "mm_ldlm.extras.mlflow.hooks:TrackingHooks"},
    "commands": {"send-runs": "mm_ldlm.extras.mlflow.commands:send_runs"},
}
