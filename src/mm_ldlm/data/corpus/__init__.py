"""Text and tokens: from sources to records, and from records to token ids.

This room contains the sources (files, data sets of the hub and on disk), ingestion with normalisation, splits,
filters, duplicate removal and quarantine, and the tokenizer with its token store. Embeddings belong to `encoders` and
`latents`, Kedro nodes to the pipelines. Nothing here imports `datasets` or `transformers` at module level.
"""
