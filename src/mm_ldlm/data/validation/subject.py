"""Inputs of the checks of validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mm_ldlm.data.encoders import LocatedEncoder
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.store import ShardStore


@dataclasses.dataclass(frozen=True)
class Subject:
    """Stores and parameters that the checks read.

    Attributes:
        plan: the features that objective and model read.
        stores: records, tokens and the stores of the features, by name.
        located: the encoder of the latents; None without latents, and the encoder is then not compared.
        config: the section `validation`, with the keys of extras.
        sections: all typed sections that validation reads, by name.
        evaluation_sets: texts by the name of the set, which must not be trained on.
    """

    plan: Mapping[str, Feature]
    inputs: Inputs
    stores: Mapping[str, ShardStore]
    located: LocatedEncoder | None
    config: Any
    sections: Mapping[str, Any]
    evaluation_sets: Mapping[str, Sequence[str]]
