"""Kedro hooks of a run: check the parameters, lock the data folders, track the run in MLflow, count the seconds.

`project.py` contains the hooks that Kedro calls, and the other modules one part each: `refusals.py` the runs that are
refused before the first node, `unread.py` the warning about parameters that no node reads,
`tracked.py` the MLflow run, `seconds.py` the seconds of the pipelines, and `names.py` the names of pipelines and
catalog entries.
"""

from mm_ldlm.app.hooks.project import ProjectHooks

__all__ = ["ProjectHooks"]
