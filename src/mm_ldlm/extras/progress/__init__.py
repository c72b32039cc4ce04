"""Progress of a run: the remaining time and a sentence that the model writes, at intervals of a training; at the end
the scores, their files and the command that comes next.
"""

COMPONENTS: dict[str, dict[str, str]] = {
    "observers": {"preview": "mm_ldlm.extras.progress.preview:preview"},
    "hooks": {"progress": "mm_ldlm.extras.progress.hooks:ProgressHooks"},
}
