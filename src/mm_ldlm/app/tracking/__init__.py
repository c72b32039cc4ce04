"""Tracking: the record of a run in MLflow, and the line of its progress on the terminal.

`hooks.py` decides what is recorded when, `mlflow.py` is the only file that imports MLflow, and `progress.py` follows
the log of a training. A run never ends because its tracking store is unavailable.
"""
