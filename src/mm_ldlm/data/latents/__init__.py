"""Latents: the encoder's vectors on disk, validated before training.

This room contains the latent store, the resumable extraction that fills it, the checks that decide which rows are
valid, the normaliser, and the store of token vectors. Nothing here trains or samples, and nothing imports Kedro. Raw
encoder vectors stay in stores; the rooms above use standardised vectors.
"""
