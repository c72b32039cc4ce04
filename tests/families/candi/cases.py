"""Options of CANDI for the conformance suites."""

OPTIONS = {("objectives", "candi"): [{}, {"min_rank": 0.1, "max_rank": 0.4}]}
