"""CCDD: joint diffusion of a text and of one continuous state per token."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"ccdd": "mm_ldlm.families.ccdd.objective:CcddObjectiveConfig"},
    "models": {"ccdd": "mm_ldlm.families.ccdd.model:CcddConfig"},
    "text_samplers": {"joint_states": "mm_ldlm.families.ccdd.objective:JointStatesConfig"},
    "gaussian_schedules": {"power": "mm_ldlm.families.ccdd.objective:Power"},
    "checkpoint_trainers": {
        "ccdd_flow": "mm_ldlm.families.ccdd.trainers:FLOW",
        "ccdd_linear": "mm_ldlm.families.ccdd.trainers:LINEAR",
        "ccdd_square": "mm_ldlm.families.ccdd.trainers:SQUARE",
    },
    "features": {"token_states": "mm_ldlm.families.ccdd.token_states:TokenStates"},
    "sections": {"ccdd": "mm_ldlm.families.ccdd.token_states:CcddSection"},
}
