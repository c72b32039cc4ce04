"""Numbers that can be defended: what a run is worth, with intervals, beside its baselines.

What lives here: STS, inversion, language-model quality, latent quality, comparison of runs and the report, as pure
functions on lists, arrays and callables. What may not: Kedro, MLflow, training, sampling loops of our own. Nothing
here turns a failure
into a number: an exception stays an exception, a non-finite value is refused, and every set is scored whole.
"""
