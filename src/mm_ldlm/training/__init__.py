"""Training: one loop for every model and objective, with its guard and its observers.

This room contains the worker, the loop, batches, optimizers, the guard and checkpoints. Extras observe the loop.
It imports neither Kedro, MLflow, pandas nor `datasets`, because the worker runs on bare GPU hosts. The loop does not
depend on the objective.
"""
