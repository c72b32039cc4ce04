"""Engines: where tasks run that do not depend on one another, in this process (`local`) or on a Ray cluster (`ray`).

A task is a value that a function receives, and the function returns its result: neither reads or writes files of the
data folder. The caller alone reads the inputs and writes the results, so that only its host needs that folder, and a
task that is lost can be computed again anywhere.

This room contains the interface and the registry (`base`), and the engine of this process (`local`). The engine of a
Ray cluster registers from `extras/ray`. Nothing here depends on what is computed.
"""
