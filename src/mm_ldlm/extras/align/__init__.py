"""Adapters from the vectors of another encoder to a trained run, fitted on pairs of texts and vectors."""

COMPONENTS: dict[str, dict[str, str]] = {
    "commands": {"align": "mm_ldlm.extras.align.command:align"},
    "checkpoint_folders": {"adapter": "mm_ldlm.extras.align.adapter:adapted"},
}
