"""Extras: formats, services and tools that the core does without, each in one folder.

Nothing outside an extra imports it or names it; `COMPONENTS` of its `__init__.py` lists its parts (`core.registry`).
"""
