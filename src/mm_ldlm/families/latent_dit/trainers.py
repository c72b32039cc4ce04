"""The trainer of arXiv:2602.11047, as a table of `extras.foreign_checkpoints.trainers`."""

from typing import Any

_BLOCK, _THEIRS = "blocks.{n}.streams.0.", "blocks.{n}."


def _linears(rules: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return rules for the weight and the bias of layers."""
    return {
        f"{ours}.{end}": (made, *(f"{each}{'_' if each.endswith('in_proj') else '.'}{end}" for each in theirs))
        for ours, (made, *theirs) in rules.items()
        for end in ("weight", "bias")
    }


CMDLM: dict[str, Any] = {
    "when": {},
    "keys": (
        ("model.vocab_size model.hidden_dim model.num_layers model.ff_dim model.embedding_cond_dim",
         "the shapes of the tensors"),
        ("model.encoder_model", "the encoder, which requests take by --encoder"),
        ("model.tie_weights", "the file has both tables"),
        ("model.pretrained_token_embeddings model.freeze_token_embeddings", "the training that was"),
        ("evaluation.* _ckpt_dir", "its evaluation and its files"),
    ),
    "objective": {"kind": "latent_conditioned", "condition_dropout": 0.0},
    "timesteps": "constant",
    "reads": {"latents_Bd": "latents"},
    "fields": {"latents": "cond_proj.0.weight"},
    "format": {
        "name": "cmdlm",
        "what": "the conditional masked diffusion model of arXiv:2602.11047, without its ModernBERT",
        "marks": ("token_embed.weight", "pos_embed.weight", "cond_proj.0.weight", "blocks.{n}.attn.in_proj_weight",
                  "blocks.{n}.adaln1.proj.weight", "output_proj.weight"),
        "sizes": {"rows": ("token_embed.weight", 0), "dim": ("token_embed.weight", 1),
                  "max_length": ("pos_embed.weight", 0), "mlp_dim": ("blocks.0.ff.0.weight", 0)},
        "options": {"kind": "latent_dit_adaln", "unit_latents": True},
        "rules": {
            "text_embedding.weight": ("scaled", "token_embed.weight"),
            "positions.weight": ("scaled", "pos_embed.weight"),
            **_linears({
                "latent_encoder.inner": ("same", "cond_proj.0"),
                "latent_encoder.outer": ("same", "cond_proj.2"),
                _BLOCK + "modulation": ("shift_first", _THEIRS + "adaln1.proj", _THEIRS + "adaln2.proj"),
                _BLOCK + "qkv": ("same", _THEIRS + "attn.in_proj"),
                _BLOCK + "out": ("scaled", _THEIRS + "attn.out_proj"),
                _BLOCK + "mlp.up": ("same", _THEIRS + "ff.0"),
                _BLOCK + "mlp.down": ("scaled", _THEIRS + "ff.3"),
                "text_head.modulation": ("shift_first", "final_norm.proj"),
            }),
            "text_head.linear.weight": ("same", "output_proj.weight"),
            "text_head.linear.bias": ("no_bias", "output_proj.weight"),
        },
        "zeros": ("null_latent.value", *(f"length_head.{layer}.{end}" for layer in ("inner", "middle", "outer")
                                         for end in ("weight", "bias"))),
    },
}  # fmt: skip
"""The embedding is read with length 1"""
