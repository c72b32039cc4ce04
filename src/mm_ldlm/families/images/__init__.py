"""Images with captions: sources, model, objective, requests and scores."""

CAPTION_TO_IMAGE = "generate images from captions"
IMAGE_TO_CAPTION = "write captions of images"
IMAGE_TEXT = "generate images and captions together"
COMPONENTS: dict[str, dict[str, str]] = {
    "sources": {
        "digits": "mm_ldlm.families.images.sources:DigitsConfig",
        "image_folder": "mm_ldlm.families.images.sources:ImageFolderConfig",
        "webdataset": "mm_ldlm.families.images.sources:WebDatasetConfig",
    },
    "objectives": {
        "image_text": "mm_ldlm.families.images.objective:ImageTextConfig",
        "image_text_continuous": "mm_ldlm.families.images.objective:ContinuousImageTextConfig",
    },
    "uses": {
        "caption_to_image": "mm_ldlm.families.images:CAPTION_TO_IMAGE",
        "image_to_caption": "mm_ldlm.families.images:IMAGE_TO_CAPTION",
        "image_text": "mm_ldlm.families.images:IMAGE_TEXT",
    },
    "models": {
        "image_mmdit": "mm_ldlm.families.images.model:ImageMMDiTConfig",
        "image_mmdit_continuous": "mm_ldlm.families.images.model:ContinuousImageMMDiTConfig",
    },
    "features": {"images": "mm_ldlm.families.images.store:Images"},
    "sections": {"images": "mm_ldlm.families.images.config:ImagesConfig"},
    "suites": {"images": "mm_ldlm.families.images.suite:ImagesSuite"},
    "requests": {"images": "mm_ldlm.families.images.requests:images"},
    "tasks": {
        "caption_to_image": "mm_ldlm.families.images.tasks:CaptionToImage",
        "image_to_caption": "mm_ldlm.families.images.tasks:ImageToCaption",
        "image_text": "mm_ldlm.families.images.tasks:ImageText",
    },
}
