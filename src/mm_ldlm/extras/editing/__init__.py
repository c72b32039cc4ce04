"""Requests on given texts and pairs of latents: infilling, editing and interpolation."""

COMPONENTS: dict[str, dict[str, str]] = {
    "requests": {
        "infill": "mm_ldlm.extras.editing.infilling:infill",
        "edit": "mm_ldlm.extras.editing.infilling:edit",
        "interpolate": "mm_ldlm.extras.editing.interpolation:interpolate",
    },
    "commands": {
        "infill": "mm_ldlm.extras.editing.infilling:infill",
        "edit": "mm_ldlm.extras.editing.infilling:edit",
        "interpolate": "mm_ldlm.extras.editing.interpolation:interpolate",
    },
}
