"""Data of images and captions for the conformance suites."""

FIELDS = {"images": (4, 4, 1)}
MODELS = {
    "image_text": {"kind": "image_mmdit", "patch": 2},
    "image_text_continuous": {"kind": "image_mmdit_continuous", "patch": 2, "caption_dim": 4},
}
OPTIONS = {("models", kind): [{"patch": 2}] for kind in ("image_mmdit", "image_mmdit_continuous")}
