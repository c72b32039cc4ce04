"""The explorer: a local page for trying finished runs in the browser."""

COMPONENTS: dict[str, dict[str, str]] = {"commands": {"explore": "mm_ldlm.extras.explorer.command:explore"}}
