"""Small examples of the family for the tests of the loop."""

from tests.training.task import Example

EXAMPLES = {"duo": Example(objective={"text_weight": 0.001})}
"""Nothing but the lengths of random texts can be learned, and the loss of their words varies much."""
