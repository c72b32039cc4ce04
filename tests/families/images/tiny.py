"""Tiny data of the kinds with images: pictures of 4 × 4 grey points."""

from tests.training.task import Example

EXAMPLES = {kind: Example(shape={"images": (4, 4, 1)}) for kind in ("image_text", "image_text_continuous")}
