"""Checkpoints of other trainers: import, export and initial weights."""

COMPONENTS = {"weights": {"foreign": "mm_ldlm.extras.foreign_checkpoints.converting:ForeignWeights"}}
