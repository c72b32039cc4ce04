"""MLflow: the record of every run, its curves, and the metrics of earlier runs for comparisons.

`hooks.py` decides what is recorded when, and `client.py` is the only file that imports MLflow. A run never ends because
its tracking store is unavailable.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"tracking": "mm_ldlm.extras.mlflow.config:TrackingConfig"},
    "hooks": {"mlflow": "mm_ldlm.extras.mlflow.hooks:TrackingHooks"},
}
