"""Latents: the encoder's vectors on disk, trusted before anything trains on them.

Here live the latent store, the resumable extraction that fills it, the checks that decide which rows are valid and
write the index, the normaliser, and the older folder layout. Nothing here trains or samples; nothing imports Kedro. Raw
encoder vectors stay in stores and at this room's edge: everything above works on what the normaliser gives.
"""

from mm_ldlm.latents.normaliser import Normaliser, NormaliserConfig
from mm_ldlm.latents.store import LatentStore

__all__ = ["LatentStore", "Normaliser", "NormaliserConfig"]
