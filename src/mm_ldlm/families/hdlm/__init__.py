"""HDLM: hierarchical diffusion from tokens over clusters to masks."""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_processes": {"hdlm": "mm_ldlm.families.hdlm.process:HdlmConfig"},
    "sections": {"token_clusters": "mm_ldlm.data.latents.config:TokenClustersConfig"},
}
