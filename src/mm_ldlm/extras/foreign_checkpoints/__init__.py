"""Checkpoints of other trainers: import, and export as `model.pt`."""

COMPONENTS: dict[str, dict[str, str]] = {
    "commands": {"import-checkpoint": "mm_ldlm.extras.foreign_checkpoints.commands:import_checkpoint"},
    "exports": {"model.pt": "mm_ldlm.extras.foreign_checkpoints.exporting:write_model_pt"},
}
