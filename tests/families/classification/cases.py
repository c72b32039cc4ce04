"""Data of classification for the conformance suites."""

import torch
from torch import Tensor


def _names(*names: str) -> Tensor:
    longest = max(map(len, names))
    return torch.tensor([list(name.encode().ljust(longest, b"\0")) for name in names], dtype=torch.uint8)


STORES = {"label_names": _names("first", "second", "similar")}
VALUES = {
    "labels": lambda tokens_BL, valid_BL, draw: torch.randint(3, (len(tokens_BL), 1), generator=draw),
    "pair_tokens": lambda tokens_BL, valid_BL, draw: tokens_BL.flip(0),
}
OPTIONS = {
    ("objectives", "classification"): [
        {},
        {"features": "trunk", "_model": {"kind": "dit"}},
    ]
}
MODELS = {"classification": {"kind": "latent_mlp"}, "pairwise_classification": {"kind": "dit"}}
