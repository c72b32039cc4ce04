"""`training`: plan (parameters and fingerprints -> one spec), then run (spec -> run reference).

The work is done in `mm_ldlm.training`.
"""
