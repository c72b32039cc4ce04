"""The identities of a checkpoint and a run are compared in both directions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mm_ldlm.core.config import parse_kind, to_dict
from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.models.registry import MODELS
from mm_ldlm.training.checkpoints.identity import differences, refuse_other


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


@pytest.mark.parametrize("key", ["mlp_bias", "mlp_activation", "time_factor", "dropout"])
def test_a_parameter_that_an_earlier_version_lacked_has_its_default(key: str) -> None:
    """A checkpoint without it fits a run with the default, and no other run."""
    mine = to_dict(parse_kind(MODELS, {"kind": "dit"}, at="model"))
    theirs = {"model": {name: value for name, value in mine.items() if name != key}, "tokenizer": "t"}
    refuse_other({"model": mine, "tokenizer": "t"}, theirs, Path("c"), remedy="")
    changed = {"mlp_bias": True, "mlp_activation": "gelu_tanh", "time_factor": 1.0, "dropout": 0.5}[key]
    words = re.escape(
        f"c belongs to another model:\n  model.{key}: checkpoint has {mine[key]!r}, this run {changed!r}\nDo"
    )
    with pytest.raises(CheckpointError, match=words):
        refuse_other({"model": {**mine, key: changed}, "tokenizer": "t"}, theirs, Path("c"), remedy="Do it")
    with pytest.raises(CheckpointError, match="expected the identity of its run, found None"):
        refuse_other({}, None, Path("c"), remedy="")


def test_several_differences_are_three_lines_whatever_a_file_contains() -> None:
    theirs = {"model": {"dim": 8, "depth": 2}, "a\nb": "x" * 5000, "tokenizer": {"": "t"}, "u": 1, "v": 2}
    mine = {"model": {"dim": 9, "depth": 2}, "a\nb": 1, "tokenizer": "t", "u": 3, "v": 4}
    with pytest.raises(CheckpointError) as refused:
        refuse_other(mine, theirs, Path("c"), remedy="Do it.")
    first, second, third = str(refused.value).split("\n")
    assert (first, third) == ("c belongs to another model:", "Do it.")
    assert second.startswith("  a\\nb: checkpoint has 'xxx")
    assert second.endswith(
        "xxx', this run 1; model.dim: checkpoint has 8, this run 9; tokenizer: checkpoint has 'nothing', this run 't'; "
        "tokenizer.: checkpoint has 't', this run 'nothing'; and 2 more: u, v"
    )
    assert len(second) < 400
