"""Requests on given texts and pairs of latents: infilling, editing and interpolation."""

COMPONENTS: dict[str, dict[str, str]] = {
    "requests": {
        "infill": "mm_ldlm.extras.editing.requests:infill",
        "edit": "mm_ldlm.extras.editing.requests:edit",
        "interpolate": "mm_ldlm.extras.editing.requests:interpolate",
    },
    "commands": {
        "infill": "mm_ldlm.extras.editing.requests:infill",
        "edit": "mm_ldlm.extras.editing.requests:edit",
        "interpolate": "mm_ldlm.extras.editing.requests:interpolate",
    },
}
