"""Scores of the latents that a model samples for texts, such as cosine, retrieval and Fréchet distance."""

COMPONENTS: dict[str, dict[str, str]] = {
    "keys": {"evaluation.latents": "mm_ldlm.extras.latent_scores.config:LatentsKeys"},
    "suites": {"latents": "mm_ldlm.extras.latent_scores.suite:Latents"},
}
