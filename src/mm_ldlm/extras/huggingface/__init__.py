"""Hugging Face: a run as a folder that other tools load, its place on the hub, and stores as `datasets.Dataset`.

`MMLDLM.from_pretrained` reads the folders; `inference/exporting.py` defines what every exported run contains.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "commands": {
        "export": "mm_ldlm.extras.huggingface.commands:export",
        "push": "mm_ldlm.extras.huggingface.commands:push",
    },
    "exports": {"huggingface": "mm_ldlm.extras.huggingface.exporting:write_folder"},
}
