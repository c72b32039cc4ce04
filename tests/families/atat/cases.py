"""Options of adaptive masking for the conformance suites."""

OPTIONS = {
    ("objectives", "adaptive_masking"): [
        {"estimator": {"dim": 8, "depth": 1, "heads": 2}},
        {"importance": "frequency_only", "policy": "importance", "curriculum": {"pace": "dynamic"}, "warmup_steps": 0},
    ]
}
MODELS = {"adaptive_masking": {"kind": "dit"}}
