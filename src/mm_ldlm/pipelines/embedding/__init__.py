"""`embedding`: records → latents and images, tokens of the vocabulary → token vectors.

The work is done in `mm_ldlm.data.latents`.
"""
