"""Small examples of the family for the tests of the loop."""

from tests.training.task import Example

EXAMPLES = {"duo": Example(objective={"length_weight": 3.0})}
"""Only the lengths of random words can be learned, and the loss of the words varies much."""
