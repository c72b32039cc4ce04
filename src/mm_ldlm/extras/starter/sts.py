"""The format `starter` of STS sets: the generated set that belongs to the starter corpus."""

from typing import Any

from mm_ldlm.extras.starter.corpus import generate_starter_sts


def read_starter(source: Any, seed: int) -> list[tuple[str, str, float]]:
    """Generate the pairs with their constructed scores."""
    return [(pair.sentence1, pair.sentence2, float(pair.score)) for pair in generate_starter_sts(seed=seed)]
