"""`reporting`: metrics -> metrics.json, plots, comparison, report. The work is done in `mm_ldlm.evaluation`."""
