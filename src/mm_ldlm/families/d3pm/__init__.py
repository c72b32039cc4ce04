"""D3PM: absorbing diffusion in discrete time."""

COMPONENTS: dict[str, dict[str, str]] = {"text_processes": {"d3pm": "mm_ldlm.families.d3pm.process:D3pmConfig"}}
