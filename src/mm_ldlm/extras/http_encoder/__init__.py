"""Encoder behind an HTTP service."""

COMPONENTS: dict[str, dict[str, str]] = {"encoders": {"http": "mm_ldlm.extras.http_encoder.encoder:HttpEncoderConfig"}}
