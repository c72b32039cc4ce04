"""Trainers of uniform noise whose checkpoints can be imported; a table as in `extras.foreign_checkpoints.trainers`."""

from typing import Any

DUO: dict[str, Any] = {
    "when": {
        "algo.name": ("duo", "duo_base", "distillation", "udlm"), "algo.parameterization": ("mean", "subs"),
        "model_type": ("duo", "DUO", "udlm"), "diffusion": ("uniform",), "parameterization": ("d3pm",),
    },
    "objective": {"kind": "text_diffusion", "process": {"kind": "uniform"}},
    "added": "[NOISE]",
}  # fmt: skip
"""Duo (arXiv:2506.10892) and UDLM (arXiv:2412.10193)"""
