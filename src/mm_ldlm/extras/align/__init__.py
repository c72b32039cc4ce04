"""Adapters from the vectors of another encoder to a trained run, fitted on pairs of texts and vectors.

`data/latents/adapter.py` defines what an adapter is, and `inference/loading.py` reads it.
"""

COMPONENTS: dict[str, dict[str, str]] = {"commands": {"align": "mm_ldlm.extras.align.command:align"}}
