"""Text and tokens: from sources to records, from records to token ids.

Here live the sources (files, hub and disk data sets, the starter corpus, the older folder layout), normalisation, ids,
splits, duplicate removal, quarantine, and the tokenizer with its vocabulary. What knows embeddings belongs to
`encoders` and `latents`; what knows Kedro belongs to the pipelines. Nothing here imports `datasets` or `transformers`
at module level.
"""
