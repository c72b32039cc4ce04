"""Options shared by all transformers, by those with adaLN, and by those that read a latent."""

from __future__ import annotations

from typing import Literal

from mm_ldlm.core.config import Fraction, InvalidValue, Layers, PositiveFloat, Ratio, Size, config


def refuse_empty_mlp(dim: int, mlp_ratio: float) -> None:
    """Raise InvalidValue if the inner layer of an MLP would have no dimension."""
    if round(dim * mlp_ratio) < 1:
        raise InvalidValue(
            f"mlp_ratio · dim must be at least 1, found {mlp_ratio} · {dim}, an MLP without dimensions", "mlp_ratio"
        )


@config
class TransformerOptions:
    """Shape of a transformer.

    Attributes:
        mlp_bias: biases of the two layers of the MLP. Models of other projects have them.
        mlp_activation: of the MLP: GELU, or its approximation with tanh.
        logit_softcap: attention logits become cap·tanh(logit / cap), without the fused attention kernel.
        gradient_checkpointing: recompute the blocks in the backward pass instead of storing activations.
    """

    dim: Size = 256
    depth: Layers = 6
    heads: Size = 4
    mlp_ratio: Ratio = 4.0
    mlp_bias: bool = False
    mlp_activation: Literal["gelu", "gelu_tanh"] = "gelu"
    dropout: Fraction = 0.0
    rope_theta: PositiveFloat = 10_000.0
    qk_norm: bool = True
    logit_softcap: PositiveFloat | None = None
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise InvalidValue(
                f"dim must be divisible by heads, found dim {self.dim} and {self.heads} heads", "dim", "heads"
            )
        if self.head_dim % 2:
            raise InvalidValue(f"the dimension of a head must be even for RoPE, found {self.head_dim}", "dim", "heads")
        refuse_empty_mlp(self.dim, self.mlp_ratio)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def mlp_dim(self) -> int:
        return round(self.dim * self.mlp_ratio)

    @property
    def stores(self) -> tuple[str, ...]:
        """Stores of the dataset that the initial weights are made from."""
        return ()


@config
class ModulatedOptions(TransformerOptions):
    """Shape of a transformer with adaLN.

    Attributes:
        conditioning_dim: dimension of the conditioning vector c that modulates every block; `dim` if None.
        tied_embeddings: use the token embeddings as the weights of the output layer.
    """

    conditioning_dim: Size | None = None
    tied_embeddings: bool = False

    @property
    def condition_dim(self) -> int:
        return self.conditioning_dim or self.dim


@config
class LatentOptions:
    """Options of a model that reads a latent.

    Attributes:
        length_hidden_dim: dimension of the length head's two hidden layers; `dim` if None. A short training needs a
            large one.
    """

    length_hidden_dim: Size | None = None


@config
class LatentTokenOptions(LatentOptions):
    """Options of a model that reads a latent as several tokens.

    Attributes:
        latent_tokens: number of tokens that one latent vector becomes.
    """

    latent_tokens: Size = 4
