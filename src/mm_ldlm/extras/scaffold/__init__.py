"""Packages for new components outside the project: `mm-ldlm new`."""

COMPONENTS: dict[str, dict[str, str]] = {"commands": {"new": "mm_ldlm.extras.scaffold.command:new"}}
