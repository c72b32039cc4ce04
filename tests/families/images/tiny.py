"""Tiny data of the kinds with images: pictures of 4 × 4 grey points."""

from tests.families.images.cases import FIELDS, MODELS
from tests.training.task import Example

EXAMPLES = {kind: Example(shape=FIELDS, model=options) for kind, options in MODELS.items()}
