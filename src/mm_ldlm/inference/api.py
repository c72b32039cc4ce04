"""MMLDLM: the Python interface of a trained model.

Latents in arguments and results are *raw*: the encoder's vectors, as stores and `.npy` files contain them. Internally
they are standardised.
"""

from typing import Any

from mm_ldlm.core import Registry
from mm_ldlm.inference import generating, reading
from mm_ldlm.inference.model import LoadedModel

REQUESTS = Registry(what="request", core={}, group="requests")
"""Methods and properties that families and other packages add to `MMLDLM`: functions whose first argument is the model,
and properties."""


class MMLDLM(LoadedModel):
    """Trained model that embeds, inverts, generates and scores texts; extras and families add further requests.

    `MMLDLM.from_run(path)` loads it from a run folder; `capabilities` lists the supported uses. Samplers are chosen by
    kind or by their configuration. The `seed` and the position of a text in the request determine its sample, for any
    batching. Methods that re-embed texts, or receive texts in place of latents, need the encoder.

    See `LoadedModel` for the arguments of the constructor.
    """

    invert = generating.invert
    generate = generating.generate
    embed = reading.embed
    encode = reading.encode
    neighbours = reading.neighbours
    score = reading.score

    def __getattr__(self, name: str) -> Any:
        """Find a request that a family or another package adds (`REQUESTS`)."""
        if name.startswith("_") or name not in REQUESTS:
            raise AttributeError(f"'MMLDLM' object has no attribute {name!r}")
        return REQUESTS.load(name).__get__(self, type(self))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *REQUESTS})
