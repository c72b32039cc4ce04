"""MM-LDLM: multimodal latent diffusion language models as a Kedro project.

`from mm_ldlm import MMLDLM` imports the Python API of trained models. Everything else is run by `kedro run` or imported
from its room (`mm_ldlm.models`, `mm_ldlm.sampling`, …). Importing this package does not import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_ldlm.inference.api import MMLDLM

__all__ = ["MMLDLM"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "MMLDLM":
        from mm_ldlm.inference.api import MMLDLM

        return MMLDLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
