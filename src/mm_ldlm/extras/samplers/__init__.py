"""Further samplers: two orders of unmasking, and solvers of the latents' flow."""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_samplers": {
        "margin": "mm_ldlm.extras.samplers.orders:MarginConfig",
        "entropy_bounded": "mm_ldlm.extras.samplers.orders:EntropyBoundedConfig",
    },
    "latent_samplers": {
        "euler": "mm_ldlm.extras.samplers.solvers:EulerConfig",
        "heun": "mm_ldlm.extras.samplers.solvers:HeunConfig",
        "dpmpp_2m": "mm_ldlm.extras.samplers.solvers:Dpmpp2mConfig",
    },
}
