"""Data of CCDD for the conformance suites."""

import torch

FIELDS = {"token_states": (3,)}
VALUES = {"token_states": lambda tokens_BL, valid_BL, draw: torch.randn(*tokens_BL.shape, 3, generator=draw)}
INPUTS = {
    "states_BLd": lambda model, batch, draw: torch.randn(*batch.tokens_BL.shape, 3, generator=draw),
    "null_state_B": lambda model, batch, draw: torch.arange(len(batch.tokens_BL)) % 2 == 1,
}
OPTIONS = {
    ("objectives", "ccdd"): [{}, {"timesteps": "separate", "state_loss": "min_snr"}],
    ("models", "ccdd"): [{}, {"state_adaln": True}],
}
MODELS = {"ccdd": {"kind": "ccdd"}}
