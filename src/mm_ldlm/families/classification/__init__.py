"""Classification of texts, of latents and of pairs of texts."""

CLASSIFY = "assign texts, latents or pairs of texts to classes"
COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {
        "classification": "mm_ldlm.families.classification.objective:ClassificationConfig",
        "pairwise_classification": "mm_ldlm.families.classification.objective:PairwiseClassificationConfig",
    },
    "features": {
        "labels": "mm_ldlm.families.classification.labels:Labels",
        "label_names": "mm_ldlm.families.classification.labels:LabelNames",
        "pair_tokens": "mm_ldlm.families.classification.labels:PairTokens",
    },
    "models": {"latent_mlp": "mm_ldlm.families.classification.model:LatentMLPConfig"},
    "sections": {"classification": "mm_ldlm.families.classification.suite:ClassificationSection"},
    "uses": {"classify": "mm_ldlm.families.classification:CLASSIFY"},
    "suites": {"classification": "mm_ldlm.families.classification.suite:Classification"},
    "commands": {"classify": "mm_ldlm.families.classification.requests:classify"},
    "requests": {"classify": "mm_ldlm.families.classification.requests:classify"},
}
