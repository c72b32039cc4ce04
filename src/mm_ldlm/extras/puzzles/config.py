"""Parameters under `completion`."""

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
