"""Inference: load a run folder as a model that embeds, inverts, generates, edits and scores.

`MMLDLM` is the Python interface: the signatures and their documentation. The requests are functions over an `Engine`,
one file for each purpose (`inverting`, `editing`, `embedding`, `scoring`, `classifying`, `images`). `edge` converts
texts and raw latents to ids and standardised latents, and back; `inputs` checks arguments, `memory` the size of a
request, `finite` what the model returned; `results` contains the returned tables. `objectives` defines what a model can
do, and how it samples and scores. This room imports neither Kedro nor MLflow.
"""

from mm_ldlm.inference.api import MMLDLM

__all__ = ["MMLDLM"]
