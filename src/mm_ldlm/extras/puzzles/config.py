"""Parameters under `completion`."""

from collections.abc import Mapping
from typing import Annotated, Any

from mm_ldlm.core import PositiveInt, config
from mm_ldlm.sampling.registry import TEXT_SAMPLERS


@config
class CompletionConfig:
    """Section `completion`.

    Attributes:
        after: token of every text after which the model writes; null leaves the suite out.
        texts: number of held-out texts.
        sampler: sampler of the rest of a text; null: the model's default, as for `MMLDLM.infill`.
    """

    after: str | None = None
    texts: PositiveInt = 500
    sampler: Annotated[Any, TEXT_SAMPLERS] = None


def problems(sections: Mapping[str, Any]) -> list[str]:
    """List the sampler where it does not fit the run; the suite leaves out a run that completes no texts."""
    sampler, capabilities = sections["completion"].sampler, sections["objective"].capabilities(sections["model"])
    use = capabilities.filling()
    if sampler is None or use not in capabilities:
        return []
    reason = capabilities.sampler_refusal(sampler, use, given_latent=False)
    return [] if reason is None else [f"parameter 'completion.sampler': {reason}"]
