"""Checkpoints of other trainers: import, export and initial weights."""

COMPONENTS: dict[str, dict[str, str]] = {}
