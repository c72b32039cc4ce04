"""`sampling`: a trained run → one table of samples for each task of the registry."""

from mm_ldlm.core import Registry

TASKS = Registry(
    what="sampling task",
    core={
        "l2t": "mm_ldlm.pipelines.sampling.tasks:L2t",
        "t2l": "mm_ldlm.pipelines.sampling.tasks:T2l",
        "unconditional": "mm_ldlm.pipelines.sampling.tasks:Unconditional",
    },
    group="tasks",
)
"""Families and other packages add tasks under the group `tasks`: subclasses of `tasks.Task`."""
