"""CCDD: joint diffusion of a text and of one continuous state per token."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {"ccdd": "mm_ldlm.families.ccdd.objective:CcddObjectiveConfig"},
    "models": {"ccdd": "mm_ldlm.families.ccdd.model:CcddConfig"},
    "text_samplers": {"joint_states": "mm_ldlm.families.ccdd.objective:JointStatesConfig"},
    "features": {"token_states": "mm_ldlm.families.ccdd.token_states:TokenStates"},
    "sections": {"ccdd": "mm_ldlm.families.ccdd.token_states:CcddSection"},
}
