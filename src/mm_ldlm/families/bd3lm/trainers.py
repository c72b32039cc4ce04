"""Trainers of BD3-LM whose checkpoints can be imported; tables as in `extras.foreign_checkpoints.trainers`."""

from typing import Any

BD3LM: dict[str, Any] = {
    "when": {
        "algo.name": ("bd3lm",), "algo.parameterization": ("subs",), "model_type": ("bd3lm",),
        "diffusion": ("absorbing_state",), "algo.cross_attn": (True,), "cross_attn": (True,),
        "algo.time_conditioning": (False,), "time_conditioning": (False,),
    },
    "model": {"kind": "block_dit", "block_length": "$block_size"},
    "objective": {"kind": "block_diffusion"},
    "timesteps": "constant",
    "reads": {"clean_BL": "clean"},
}  # fmt: skip
MDLM: dict[str, Any] = {
    "when": {"model_type": ("bd3lm",), "cross_attn": (False,), "time_conditioning": (False,)},
    "objective": {"kind": "text_diffusion"},
}
"""The models of one block that the trainer starts from"""
