"""Mutation testing: plant one fault at a time in a copy of the project, and see whether a test fails.

`python -m mutation --sample 60 --seed 0` (`make test-mutation`) draws mutants of the rooms, runs the fitting test files
on each, and prints the fraction of killed mutants per room and the survivors.
The folder imports nothing of `mm_ldlm`, because the package under test is the copy.
"""
