"""DiT that writes a text given its latent, by adaLN or by cross-attention."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"latent_conditioned": "mm_ldlm.families.latent_dit.objective:LatentConditionedConfig"},
    "models": {
        "latent_dit": "mm_ldlm.families.latent_dit.model:LatentDiTConfig",
        "latent_dit_adaln": "mm_ldlm.families.latent_dit.adaln:LatentDiTAdaLNConfig",
        "latent_dit_cross": "mm_ldlm.families.latent_dit.model:LatentDiTCrossConfig",
    },
    "checkpoint_trainers": {"cmdlm": "mm_ldlm.families.latent_dit.trainers:CMDLM"},
}
