"""Sources of text: each yields rows and bad rows.

To add a kind, add its keys in `config`, write its reader in a file of its own, and choose it in `registry`.
"""

from mm_ldlm.data.corpus.sources.base import BadRow, Row, Source
from mm_ldlm.data.corpus.sources.config import SourceConfig

__all__ = ["BadRow", "Row", "Source", "SourceConfig"]
