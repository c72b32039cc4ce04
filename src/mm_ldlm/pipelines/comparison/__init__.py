"""`comparison`: the plan of the hooks → sessions of `kedro run` → one table, figures and a page.

The work is done in `mm_ldlm.extras.comparison` and `mm_ldlm.evaluation`.
"""
