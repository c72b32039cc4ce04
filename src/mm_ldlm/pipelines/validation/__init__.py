"""`validation`: stores → report, quarantine, plots, index, normalisers, and a dataset that names them.

The work is done in `mm_ldlm.data.latents` and `mm_ldlm.data`.
"""
