"""Names of metrics in MLflow: numbered groups, so that the headline numbers come first in every list and chart.

MLflow sorts names by alphabet and makes a section of charts of everything before the last "/". A metric of the training
log or of `metrics.json` therefore has one name with the number of its group; `key_of` restores the original key.
"""

from __future__ import annotations

from collections.abc import Collection

HEADLINE, TRAINING, VALIDATION, EVALUATION, DIAGNOSTICS = (
    "1_headline", "2_training", "3_validation", "4_evaluation", "5_diagnostics",
)  # fmt: skip
_OF_TRAINING = {"loss": "loss", "validation/loss": "validation_loss", "tokens_per_second": "tokens_per_second"}
"""Headline numbers of the training log, and their names in the first group"""
_DIAGNOSTIC = (
    "grad_norm/", "param_norm/", "update_ratio/", "grad_zeros/", "grad_nonfinite/", "attention_logit_max/",
    "activation_rms/", "memory_peak_gib", "fp16_",
)  # fmt: skip
"""Beginnings of the keys of the diagnostics"""
MOST_HEADLINES = 10 - len(_OF_TRAINING)
"""Headline numbers of an evaluation: with those of the training there are ten."""


def of_training(key: str) -> str:
    """Name a number of the training log, such as `loss`, `l2t/text_loss` or `validation/loss`."""
    if key in _OF_TRAINING:
        return f"{HEADLINE}/{_OF_TRAINING[key]}"
    if key.startswith("validation/"):
        return f"{VALIDATION}/{key.removeprefix('validation/')}"
    return f"{DIAGNOSTICS if key.startswith(_DIAGNOSTIC) else TRAINING}/{key}"


def of_evaluation(key: str, *, first: Collection[str] = ()) -> str:
    """Name a number of `metrics.json`, such as `l2t.bleu`; those in `first` belong to the headline numbers."""
    return f"{HEADLINE}/{key}" if key in first else f"{EVALUATION}/{key.replace('.', '/', 1)}"


def key_of(name: str) -> str:
    """Return the key of the training log or of `metrics.json` that a name in MLflow stands for.

    Names without a group, as earlier versions wrote them, are keys themselves.
    """
    group, _, rest = name.partition("/")
    if group == HEADLINE:
        return {short: key for key, short in _OF_TRAINING.items()}.get(rest, rest)
    if group == EVALUATION:
        return rest.replace("/", ".", 1)
    if group == VALIDATION:
        return f"validation/{rest}"
    return rest if group in (TRAINING, DIAGNOSTICS) else name
