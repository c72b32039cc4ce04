"""HDLM: hierarchical diffusion from tokens over clusters to masks."""

COMPONENTS: dict[str, dict[str, str]] = {
    "text_processes": {"hdlm": "mm_ldlm.families.hdlm.process:HdlmConfig"},
    "features": {"token_clusters": "mm_ldlm.families.hdlm.token_clusters:TokenClusters"},
    "sections": {"hdlm": "mm_ldlm.families.hdlm.token_clusters:HdlmSection"},
}
