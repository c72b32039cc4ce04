"""ReMDM: samplers of masked diffusion that mask written tokens again (arXiv:2503.00307)."""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_samplers": {
        "remdm_cap": "mm_ldlm.families.remdm.sampler:RemdmCapConfig",
        "remdm_rescale": "mm_ldlm.families.remdm.sampler:RemdmRescaleConfig",
        "remdm_conf": "mm_ldlm.families.remdm.sampler:RemdmConfConfig",
        "remdm_loop": "mm_ldlm.families.remdm.sampler:RemdmLoopConfig",
    }
}
