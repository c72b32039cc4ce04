"""Validation: check all stores against one another, the tokenizer and the encoder before training.

`checks` has the list of checks and runs it; each is a function that returns findings (`findings`). `texts` checks
records and tokens, `vectors` the latents and their statistics, and `figures` draws the latter. A feature adds findings
of its own (`data.features`). Nothing here changes a store.
"""
