"""Comparison of several models under one budget."""

COMPONENTS: dict[str, dict[str, str]] = {}
