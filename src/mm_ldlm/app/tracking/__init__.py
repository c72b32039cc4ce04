"""Tracking: the metrics and events of a run, in a file, on the terminal and in MLflow.

This room contains the `Tracker` protocol, the JSONL log that a worker writes, the follower that reads it, the progress
line and MLflow (in `mlflow.py` only). Nothing here depends on the meaning of the numbers.
"""
