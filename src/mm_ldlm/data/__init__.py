"""Validated dataset: one artifact that names the stores of a corpus, and the functions that read it.

This room contains the manifest `dataset.json` with its reader (`dataset`), the features that an objective or a model
reads (`features`), the index of valid examples and the quarantine (`index`), sentences of a split (`sentences`), and
batches of similar lengths (`batching`). The rooms below write the stores of records, tokens and vectors; this room does
not train, sample or score. Training workers import it, so it imports neither Kedro, MLflow, `datasets` nor
transformers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_ldlm.data.dataset import Dataset, commit

__all__ = ["Dataset", "commit"]


def __getattr__(name: str) -> Any:  # the graph of Kedro is built without torch, which the reader imports
    if name in __all__:
        from mm_ldlm.data import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
