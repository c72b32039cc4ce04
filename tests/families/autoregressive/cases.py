"""Options of the autoregressive objective for the conformance suites."""

OPTIONS = {("objectives", "autoregressive"): [{}, {"z_loss": 0.01}]}
MODELS = {"autoregressive": {"kind": "causal"}}
