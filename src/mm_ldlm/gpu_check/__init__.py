"""Acceptance of a machine with a GPU in one command: `python -m mm_ldlm.gpu_check` (`make gpu-check`).

Each check is a function of a `Setting` that returns a `Finding`: measured numbers, and faults if there are any. The
room needs torch, numpy, pyarrow, safetensors and tokenizers, and neither Kedro nor MLflow. It trains with the loop, the
worker and the launcher of any run.
"""
