"""Attack campaign: generated hostile inputs, each run in a child process with limits on time and memory.

`python -m tests.attack --cases 2000` (`make test-attack`) draws cases of every target. A target is a module with
`generate(draw)`, which returns the parameters of a case as plain JSON, and `run(parameters, folder, material)`, which
builds the input in an empty folder, gives it to the project and checks the result. `oracle` states which endings are
allowed, `runner` starts the child processes, and failures are kept as files that replay them.
"""
