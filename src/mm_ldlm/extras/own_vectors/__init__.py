"""Latents that the sources contain already."""

COMPONENTS: dict[str, dict[str, str]] = {
    "encoders": {"precomputed": "mm_ldlm.extras.own_vectors.encoder:PrecomputedEncoderConfig"}
}
