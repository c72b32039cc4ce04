"""Validation: check all stores against one another, the tokenizer and the encoder before training.

`checks` checks records and tokens, and has the list of all checks; each is a function that returns findings
(`findings`). `vectors` checks the latents and draws their statistics. Features add their own findings
(`data.features`). Nothing here changes a store.
"""
