"""Validated dataset: one artifact that names the stores of a corpus, and the functions that read it.

This room contains the manifest `dataset.json` with its reader (`dataset`), the features that an objective or a model
reads (`features`), the index of valid examples and the quarantine (`index`), held-out sentences (`held_out`), and
batches of similar lengths (`inference_batches`). The rooms below write the stores of records, tokens and vectors; this
room does not train, sample or score. Training workers import it, so it imports neither Kedro, MLflow, `datasets` nor
transformers.
"""
