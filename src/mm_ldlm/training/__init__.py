"""Training: one loop for every model and objective, with its guard and its checks.

What lives here: the worker entry, the loop, batches, optimizers, the guard, diagnostics and preflight checks.
What may not: Kedro, MLflow, pandas, `datasets` (the worker runs on bare GPU hosts), and, in the loop, any knowledge of
which objective runs.
"""
