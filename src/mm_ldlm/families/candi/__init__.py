"""CANDI: masked text whose masks still show their token through Gaussian noise."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"candi": "mm_ldlm.families.candi.objective:CandiConfig"},
    "text_samplers": {"candi": "mm_ldlm.families.candi.objective:CandiSampler"},
}
