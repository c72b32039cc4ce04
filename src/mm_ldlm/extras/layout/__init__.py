"""Older folder layout: read as a source, written as an export."""

COMPONENTS: dict[str, dict[str, str]] = {"sections": {"export": "mm_ldlm.extras.layout.export:ExportConfig"}}
