"""DiT of FlexMDM: the tokens of the masks, and how many tokens are missing in each gap (arXiv:2509.01025).

B batch, L text length, P = L + 1 gaps, M chosen positions, V vocabulary, D dim, C conditioning dim.
"""

import dataclasses
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core import config
from mm_ldlm.models.attention import key_mask
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.dit import DiTOptions, TextTransformer
from mm_ldlm.models.heads import Modulated
from mm_ldlm.models.parts import tag


class Output(NamedTuple):
    """Predictions of the model."""

    logits: Tensor
    """(B, L, V), or (M, V) at the chosen positions; unnormalised"""
    log_counts_BP: Tensor
    """float32: log of the expected number of missing tokens in each gap; gap p precedes token p"""


class InsertionModel(Protocol):
    """Denoiser of a text of which tokens are missing, called as `InsertionDiT`."""


@config
class InsertionDiTConfig(DiTOptions):
    """Kind `insertion_dit`: a DiT with a head for the number of missing tokens in place of one for the length."""

    interface: ClassVar[type] = InsertionModel
    kind: str = "insertion_dit"

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "InsertionDiT":
        """Build the model on the CPU in float32; see `models.base.ModelConfig.build`."""
        return build_on_meta(lambda: InsertionDiT(self, shape), generator)


class InsertionDiT(TextTransformer):
    """See `forward`. At the start all logits are 0, and one token is expected in each gap."""

    def __init__(self, config: InsertionDiTConfig, shape: DataShape) -> None:
        super().__init__(config, dataclasses.replace(shape, max_length=shape.max_length + 1))
        self.insertion_head = tag(Modulated(config, config.dim, 1), "insertion_head")

    def forward(
        self, tokens_BL: Tensor, *, valid_BL: Tensor | None, t_B: Tensor, logits_at: Tensor | None = None
    ) -> Output:
        """Predict the token of every position, and the number of missing tokens before it and after the last one.

        Args:
            tokens_BL: words and [MASK]; pads follow the text, and the first of them marks its end.
            valid_BL: true at real tokens; None where there is no padding.
            t_B: timestep, from 0 (clean) to 1 (empty).
            logits_at: (B, L) bool; the logits are computed at these M positions only, in row-major order.
        """
        ended_BP = F.pad(tokens_BL, (0, 1), value=self.shape.pad_id)
        valid_BP = None if valid_BL is None else F.pad(valid_BL, (1, 0), value=True)
        c_BC = self.time(self.time_features(t_B))
        x_BPD = self.hidden(ended_BP, mask=key_mask(valid_BP), c_BC=c_BC)
        logits = self.head(x_BPD[:, :-1], c_BC=c_BC, logits_at=logits_at)
        return Output(logits, self.insertion_head(x_BPD, F.silu(c_BC)).squeeze(-1))
