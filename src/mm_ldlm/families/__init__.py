"""Families: everything of one model or method in one folder, which can be deleted.

Nothing outside a family imports it or names it; `COMPONENTS` of its `__init__.py` lists its parts (`core.registry`).
"""
