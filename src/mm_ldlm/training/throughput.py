"""Throughput and time budget: tokens per second, utilisation, remaining seconds."""

import math
import time

import torch

from mm_ldlm.training.batches import Loader, Planned
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.counters import TrainingState


class Throughput:
    """Counter of seconds and tokens since the last log line; it adds the time in the loop to `state.seconds`."""

    def __init__(self, loader: Loader, state: TrainingState, config: TrainingConfig) -> None:
        self.loader, self.state, self.process = loader, state, loader.process
        self.max_steps, self.max_minutes = config.steps, config.max_minutes
        self._line_start = self._counted_until = time.perf_counter()
        self._tokens = self._padded = self._steps = self._clips = 0
        self._norms: list[float] = []
        self._waited = loader.waited
        self._began: float | None = None  # end of the first step, which compiles
        self._measured = 0  # steps after it
        self.flops_per_token = 0.0

    def out_of_time(self) -> bool:
        """Return whether `max_minutes` of training have passed on this rank."""
        if self.max_minutes is None:
            return False
        return self.state.seconds + time.perf_counter() - self._counted_until > self.max_minutes * 60

    def applied(self, grad_norm: float, clipped: bool) -> None:
        """Record the gradient norm of a step that was applied."""
        self._norms.append(grad_norm)
        self._clips += clipped

    def stepped(self, planned: Planned) -> None:
        """Record the tokens of a step."""
        self._tokens += planned.tokens
        self._padded += len(planned.examples) * planned.length
        self._steps += 1
        if self._began is None:
            self._began = time.perf_counter()
        else:
            self._measured += 1

    def _seconds_left(self) -> float | None:
        """Estimate the seconds until the last step or the end of `max_minutes`; None before a step was measured.

        The seconds per step include validation and checkpoints, which continue at the same intervals.
        """
        if self._began is None or not self._measured:
            return None
        left = (self.max_steps - self.state.step) * (time.perf_counter() - self._began) / self._measured
        return left if self.max_minutes is None else min(left, max(0.0, self.max_minutes * 60 - self.state.seconds))

    def count_seconds(self) -> None:
        """Add the time since the last call to the run's seconds."""
        now = time.perf_counter()
        self.state.seconds += now - self._counted_until
        self._counted_until = now

    def line(self, lr: float) -> dict[str, float]:
        """Compute the fields of a log line."""
        self.count_seconds()
        state, now = self.state, time.perf_counter()
        seconds = max(now - self._line_start, 1e-9)
        found = {
            "lr": lr,
            "grad_norm": sum(self._norms) / len(self._norms) if self._norms else math.nan,
            "grad_norm_max": max(self._norms, default=math.nan),
            "clipped": self._clips / max(self._steps, 1),
            "skipped": state.skipped,
            "rollbacks": state.rollbacks,
            "tokens": state.tokens,
            "tokens_per_second": self._tokens / seconds,
            "padding_fraction": 1 - self._tokens / max(self._padded, 1),
            "seconds_per_step": seconds / max(self._steps, 1),
            "waiting_fraction": (self.loader.waited - self._waited) / seconds,
            "seconds": state.seconds,
        }
        if (left := self._seconds_left()) is not None:
            found["seconds_left"] = left
        if self.flops_per_token:
            rate = self._padded / seconds * self.flops_per_token
            found["tflops_per_second"] = rate / 1e12
            if (peak := peak_flops(self.process.device)) is not None:
                found["flops_utilisation"] = rate / (peak * self.process.world)
        self._line_start, self._waited = now, self.loader.waited
        self._tokens = self._padded = self._steps = self._clips = 0
        self._norms = []
        return found


PEAKS = {
    "B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
    "A100": 312e12, "L40S": 362e12, "L40": 181e12, "4090": 165e12, "A40": 150e12, "A30": 165e12, "A10G": 70e12,
    "A10": 125e12, "L4": 121e12, "T4": 65e12,
}  # fmt: skip
"""Part of a device name → dense bf16 throughput in FLOP/s of the vendor's data sheet (T4: fp16); the first match
counts."""


def peak_flops(device: torch.device) -> float | None:
    """Return the peak throughput of the device in FLOP/s, or None if it is unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for word, peak in PEAKS.items() if word in name), None)
