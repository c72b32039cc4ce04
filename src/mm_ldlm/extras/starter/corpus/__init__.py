"""The starter corpus: sentences about everyday scenes that the project writes itself, and graded pairs of them.

This room contains a lexicon (`words`), the possible scenes (`activities`, `facts`), the sentence shapes (`scenes`,
`shapes`), the corpus with held-out combinations (`generate`) and the graded pairs (`sts`). The standard
library only; no files, no downloads, no global state: the same seed gives the same sentences everywhere.
"""

from .generate import StarterSentence, generate_starter_corpus
from .sts import STSPair, generate_starter_sts

__all__ = ["STSPair", "StarterSentence", "generate_starter_corpus", "generate_starter_sts"]
