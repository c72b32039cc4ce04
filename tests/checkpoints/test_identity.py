"""The identities of a checkpoint and a run are compared in both directions."""

from __future__ import annotations

from mm_ldlm.checkpoints.identity import differences


def test_what_only_one_side_has_is_a_difference() -> None:
    both = {"model": {"dim": 8}, "tokenizer": "t"}
    more = {"model": {"dim": 8, "depth": 2}, "tokenizer": "t"}
    assert differences(both, both) == []
    assert differences(both, more) == ["model.depth: checkpoint has 'nothing', this run 2"]
    assert differences(more, both) == ["model.depth: checkpoint has 2, this run 'nothing'"]
    assert differences(both, {"model": {"dim": 9}, "tokenizer": "u"}) == [
        "model.dim: checkpoint has 8, this run 9",
        "tokenizer: checkpoint has 't', this run 'u'",
    ]
