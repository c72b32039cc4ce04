"""`sampling`: a run -> tables of samples, each beside its source. The work is done in `mm_ldlm.inference`."""
