"""Encoders of the kind `precomputed`: the sources contain the vectors."""

COMPONENTS: dict[str, dict[str, str]] = {
    "checks": {"own_vectors": "mm_ldlm.extras.own_vectors.checks:problems"},
    "encoders": {"precomputed": "mm_ldlm.extras.own_vectors.encoder:PrecomputedEncoderConfig"},
}
