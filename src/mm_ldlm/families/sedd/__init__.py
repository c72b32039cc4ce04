"""SEDD: score entropy diffusion."""

COMPONENTS: dict[str, dict[str, str]] = {"text_processes": {"sedd": "mm_ldlm.families.sedd.process:SeddConfig"}}
