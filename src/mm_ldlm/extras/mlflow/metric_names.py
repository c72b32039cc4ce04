"""Names of metrics in MLflow, which sorts them and draws one section of charts for everything before the last "/".

A number of the training log or of `metrics.json` therefore has the number of its group in its name.
"""

HEADLINE, TRAINING, VALIDATION, EVALUATION, DIAGNOSTICS = (
    "1_headline", "2_training", "3_validation", "4_evaluation", "5_diagnostics",
)  # fmt: skip
_OF_TRAINING = {"loss": "loss", "validation/loss": "validation_loss", "tokens_per_second": "tokens_per_second"}
"""Headline numbers of the training log, and their names in the first group"""
MOST_HEADLINES = 10 - len(_OF_TRAINING)
"""Headline numbers of an evaluation; the training adds the rest of ten."""
_DIAGNOSTIC = (
    "grad_norm/", "param_norm/", "update_ratio/", "grad_zeros/", "grad_nonfinite/", "attention_logit_max/",
    "activation_rms/", "memory_peak_gib", "fp16_",
)  # fmt: skip
"""Beginnings of the keys of the diagnostics"""


def name_of(key: str) -> str:
    """Name a number of the training log, such as `loss`, `l2t/text_loss` or `validation/loss`."""
    if key in _OF_TRAINING:
        return f"{HEADLINE}/{_OF_TRAINING[key]}"
    if key.startswith("validation/"):
        return f"{VALIDATION}/{key.removeprefix('validation/')}"
    return f"{DIAGNOSTICS if key.startswith(_DIAGNOSTIC) else TRAINING}/{key}"
