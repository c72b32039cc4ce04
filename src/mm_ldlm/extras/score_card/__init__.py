"""Score card: score any number of runs and imported checkpoints under one protocol, as a table for a paper."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"score_card": "mm_ldlm.extras.score_card.config:ScoreCardConfig"},
    "pipelines": {"score_card": "mm_ldlm.extras.score_card.pipeline:create_pipeline"},
}
