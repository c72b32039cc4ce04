"""The keyed hash that divides records into splits."""

import random

from mm_ldlm.data.corpus.splits import SplitConfig


def test_rows_that_a_source_holds_out_are_divided_again() -> None:
    """By another part of the digest than the one by which a hash split with this key may have held them out."""
    fractions, digests = SplitConfig(validation=0.25, test=0.25), [random.Random(i).randbytes(16) for i in range(2000)]
    held = [digest for digest in digests if fractions.split_of(digest) != "train"]
    divided = [fractions.split_of(digest, held_out=True) for digest in held]
    assert set(divided) == {"validation", "test"}
    assert abs(divided.count("test") / len(held) - 0.5) < 0.05
