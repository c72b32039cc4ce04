"""`validation`: records, tokens, latents → report, quarantine, plots, index, normaliser, and a dataset that names them.

The work is done in `mm_ldlm.data.latents.checks` and `mm_ldlm.data`.
"""
