"""Parameters under `completion`."""

from typing import Annotated, Any

from mm_ldlm.core import PositiveInt, config
from mm_ldlm.sampling.registry import TEXT_SAMPLERS


@config
class CompletionConfig:
    """Section `completion`.

    Attributes:
        after: the mark behind which the model writes, one token of every text; null leaves the suite out.
        texts: number of held-out texts.
        sampler: of the rest of a text; null: the model's own, as `MMLDLM.infill` uses it.
    """

    after: str | None = None
    texts: PositiveInt = 500
    sampler: Annotated[Any, TEXT_SAMPLERS] = None
