"""The traits that a configuration declares before there are data are those of the process that it builds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.registry import TEXT_PROCESSES

IDS = {"vocab_size": 6, "pad_id": 0, "mask_id": 5}
STORES = {"token_clusters": torch.tensor([[-1], [0], [1], [0], [1], [-1]])}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "gidd": [{"p_uniform": 0.0}, {"p_uniform": 0.2}],
    "sedd": [{"graph": "absorbing"}, {"graph": "uniform"}],
}
CASES = [(kind, options) for kind in TEXT_PROCESSES.known for options in OPTIONS.get(kind, [{}])]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_configuration_declares_the_traits_of_its_process(kind: str, options: dict[str, Any]) -> None:
    config = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")
    assert config.traits == config.build(**IDS, **{name: STORES[name] for name in config.stores}).traits
