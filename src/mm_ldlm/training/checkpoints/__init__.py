"""Checkpoints: written atomically and checked when read.

This room contains the checkpoint folder (safetensors and JSON, with a marker written last), retention, the background
writer, the loading of weights, and the reading and conversion of checkpoints of other trainers
(`model.pt`). Only `formats` and `converting` depend on the meaning of the tensors, and nothing uses unrestricted
pickles.
"""
