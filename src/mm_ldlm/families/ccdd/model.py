"""CCDD: a DiT over the tokens of a text and one noised continuous state per token (arXiv:2510.03206).

The state of a token is mapped linearly and added to the embedding of the token at the same position, so that one trunk
denoises both (the MDiT of the paper). Two heads read the trunk: logits over the vocabulary, and the clean states.

B batch, L text length, M chosen positions, V vocabulary, D dim, C conditioning dim, d state dimension,
N longest length.
"""

from collections.abc import Container
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core import config
from mm_ldlm.models.attention import key_mask
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.blocks import Linear, modulate
from mm_ldlm.models.dit import DiTOptions, TextTransformer
from mm_ldlm.models.embeddings import TIME_FEATURES, Conditioner, NullEmbedding
from mm_ldlm.models.heads import LengthPrior, Modulated
from mm_ldlm.models.parts import tag

STATE_EPSILON = 1e-5
"""Added to the variance of a state by `state_adaln`, as in the authors' code; no weight can compensate for another ε"""


class Output(NamedTuple):
    """Predictions of the model."""

    logits: Tensor | None
    """(B, L, V), or (M, V) at the chosen positions; unnormalised"""
    states_BLd: Tensor | None
    """float32: the clean states (x_0 prediction)"""
    length_logits: Tensor
    """Column i is length i + 1; the same for every text"""


class TextAndStatesModel(Protocol):
    """Denoiser of a text and of one continuous state per token, called as `Ccdd`."""


@config
class CcddConfig(DiTOptions):
    """Kind `ccdd`: a DiT that reads and predicts a text and the states of its tokens.

    Attributes:
        state_adaln: normalise the noised state of each token, and modulate it by the timesteps, before its linear
            layer, as the authors' code does.
    """

    interface: ClassVar[type] = TextAndStatesModel
    kind: str = "ccdd"
    state_adaln: bool = False

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "Ccdd":
        """Build the model on the CPU in float32; see `models.base.ModelConfig.build`.

        Raises:
            ConfigurationError: the data have no token states.
        """
        (state_dim,) = shape.require("token_states", kind=self.kind)
        return build_on_meta(lambda: Ccdd(self, shape, state_dim), generator)


class Ccdd(TextTransformer):
    """See `forward`. At the start all logits and all predicted states are 0."""

    def __init__(self, config: CcddConfig, shape: DataShape, state_dim: int) -> None:
        super().__init__(config, shape)
        self.state_encoder = tag(Linear(state_dim, config.dim), "state_encoder", input=True)
        self.state_modulation: Any = None
        if config.state_adaln:
            modulation = Linear(config.condition_dim, 2 * state_dim, gain=0.0)
            self.state_modulation = tag(modulation, "state_encoder")
        self.null_state = tag(NullEmbedding(state_dim), "null_state", occasional=True)
        self.state_time = tag(Conditioner(TIME_FEATURES, config.condition_dim), "conditioning")
        self.state_head = tag(Modulated(config, config.dim, state_dim), "state_head")
        self.length_prior = tag(LengthPrior(shape.max_length), "length_head")

    def forward(
        self,
        tokens_BL: Tensor,
        *,
        valid_BL: Tensor | None,
        t_text_B: Tensor,
        states_BLd: Tensor,
        t_state_B: Tensor,
        null_state_B: Tensor | None = None,
        logits_at: Tensor | None = None,
        heads: Container[str] = ("text", "state"),
    ) -> Output:
        """Predict the token and the clean state of every position from all noised tokens and states of the text.

        Args:
            tokens_BL: ids; [MASK] or other noise where the text is corrupted, pads where not valid.
            valid_BL: true at real tokens; None where there is no padding.
            t_text_B: timestep of the tokens, from 0 (clean) to 1 (all noise).
            states_BLd: noised, standardised states; ignored where the states are dropped.
            t_state_B: timestep of the states.
            null_state_B: true where a learned vector replaces every state of the text; None replaces none.
            logits_at: (B, L) bool; the logits are computed at these M positions only, in row-major order.
            heads: the predictions to compute, "text" and "state"; the others are None.
        """
        z_BLd = self.null_state.replace(states_BLd.float(), null_state_B)
        c_BC = self.time(self.time_features(t_text_B)) + self.state_time(self.time_features(t_state_B))
        if self.state_modulation is not None:
            shift_Bd, scale_Bd = self.state_modulation(F.silu(c_BC)).chunk(2, dim=-1)
            z_BLd = modulate(z_BLd, shift_Bd, scale_Bd, epsilon=STATE_EPSILON)
        states_BLD = self.state_encoder(z_BLd).float()
        x_BLD = self.hidden(tokens_BL, mask=key_mask(valid_BL), c_BC=c_BC, added_BLD=states_BLD)
        logits = self.head(x_BLD, c_BC=c_BC, logits_at=logits_at) if "text" in heads else None
        found_BLd = self.state_head(x_BLD, F.silu(c_BC)) if "state" in heads else None
        return Output(logits, found_BLd, self.length_logits())

    def length_logits(self) -> Tensor:
        """Return unnormalised log-probabilities (N,) float32 of the lengths 1..N; column i is length i + 1."""
        return self.length_prior()
