"""MM-LDLM: multimodal latent diffusion language models as a Kedro project.

`from mm_ldlm import MMLDLM` gives the trained model's Python face; everything else is reached through `kedro run` or
through its room (`mm_ldlm.models`, `mm_ldlm.sampling`, …). Importing this package imports nothing heavy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_ldlm.inference import MMLDLM as MMLDLM

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "MMLDLM":
        from mm_ldlm.inference import MMLDLM

        return MMLDLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
