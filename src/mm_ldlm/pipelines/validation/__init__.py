"""`validation`: stores → report, quarantine, plots, index, normalisers, and a dataset that names them.

The work is done in `mm_ldlm.data.validation` and `mm_ldlm.data`.
"""
