"""Images with captions: sources, model, objective, requests and scores."""

COMPONENTS: dict[str, dict[str, str]] = {
    "objectives": {
        "image_text": "mm_ldlm.families.images.objective:ImageTextConfig",
        "image_text_continuous": "mm_ldlm.families.images.objective:ContinuousImageTextConfig",
    },
    "models": {
        "image_mmdit": "mm_ldlm.families.images.model:ImageMMDiTConfig",
        "image_mmdit_continuous": "mm_ldlm.families.images.model:ContinuousImageMMDiTConfig",
    },
    "sections": {
        "images": "mm_ldlm.families.images.store:ImagesConfig",
        "image_normaliser": "mm_ldlm.data.latents.normaliser:NormaliserConfig",
    },
}
