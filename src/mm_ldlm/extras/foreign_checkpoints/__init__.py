"""Checkpoints of other trainers: import and export."""

COMPONENTS: dict[str, dict[str, str]] = {
    "commands": {
        "import-checkpoint": "mm_ldlm.extras.foreign_checkpoints.commands:import_checkpoint",
        "export-checkpoint": "mm_ldlm.extras.foreign_checkpoints.commands:export_checkpoint",
    },
}
