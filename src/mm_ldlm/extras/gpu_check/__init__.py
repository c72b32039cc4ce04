"""Acceptance check of a GPU."""

COMPONENTS: dict[str, dict[str, str]] = {}
