"""BD3-LM: masked diffusion within blocks of a text, one block after another, with a key-value cache."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"block_diffusion": "mm_ldlm.families.bd3lm.objective:BlockDiffusionConfig"},
    "checkpoint_trainers": {
        "bd3lm": "mm_ldlm.families.bd3lm.trainers:BD3LM",
        "bd3lm_of_one_block": "mm_ldlm.families.bd3lm.trainers:MDLM",
    },
    "models": {"block_dit": "mm_ldlm.families.bd3lm.model:BlockDiTConfig"},
}
