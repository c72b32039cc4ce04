"""Objectives: model + batch + generator → sums and counts of losses.

What lives here: what a training step computes, as pure functions of a batch and a generator. What may not: files,
optimizers, process groups, and any normalisation by what this rank alone happens to hold.
"""
