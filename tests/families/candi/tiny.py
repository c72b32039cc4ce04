"""Tiny data of the kind `candi`: with noise that hides the tokens, which would otherwise leave little to learn."""

from tests.training.task import Example

EXAMPLES = {
    "candi": Example(
        objective={"min_rank": 0.4, "max_rank": 0.45, "process": {"kind": "absorbing", "loss_weighting": "constant"}}
    )
}
