"""Pipeline `score_card`: score runs under one protocol, and write the tables and the page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

if TYPE_CHECKING:
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.data.encoders import EncoderConfig
    from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig
    from mm_ldlm.extras.score_card.config import ScoreCardConfig


def score_runs(
    score_card: "ScoreCardConfig",
    evaluation: "EvaluationConfig",
    encoder: "EncoderConfig",
    seed: int,
    dataset: "Dataset | None",
    kept: Path,
) -> dict[str, Any]:
    """Score every run and compare each row with the baseline; scores are kept in a folder and reused."""
    from mm_ldlm.extras.score_card.card import make_card

    return make_card(score_card, evaluation, encoder, dataset=dataset, seed=seed, kept=kept)


def report_card(card: dict[str, Any], reporting: "ReportingConfig") -> "tuple[str, str, str, dict[str, Any]]":
    """Write the tables in Markdown and LaTeX and the page, and return its figures by name."""
    from mm_ldlm.extras.score_card.report import report

    return report(card, title=reporting.title)


def create_pipeline() -> Pipeline:
    score = node(
        score_runs,
        inputs=[
            "params:score_card", "params:evaluation", "params:encoder", "params:seed", "score_card_data",
            "score_card_scores",
        ],
        outputs="score_card",
        name="score_runs",
    )  # fmt: skip
    report = node(
        report_card,
        inputs=["score_card", "params:reporting"],
        outputs=["score_card_markdown", "score_card_latex", "score_card_report", "score_card_figures"],
        name="report_card",
    )
    return Pipeline([score, report], tags="score_card", namespace="score_card", prefix_datasets_with_namespace=False)
