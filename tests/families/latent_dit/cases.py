"""Options of texts given latents for the conformance suites."""

OPTIONS = {("objectives", "latent_conditioned"): [{}, {"condition_dropout": 0.5, "_model": {"kind": "latent_dit"}}]}
MODELS = {"latent_conditioned": {"kind": "latent_dit_cross"}}
