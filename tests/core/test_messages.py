from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.sampling.registry import text_sampler


def test_an_unknown_kind_is_named_with_the_nearest_known_one(refuses):
    with refuses(ConfigurationError, "confidense", "confidence"):
        text_sampler("confidense")
