"""A tiny estimator for the kind `adaptive_masking`."""

from tests.training.task import Example

EXAMPLES = {"adaptive_masking": Example(objective={"estimator": {"dim": 16, "depth": 1, "heads": 2}})}
