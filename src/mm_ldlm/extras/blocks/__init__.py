"""The text sampler `blocks`: block by block from left to right, also beyond the model's window."""

COMPONENTS: dict[str, dict[str, str]] = {"text_samplers": {"blocks": "mm_ldlm.extras.blocks.sampler:BlocksConfig"}}
