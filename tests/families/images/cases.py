"""Data of images and captions for the conformance suites."""

FIELDS = {"images": (4, 4, 1)}
MODELS = {
    "image_text": {"kind": "image_mmdit"},
    "image_text_continuous": {"kind": "image_mmdit_continuous", "caption_dim": 4},
}
