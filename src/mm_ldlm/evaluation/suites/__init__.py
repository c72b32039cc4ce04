"""What is done with a whole model: each module runs one part of the evaluation and gives plain dictionaries and tables.

A suite asks the `inference.MMLDLM` facade for samples and hands them to the pure functions beside this folder. No
files, no Kedro. A part that the model was not trained for is left out with the reason ("skipped"), never filled with
numbers of an untrained head.
"""
