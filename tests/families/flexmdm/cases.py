"""Options of insertion and unmasking for the conformance suites."""

SCHEDULES = {"schedule": {"kind": "geometric"}, "insertion_schedule": {"kind": "cosine"}}
OPTIONS = {("objectives", "flexmdm"): [{}, {"process": SCHEDULES}]}
MODELS = {"flexmdm": {"kind": "insertion_dit"}}
