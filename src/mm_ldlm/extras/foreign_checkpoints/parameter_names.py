"""Formats of checkpoints of other projects: which parameter of theirs becomes which of ours, as rules.

`ddit` is here; families contribute others with their trainers.

`{n}` in a pattern is a number. A rule makes one parameter of a model here from one or more parameters of the format.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.core import escape, shorten
from mm_ldlm.models.attention import EPSILON

Transform = Callable[[Sequence[Tensor], int], Tensor]
"""Makes a parameter from parameters of the format; the second argument is the dimension of an attention head."""
ROUNDING = 128
"""Other projects round the number of rows of an embedding up to a multiple of this."""
_ROWS = ("text_embedding.weight", "text_head.linear.weight", "text_head.linear.bias")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One parameter of a model here."""

    ours: str
    theirs: tuple[str, ...]
    make: Transform

    @property
    def rows(self) -> bool:
        """The first dimension are tokens: rows beyond the vocabulary of this run, by which it was rounded, are left
        out."""
        return self.ours in _ROWS


@dataclasses.dataclass(frozen=True)
class Format:
    """A format that is recognised by the names of its parameters.

    Attributes:
        name: for messages.
        what: the model whose names these are.
        marks: patterns of names that a checkpoint of this format has.
        sizes: tensor and axis of each size: rows, dim, mlp_dim and max_length; conditioning_dim if a format has it.
        rules: by which a model here has the same function.
        zeros: parameters here that the format lacks, and that are zero in the same function.
        options: options of the model here, under which it has the same function.
        timesteps: further options, of which one set must hold: how the timestep reaches the model is not in the names.
        left_out: patterns of names that the model does not need for its outputs.
    """

    name: str
    what: str
    marks: tuple[str, ...]
    sizes: Mapping[str, tuple[str, int]]
    rules: tuple[Rule, ...]
    zeros: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    timesteps: tuple[Mapping[str, Any], ...] = ()
    left_out: tuple[str, ...] = ()

    def fits(self, names: Collection[str]) -> bool:
        """Return whether a checkpoint with these names has the format."""
        return all(any(matches(mark, name) for name in names) for mark in self.marks)

    def size(self, name: str, found: Mapping[str, Tensor]) -> int | None:
        """Return a size of a checkpoint; None if it lacks the tensor."""
        tensor, axis = self.sizes[name]
        return found[tensor].shape[axis] if tensor in found and found[tensor].ndim > axis else None


# -- transforms --------------------------------------------------------------------------------------------------------

_SMALLER = math.sqrt(EPSILON / 1e-5)
"""Factor of the residual stream: LayerNorm with ε = 1e-5 of x equals LayerNorm with our ε of √(ε/1e-5) · x."""


def _same(found: Sequence[Tensor], head_dim: int) -> Tensor:
    return found[0]


def _scaled(found: Sequence[Tensor], head_dim: int) -> Tensor:
    """Scale what is added to the residual stream, so that its LayerNorm has the ε of this project."""
    return (found[0].double() * _SMALLER).float()


def _neighbours(found: Sequence[Tensor], head_dim: int) -> Tensor:
    """Reorder the rows of Q and K (3D, D), so that rotary positions turn neighbours instead of the halves of a head."""
    q, k, v = found[0].chunk(3)
    turned = [x.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2) for x in (q, k)]
    return torch.cat([*turned, v])


def _with_norms(found: Sequence[Tensor], head_dim: int) -> Tensor:
    """Fold the weights of LayerNorms into the scales of the modulation behind them: w·x·(1 + s) = x·(1 + s′).

    The modulation has the rows of shift, scale and gate in turn, or of shift and scale; each scale has one norm.
    """
    modulation, *norms = (each.double() for each in found)
    parts = list(modulation.unflatten(0, (-1, len(norms[0]))))
    for index, weight in enumerate(norms):
        scale = parts[3 * index + 1]
        parts[3 * index + 1] = weight[:, None] * scale if scale.ndim == 2 else weight * (1 + scale) - 1
    return torch.cat(parts).float()


def _shift_first(found: Sequence[Tensor], head_dim: int) -> Tensor:
    """Join modulations, each with the rows of scale and shift, as rows of shift and scale."""
    return torch.cat([half for each in found for half in reversed(each.chunk(2))])


def _no_bias(found: Sequence[Tensor], head_dim: int) -> Tensor:
    return torch.zeros(len(found[0]))


def _zeros(found: Sequence[Tensor], head_dim: int) -> Tensor:
    return torch.zeros_like(found[0])


def _at_zero(found: Sequence[Tensor], head_dim: int) -> Tensor:
    """Add to a bias what its layer makes of the timestep 0, whose features are the cosines 1 and the sines 0."""
    weight, bias = (each.double() for each in found)
    return (bias + weight[:, : weight.shape[1] // 2].sum(dim=1)).float()


# -- the format --------------------------------------------------------------------------------------------------------

_BLOCK, _THEIRS = "blocks.{n}.streams.0.", "blocks.{n}."
_NORMS = (_THEIRS + "norm1.weight", _THEIRS + "norm2.weight")

DDIT = Format(
    name="ddit",
    what="the DiT of MDLM (arXiv:2406.07524) and of the trainers derived from it",
    marks=(
        "vocab_embed.embedding",
        "sigma_map.mlp.0.weight",
        _THEIRS + "attn_qkv.weight",
        "output_layer.linear.weight",
    ),
    sizes={
        "rows": ("vocab_embed.embedding", 0),
        "dim": ("vocab_embed.embedding", 1),
        "conditioning_dim": ("sigma_map.mlp.0.weight", 0),
        "mlp_dim": ("blocks.0.mlp.0.weight", 0),
        "max_length": ("rotary_emb.cos_cached", 1),
    },
    rules=(
        Rule("text_embedding.weight", ("vocab_embed.embedding",), _scaled),
        Rule("time.inner.weight", ("sigma_map.mlp.0.weight",), _same),
        Rule("time.inner.bias", ("sigma_map.mlp.0.bias",), _same),
        Rule("time.outer.weight", ("sigma_map.mlp.2.weight",), _same),
        Rule("time.outer.bias", ("sigma_map.mlp.2.bias",), _same),
        Rule(_BLOCK + "modulation.weight", (_THEIRS + "adaLN_modulation.weight", *_NORMS), _with_norms),
        Rule(_BLOCK + "modulation.bias", (_THEIRS + "adaLN_modulation.bias", *_NORMS), _with_norms),
        Rule(_BLOCK + "qkv.weight", (_THEIRS + "attn_qkv.weight",), _neighbours),
        Rule(_BLOCK + "out.weight", (_THEIRS + "attn_out.weight",), _scaled),
        Rule(_BLOCK + "mlp.up.weight", (_THEIRS + "mlp.0.weight",), _same),
        Rule(_BLOCK + "mlp.up.bias", (_THEIRS + "mlp.0.bias",), _same),
        Rule(_BLOCK + "mlp.down.weight", (_THEIRS + "mlp.2.weight",), _scaled),
        Rule(_BLOCK + "mlp.down.bias", (_THEIRS + "mlp.2.bias",), _scaled),
        Rule(
            "text_head.modulation.weight",
            ("output_layer.adaLN_modulation.weight", "output_layer.norm_final.weight"),
            _with_norms,
        ),
        Rule(
            "text_head.modulation.bias",
            ("output_layer.adaLN_modulation.bias", "output_layer.norm_final.weight"),
            _with_norms,
        ),
        Rule("text_head.linear.weight", ("output_layer.linear.weight",), _same),
        Rule("text_head.linear.bias", ("output_layer.linear.bias",), _same),
    ),
    zeros=("positions.weight", "length_prior.logits_N"),
    options={
        "kind": "dit",
        "mlp_bias": True,
        "mlp_activation": "gelu_tanh",
        "qk_norm": False,
        "tied_embeddings": False,
        "logit_softcap": None,
        "rope_theta": 10_000.0,
    },
    timesteps=({"time_conditioning": False}, {"time_factor": 1.0}),
    left_out=(
        "rotary_emb.*",  # tables of the rotary positions, which are computed here
        "logit_bias",  # a constant that is not read
        "sampling_eps_*",  # the times that the training draws
        "limiting_distribution",  # of the noise, which objective.process sets here
        "teacher.*",  # of a distillation
        "importance_estimator.*",  # of adaptive masking, which sampling does not read
        "masking_scheduler.*",
        "noise*",  # the noise schedule, which objective.process sets here
        "text_noise_schedule.*",
        "pad_id",
        "mask_id",
        "t0",
        "t1",
    ),
)


TRANSFORMS: dict[str, Transform] = {
    "same": _same, "scaled": _scaled, "with_norms": _with_norms, "shift_first": _shift_first, "no_bias": _no_bias,
}  # fmt: skip
"""Transforms by the names that tables of trainers have for them"""


def rules_of(table: Mapping[str, Sequence[str]]) -> tuple[Rule, ...]:
    """Make rules of a table: names here, and a transform and names there."""
    return tuple(Rule(ours, tuple(theirs), TRANSFORMS[made]) for ours, (made, *theirs) in table.items())


def extended(rules: Mapping[str, Sequence[str]], *, zeros: tuple[str, ...], options: Mapping[str, Any]) -> Format:
    """Return the format `ddit` of a model with further parts, given as of `rules_of`."""
    return dataclasses.replace(
        DDIT, rules=(*DDIT.rules, *rules_of(rules)), zeros=(*DDIT.zeros, *zeros), options={**DDIT.options, **options}
    )


def without_time(kind: str) -> Format:
    """Return the format for a model of another kind that reads no timestep, and whose conditioning is a constant."""
    made = {
        "time.inner.weight": Rule("time.inner.weight", ("sigma_map.mlp.0.weight",), _zeros),
        "time.inner.bias": Rule("time.inner.bias", ("sigma_map.mlp.0.weight", "sigma_map.mlp.0.bias"), _at_zero),
    }
    rules = tuple(made.get(rule.ours, rule) for rule in DDIT.rules)
    return dataclasses.replace(DDIT, rules=rules, options={**DDIT.options, "kind": kind}, timesteps=())


def matches(pattern: str, name: str) -> re.Match[str] | None:
    """Match a name with a pattern, in which `{n}` is a number, and a group of the match, and `*` any text."""
    parts = re.split(r"(\{n\}|\*)", pattern)
    expression = "".join({"{n}": r"([0-9]+)", "*": ".*"}.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, name)


def summary(names: Iterable[str], *, most: int = 12) -> str:
    """List names in short: numbers as {n}, with the count of names that differ in numbers only."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "{n}", name), []).append(shorten(escape(name), 100))
    shown = [
        each[0] if len(each) == 1 else f"{shorten(escape(key), 100)} ({len(each)})" for key, each in groups.items()
    ]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
