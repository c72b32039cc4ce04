"""Checkpoints: written whole or not at all, checked when read.

What lives here: folders of safetensors and JSON with a marker written last, retention, writing in the background, the
older `model.pt` layout. What may not: what the tensors mean, and any unrestricted pickle.
"""
