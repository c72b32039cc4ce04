"""Latents: the encoder's vectors on disk, validated before training.

This room contains the latent store, the resumable extraction that fills it, the checks that decide which rows are
valid, the normaliser, and the store of token vectors. Nothing here trains or samples, and nothing imports Kedro. Stores
contain the raw vectors of the encoder; the rooms above use standardised vectors.
"""
