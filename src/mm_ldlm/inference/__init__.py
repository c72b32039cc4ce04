"""Inference: load a run folder as a model that embeds, inverts, generates, edits and scores.

`MMLDLM` (`api`) is the Python interface: the loaded model (`model`) with its requests, which are functions, a file for
each purpose (`inverting`, `editing`, `embedding`, `scoring`). Families add others under the group `requests`.
`arguments` is the door: texts, ids, latents and samplers as callers give them. `conversion` contains what enters and
leaves the model (encoder, normaliser, unknown words), `batches` and `writing` the work in between, `verbatim` the words
of a text that stay, and `results` the returned tables. `objectives` defines what a model can do, and how it samples and
scores. This room imports neither Kedro nor MLflow.
"""

from mm_ldlm.inference.api import MMLDLM

__all__ = ["MMLDLM"]
