"""Latents: the encoder's vectors on disk, validated before training.

This room contains the stores of latents and token vectors, the resumable extraction of latents, the normaliser, and
the recognition of vectors. Nothing here trains or samples, and nothing imports Kedro. Stores contain the raw vectors of
the encoder; the rooms above use standardised vectors.
"""
