"""Measurements against peers on the machine at hand. Each module has `run() -> list[dict]`; `make bench` runs them."""
