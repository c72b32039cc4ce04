"""The format `starter` of STS sets: the generated set that belongs to the starter corpus."""

from mm_ldlm.evaluation.sts_sets import StsSet, StsSource, from_pairs
from mm_ldlm.extras.starter.corpus import generate_starter_sts


def read_starter(source: StsSource, seed: int) -> StsSet:
    """Generate the pairs with their constructed scores."""
    pairs = generate_starter_sts(seed=seed)
    return from_pairs(source.name, [(pair.sentence1, pair.sentence2, float(pair.score)) for pair in pairs])
