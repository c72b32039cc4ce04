"""Kedro hooks of a run: check the parameters, lock the data folders, track the run in MLflow, count the seconds.

`project.py` has the hooks that Kedro calls. The other modules have one part each of what they do: `refusals.py` what is
refused before the first node, `tracked.py` the MLflow run, and `seconds.py` the seconds of the pipelines.
"""

from mm_ldlm.hooks.project import ProjectHooks

__all__ = ["ProjectHooks"]
