"""The DiT of MDLM and its descendants by its definition, and folders of their trainers, for the tests of imports.

B texts, L positions, S positions read together, D dim, E dim of a head, V ids of the checkpoint.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.extras.foreign_checkpoints.importing import import_checkpoint

D, C, HEADS, DEPTH, LENGTH, WORDS = 16, 8, 2, 2, 12, 20
UNKNOWN, MASK = WORDS, WORDS + 1
"""Ids of the vocabulary: words, [UNK], and the row that the trainers add"""
V = WORDS + 2


def weights(rows: int = V, states: int = 0) -> dict[str, Tensor]:
    """Draw weights of the DiT, under its names; with `states`, of one that also reads and predicts states of this size."""
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (rows, D), "output_layer.norm_final.weight": (D,),
        "rotary_emb.cos_cached": (1, LENGTH, 3, 1, D // HEADS),
    }  # fmt: skip
    linears = {"sigma_map.mlp.0": (C, 256), "sigma_map.mlp.2": (C, C), "output_layer.linear": (rows, D),
               "output_layer.adaLN_modulation": (2 * D, C)}  # fmt: skip
    for block in (f"blocks.{n}." for n in range(DEPTH)):
        shapes |= {block + "norm1.weight": (D,), block + "norm2.weight": (D,), block + "attn_qkv.weight": (3 * D, D),
                   block + "attn_out.weight": (D, D)}  # fmt: skip
        linears |= {block + "mlp.0": (4 * D, D), block + "mlp.2": (D, 4 * D), block + "adaLN_modulation": (6 * D, C)}
    if states:
        shapes |= {"latent_embed.norm_final.weight": (states,), "latent_output_layer.norm_final.weight": (D,)}
        linears |= {"latent_embed.linear": (D, states), "latent_embed.adaLN_modulation": (2 * states, C),
                    "latent_output_layer.linear": (states, D), "latent_output_layer.adaLN_modulation": (2 * D, C)}  # fmt: skip
    shapes |= {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    draw = torch.Generator().manual_seed(0)
    return {name: 0.2 * torch.randn(shape, generator=draw) + ("norm" in name) for name, shape in shapes.items()}


def reference(
    w: Mapping[str, Tensor], tokens_BS: Tensor, time_B: Tensor, *, read: Tensor | None = None,
    position_S: Tensor | None = None, states_BSd: Tensor | None = None, output: str = "output_layer",
) -> Tensor:  # fmt: skip
    """Compute the logits (B, S, V) of the DiT, or another `output`: LayerNorm with ε = 1e-5, rotary positions by halves.

    `read` is true where a position (row) reads another (column), broadcast to (B, 1, S, S); None reads all.
    """

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(x: Tensor, name: str, shift: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * w[f"{name}.weight"] * (1 + scale) + shift

    frequency = torch.exp(-math.log(10_000) * torch.arange(128) / 128)
    features = torch.cat([torch.cos(time_B[:, None] * frequency), torch.sin(time_B[:, None] * frequency)], dim=1)
    c = F.silu(linear(F.silu(linear(features, "sigma_map.mlp.0")), "sigma_map.mlp.2"))
    B, S, E = *tokens_BS.shape, D // HEADS
    position_S = torch.arange(S) if position_S is None else position_S
    angle = position_S[:, None] / 10_000 ** (torch.arange(0, E, 2) / E)
    cos, sin = (torch.cat([f(angle), f(angle)], dim=1)[None, :, None] for f in (torch.cos, torch.sin))

    def turned(x: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-two, one], dim=-1) * sin).transpose(1, 2)

    def layer(x: Tensor, name: str) -> Tensor:
        shift, scale = linear(c, f"{name}.adaLN_modulation")[:, None].chunk(2, -1)
        return linear(norm(x, f"{name}.norm_final", shift, scale), f"{name}.linear")

    x = w["vocab_embed.embedding"][tokens_BS]
    if states_BSd is not None:
        x = x + layer(states_BSd, "latent_embed")
    for block in (f"blocks.{n}." for n in range(DEPTH)):
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = linear(c, block + "adaLN_modulation")[:, None].chunk(6, -1)
        qkv = linear(norm(x, block + "norm1", shift, scale), block + "attn_qkv").view(B, S, 3, HEADS, E)
        q, k, v = turned(qkv[:, :, 0]), turned(qkv[:, :, 1]), qkv[:, :, 2].transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=read).transpose(1, 2)
        x = x + gate * linear(attended.reshape(B, S, D), block + "attn_out")
        inner = F.gelu(linear(norm(x, block + "norm2", mlp_shift, mlp_scale), block + "mlp.0"), approximate="tanh")
        x = x + mlp_gate * linear(inner, block + "mlp.2")
    return layer(x, output)


def masked_cross_entropy(logits_BLV: Tensor, clean_BL: Tensor, noisy_BL: Tensor, t_BL: Tensor) -> Tensor:
    """Compute −log x_θ(x_0)/t at the masks (MDLM eq. 10 with the log-linear schedule), (B, L)."""
    allowed_BLV = logits_BLV.double().index_fill(2, torch.tensor(MASK), -torch.inf)
    nll_BL = -allowed_BLV.log_softmax(-1).gather(2, clean_BL[..., None])[..., 0]
    return torch.where(noisy_BL == MASK, nll_BL / t_BL, 0.0)


def score_entropy(score_BLV: Tensor, ratio_BLV: Tensor, noisy_BL: Tensor) -> Tensor:
    """Compute Σ_{y ≠ x_t} s_y − r_y log s_y + r_y(log r_y − 1) (SEDD eq. 5), (B, L)."""
    each = score_BLV - torch.xlogy(ratio_BLV, score_BLV) + torch.xlogy(ratio_BLV, ratio_BLV) - ratio_BLV
    return each.scatter(2, noisy_BL[..., None], 0.0).sum(-1)


def clean_and_times() -> tuple[Tensor, Tensor]:
    """Draw texts (4, LENGTH) and their times (4,)."""
    return torch.randint(0, WORDS, (4, LENGTH), generator=torch.Generator().manual_seed(3)), torch.tensor(
        [0.1, 0.4, 0.7, 0.97]
    )


def masked(clean_BL: Tensor, t: Tensor) -> Tensor:
    """Mask each token with the probability t, which is broadcast to (B, L)."""
    return clean_BL.masked_fill(torch.rand(clean_BL.shape, generator=torch.Generator().manual_seed(1)) < t, MASK)


def folder(
    place: Path, content: Any, settings: Any, *, name: str = "model.pt", save: Callable[[Any, Path], Any] = torch.save
) -> Path:
    """Write what a trainer leaves: weights, tokenizer and configuration."""
    base = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)} | {"[UNK]": UNKNOWN}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    place.mkdir(parents=True)
    base.save(str(place / "tokenizer.json"))
    (place / "config.yaml").write_text(json.dumps(settings))
    save(content, place / name)
    return place


def proves(
    place: Path, settings: Any, *, tolerance: float = 1e-4, theirs: Any = None, file: Mapping[str, Any] | None = None,
    **outputs: Tensor,
) -> dict[str, Any]:  # fmt: skip
    """Import weights with these outputs of the original code, and return the configuration of the run.

    The differences that the import states must be below `tolerance`. `file` are other arguments of `folder`.
    """
    path = folder(place / "theirs", theirs or weights(), settings, **file or {})
    torch.save({name: value.detach() for name, value in outputs.items()}, path / "reference.pt")
    found = import_checkpoint(path, place / "run").differences
    assert found is not None
    assert 0 < found.predictions < tolerance, found
    assert found.bound < tolerance, found
    assert found.largest > 0.5
    config: dict[str, Any] = json.loads((place / "run" / "config.json").read_text())
    return config
