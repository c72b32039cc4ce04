"""`embedding`: records → latents, and the features that the objective and the model read.

The work is done in `mm_ldlm.data.latents` and `mm_ldlm.data.features`.
"""
