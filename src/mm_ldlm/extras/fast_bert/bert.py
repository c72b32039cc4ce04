"""BERT by torch and tokenizers only: the import of transformers takes longer than to embed a few hundred sentences.

`fits` selects the folders; all others are read by transformers, whose interface tokenizer and model have as far as
`data/encoders/transformer.py` uses it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.data.encoders.specs import LocatedWeights

_TABLES = {"words": "word_embeddings", "positions": "position_embeddings", "types": "token_type_embeddings"}
_LAYERS = {
    "out": "attention.output.dense", "norm": "attention.output.LayerNorm", "up": "intermediate.dense",
    "down": "output.dense", "norm_after": "output.LayerNorm",
}  # fmt: skip
"""Modules of a layer → their names in BERT's weights"""
_MODEL = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
_WORDS = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
_NORMALISER = {
    "lowercase": "do_lower_case", "handle_chinese_chars": "tokenize_chinese_chars", "strip_accents": "strip_accents",
}  # fmt: skip
"""Settings of a normaliser → their names in `tokenizer_config.json`"""


def fits(folder: Path) -> bool:
    """Return whether a folder has a BERT with the usual activation, and a tokenizer that needs no changes."""
    names = ("config", "tokenizer", "tokenizer_config")
    try:
        config, tokenizer, settings = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in names)
        model = {**_MODEL, **config}.items() >= _MODEL.items()
        given = {**_WORDS, "do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None, **settings}
        normaliser = {ours: given[theirs] for ours, theirs in _NORMALISER.items()}  # transformers rebuilds it so
        words = given.items() >= _WORDS.items() and tokenizer["normalizer"].items() >= normaliser.items()
        usual = model and words and tokenizer["post_processor"] is not None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # damaged, which transformers explains
        return False
    return usual and (folder / "model.safetensors").is_file()


class BertTokenizer:
    """The tokenizer of a folder, called as a tokenizer of transformers is."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.base = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.base.no_padding()
        special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        self.pad_token_id, self.unk_token_id, *_ = self.all_special_ids = [
            self.base.token_to_id(name) for name in special
        ]

    def __call__(
        self, texts: Sequence[str], *, truncation: bool, max_length: int | None = None, **_: Any
    ) -> dict[str, list[list[int]]]:
        """Return the ids of each text, of at most `max_length` with `truncation`."""
        if truncation and max_length is not None:
            self.base.enable_truncation(max_length)
        else:
            self.base.no_truncation()
        return {"input_ids": [found.ids for found in self.base.encode_batch_fast(list(texts))]}


class GeluLinear(nn.Linear):
    """A linear layer with its activation, which oneDNN computes in one pass (`PackedLinear`)."""

    activation = "gelu"

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(super().forward(input))


class Layer(nn.Module):
    """Attention and feed-forward, each followed by a normalisation of its sum with its input."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        dim, inner, eps = sizes["hidden_size"], sizes["intermediate_size"], sizes["layer_norm_eps"]
        self.heads = sizes["num_attention_heads"]
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = GeluLinear(dim, inner), nn.Linear(inner, dim)
        self.norm, self.norm_after = nn.LayerNorm(dim, eps), nn.LayerNorm(dim, eps)

    def forward(self, x_BLd: Tensor, mask: Tensor | None) -> Tensor:
        q_BHLe, k_BHLe, v_BHLe = self.qkv(x_BLd).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        read_BHLe = F.scaled_dot_product_attention(q_BHLe, k_BHLe, v_BHLe, attn_mask=mask)
        x_BLd = self.norm(x_BLd + self.out(read_BHLe.transpose(1, 2).flatten(2)))
        return self.norm_after(x_BLd + self.down(self.up(x_BLd)))


class Bert(nn.Module):
    """BERT without its pooler (arXiv:1810.04805)."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        dim = sizes["hidden_size"]
        self.config = SimpleNamespace(hidden_size=dim)
        # `_weight` because random initial values on the meta device import torch's compiler, two seconds of every start
        self.words, self.positions, self.types = (
            nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))
            for rows in (sizes["vocab_size"], sizes["max_position_embeddings"], sizes["type_vocab_size"])
        )
        self.norm = nn.LayerNorm(dim, sizes["layer_norm_eps"])
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes["num_hidden_layers"]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        """Compute the last hidden states (B, L, d)."""
        table_Ld = self.positions.weight[: input_ids.shape[1]] + self.types.weight[0]
        x_BLd = self.norm(self.words(input_ids) + table_Ld)
        mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        for layer in self.layers:
            x_BLd = layer(x_BLd, mask)
        return SimpleNamespace(last_hidden_state=x_BLd)


def loaded(located: LocatedWeights) -> tuple[BertTokenizer, Bert] | None:
    """Load the tokenizer and the model of an encoder; None if transformers has to read them.

    Raises:
        KeyError: a size or a weight is missing, or has another name.
        RuntimeError: a weight has another shape.
        SafetensorError: the file of the weights is damaged.
    """
    from safetensors.torch import load_file

    spec, folder = located.spec, located.folder
    if spec.architecture != "auto" or spec.final_token is not None or not fits(folder):
        return None
    sizes = json.loads((folder / "config.json").read_text("utf-8"))
    found = {name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items()}
    weights = {f"{ours}.weight": found[f"embeddings.{name}.weight"] for ours, name in _TABLES.items()}
    for kind in ("weight", "bias"):
        weights[f"norm.{kind}"] = found[f"embeddings.LayerNorm.{kind}"]
        for number in range(sizes["num_hidden_layers"]):
            ours, theirs = f"layers.{number}", f"encoder.layer.{number}"
            parts = [found[f"{theirs}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            weights[f"{ours}.qkv.{kind}"] = torch.cat(parts)
            weights |= {f"{ours}.{name}.{kind}": found[f"{theirs}.{old}.{kind}"] for name, old in _LAYERS.items()}
    with torch.device("meta"):
        model = Bert(sizes)
    dtype = getattr(torch, located.dtype)
    model.load_state_dict({name: value.to(dtype) for name, value in weights.items()}, assign=True)
    return BertTokenizer(folder), model.eval().requires_grad_(False)
