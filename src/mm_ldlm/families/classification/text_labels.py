"""Labels that are functions of the text, for `objective.label: package.module:function`."""

MOST_WORDS = 99


def num_words(text: str) -> str:
    """Return the number of words as a string of two digits, at most 99.

    It is the probing task "sentence length" (SentLen) of Conneau et al. 2018, arXiv:1805.01070, with one class for each
    number.
    """
    return f"{min(len(text.split()), MOST_WORDS):02d}"
