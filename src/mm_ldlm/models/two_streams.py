"""Parts that the two-stream models share: a dropped text, and the mask of the keys of both streams.

B examples, L positions of the text, K tokens of the other stream, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def drop_text(text_BLD: Tensor, valid_BL: Tensor | None, null_B: Tensor, *, null_text: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the texts of `null_B` by one null token at position 0 and padding after it.

    Returns:
        The texts (B, L, D) and which of their positions are valid (B, L).
    """
    text_BLD = torch.where(null_B[:, None, None], null_text, text_BLD)
    shape, device = text_BLD.shape[:2], text_BLD.device
    valid_BL = torch.ones(shape, dtype=torch.bool, device=device) if valid_BL is None else valid_BL
    first_L = torch.arange(shape[1], device=device) == 0
    return text_BLD, torch.where(null_B[:, None], first_L, valid_BL)


def joint_key_mask(valid_BL: Tensor | None, *, others: int) -> Tensor | None:
    """Make the mask (B, 1, 1, L+K) that excludes padding of the text, or None if there is none.

    The `others` = K tokens of the other stream are always read, so no row lacks a key.
    """
    if valid_BL is None:
        return None
    # The check is cheap on the CPU; on a GPU it would wait for the device, and it would break a compiled graph.
    if valid_BL.device.type == "cpu" and not torch.compiler.is_compiling() and bool(valid_BL.all()):
        return None
    return F.pad(valid_BL, (0, others), value=True)[:, None, None, :]
