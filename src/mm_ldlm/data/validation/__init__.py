"""Validation: check all stores against one another, the tokenizer and the encoder before training.

`checks` has the checks of all stores, each a function that returns findings (`findings`), and the registry of further
checks. Features add their own findings (`data.features`). Nothing here changes a store.
"""
