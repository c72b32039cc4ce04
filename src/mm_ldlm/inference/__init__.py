"""A trained model in Python: a run folder turned back into something that embeds, inverts, writes, edits and scores.

`MMLDLM` is the face; `edge` stands between texts and raw latents outside, ids and standardised latents inside;
`network` shows the network to the samplers, `results` are the tables that come back, `inputs` what is refused at the
door, `scoring` the likelihood bound. This room may use models, samplers, objectives, stores, encoders and checkpoints;
it knows neither Kedro nor MLflow.
"""

from mm_ldlm.inference.api import MMLDLM

__all__ = ["MMLDLM"]
