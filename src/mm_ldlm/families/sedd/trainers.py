"""Trainers of SEDD whose checkpoints can be imported; tables as in `extras.foreign_checkpoints.trainers`."""

from typing import Any

_NAMES = {"algo.name": ("sedd",), "parameterization": ("sedd",), "algo.parameterization": ("score", "sedd")}

SEDD: dict[str, Any] = {
    "when": {
        **_NAMES, "diffusion": ("absorbing_state",), "graph.type": ("absorb",), "model.scale_by_sigma": (True,),
        "algo.cross_attn": (False,),
    },
    "objective": {"kind": "text_diffusion", "process": {"kind": "sedd", "graph": "absorbing"}},
    "timesteps": "sigma",
}  # fmt: skip
UNIFORM_SEDD: dict[str, Any] = {
    "when": {"graph.type": ("uniform",), "model.scale_by_sigma": (False,)},
    "objective": {"kind": "text_diffusion", "process": {"kind": "sedd", "graph": "uniform"}},
    "timesteps": "sigma",
    "added": "[NOISE]",
}
