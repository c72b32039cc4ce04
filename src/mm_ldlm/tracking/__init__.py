"""Tracking: numbers of a run on their way to a file, to a terminal, to MLflow.

What lives here: the `Tracker` seam, the JSONL log that a worker writes and others follow, MLflow. What may not:
anything that knows what the numbers mean, and MLflow outside `mlflow.py`.
"""
