"""CANDI: masked diffusion in which each mask also has its token's one-hot vector under Gaussian noise."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"candi": "mm_ldlm.families.candi.objective:CandiConfig"},
    "text_samplers": {"candi": "mm_ldlm.families.candi.objective:CandiSampler"},
}
