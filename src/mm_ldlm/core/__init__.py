"""Core: typed configuration, registries, errors and messages. It imports nothing of the other packages."""
