"""Inference: load a run folder as a model that embeds, inverts, generates, edits and scores.

`MMLDLM` (`api`) is the Python interface: the loaded model (`model`: its parts, and the conversion of texts and
latents) with its requests, which are functions (`generating` and `reading`). Families add others under the group
`requests`. `arguments` checks texts, ids, latents and samplers that callers pass; `files` reads texts and
vectors, and finds runs. `loading` reads a run folder, `writing` computes the batches of a request, and `results` are
the returned tables. `objectives` defines what a model can do, and how it samples and scores. This room imports neither
Kedro nor MLflow.
"""
