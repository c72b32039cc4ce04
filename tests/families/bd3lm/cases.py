"""Options of block diffusion for the conformance suites."""

OPTIONS = {
    ("objectives", "block_diffusion"): [
        {"_model": {"block_length": 3}},
        {"t_max": 0.3, "process": {"kind": "absorbing", "t_min": 0.3}, "z_loss": 1e-3, "_model": {"block_length": 1}},
    ],
    ("models", "block_dit"): [{"block_length": 2}],
}
MODELS = {"block_diffusion": {"kind": "block_dit"}}
