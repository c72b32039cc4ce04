"""Options of texts given latents for the conformance suites."""

OPTIONS = {
    ("objectives", "latent_conditioned"): [
        {},
        {"condition_dropout": 0.5, "_model": {"kind": "latent_dit"}},
        {"length_weight": 0.0, "_model": {"kind": "latent_dit_adaln", "unit_latents": True}},
    ]
}
MODELS = {"latent_conditioned": {"kind": "latent_dit_cross"}}
