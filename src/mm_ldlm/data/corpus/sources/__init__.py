"""Sources of text: each yields rows and damaged rows, with their location.

`base` has the keys of every kind, the rows, named columns and the registry; `lines` reads texts, `jsonl` reads JSONL
files, and `table` chooses a kind by the name of a file. Families and extras register further sources, such as CSV
files and data sets of the hub.
"""

from mm_ldlm.data.corpus.sources.base import SOURCES, Opening, Row, SourceConfig

__all__ = ["SOURCES", "Opening", "Row", "SourceConfig"]
