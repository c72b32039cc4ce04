"""Checkpoints: written atomically and checked when read.

This room contains the checkpoint folder (safetensors and JSON, with a marker written last), retention, the names in the
folder of a run, the identity and provenance of weights, and their loading. Nothing here depends on the meaning of the
tensors.
"""
