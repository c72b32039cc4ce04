"""The explorer: a local page on which a person plays with finished runs."""

COMPONENTS: dict[str, dict[str, str]] = {"commands": {"explore": "mm_ldlm.extras.explorer.command:explore"}}
