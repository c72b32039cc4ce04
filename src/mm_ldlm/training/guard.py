"""Guard against non-finite steps and spikes: decide whether an update is applied.

`Guard` reads only numbers from an all-reduce, no tensors, so every rank makes the same decision. A non-finite step
changes nothing: its gradients are cleared, and its numbers never enter the window with which later steps are compared.
"""

import collections
import dataclasses
import math
import statistics
from typing import Any, Literal

from mm_ldlm.training.config import GuardConfig

Action = Literal["apply", "skip", "rollback", "stop"]

OVERFLOWS = 24
"""Largest number of fp16 overflows in a row that the loss scale explains: it starts at 2¹⁶ and halves each time."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Decision on a step, with the reason in words (empty for an ordinary step; a spike may be applied)."""

    action: Action
    reason: str = ""
    non_finite: bool = False


@dataclasses.dataclass
class Guard:
    """Guard with counts and windows across steps; each kind of step has its own window, because losses differ."""

    config: GuardConfig
    consecutive_skips: int = 0
    consecutive_spikes: int = 0
    consecutive_overflows: int = 0
    rollbacks: int = 0
    windows: dict[str, collections.deque[float]] = dataclasses.field(default_factory=dict)

    def judge(
        self, *, kind: str, loss: float, grad_norm: float, bad_ranks: list[int], overflow: bool = False
    ) -> Verdict:
        """Decide on one step.

        Args:
            kind: kind of the step; it is compared with steps of the same kind.
            loss: the step's global loss.
            grad_norm: the global gradient norm before clipping.
            bad_ranks: ranks whose own loss was not finite.
            overflow: whether a loss scale is in use (fp16), which non-finite gradients lower. Such a step is skipped,
                but counts as non-finite only after `OVERFLOWS` overflows in a row.
        """
        if not bad_ranks and math.isfinite(loss) and not math.isfinite(grad_norm) and overflow:
            self.consecutive_overflows += 1
            if self.consecutive_overflows <= OVERFLOWS:
                return Verdict("skip", "fp16 gradients overflowed; the scale is lowered")
        else:
            self.consecutive_overflows = 0
        if bad_ranks or not math.isfinite(loss) or not math.isfinite(grad_norm):
            what = f"loss is {loss}" if bad_ranks or not math.isfinite(loss) else f"gradient norm is {grad_norm}"
            where = f" (rank {', '.join(map(str, bad_ranks))})" if bad_ranks else ""
            self.consecutive_skips += 1
            return self._escalate(f"{what}{where}", non_finite=True)
        high = [
            f"{name} {value:.4g} is {z:.1f} robust standard deviations above its median"
            for name, value in (("loss", loss), ("gradient norm", grad_norm))
            if (z := self._score(f"{kind}/{name}", value)) > self.config.spike_z
        ]
        self._admit(f"{kind}/loss", loss)
        self._admit(f"{kind}/gradient norm", grad_norm)
        if not high:
            self.consecutive_skips = self.consecutive_spikes = 0
            return Verdict("apply")
        reason = "; ".join(high)
        self.consecutive_spikes += 1
        if self.consecutive_spikes >= self.config.spike_patience:
            self.consecutive_spikes = 0
            return self.give_up(f"{self.config.spike_patience} spikes in a row: {reason}")
        if self.config.spike_action == "skip":
            self.consecutive_skips += 1
            return self._escalate(reason)
        self.consecutive_skips = 0
        return Verdict("apply", reason)

    def _escalate(self, reason: str, *, non_finite: bool = False) -> Verdict:
        if self.consecutive_skips < self.config.max_consecutive_skips:
            return Verdict("skip", reason, non_finite)
        reason = f"{self.consecutive_skips} steps skipped in a row, the last because {reason}"
        return self.give_up(reason, non_finite=non_finite)

    def give_up(self, reason: str, *, non_finite: bool = False) -> Verdict:
        """Decide to roll back, or to stop after the last roll-back."""
        if self.rollbacks >= self.config.max_rollbacks:
            return Verdict(
                "stop", f"{reason}; guard.max_rollbacks ({self.config.max_rollbacks}) is reached", non_finite
            )
        return Verdict("rollback", reason, non_finite)

    def forget(self) -> None:
        """Reset counts and windows after a roll-back; the number of roll-backs is kept."""
        self.consecutive_skips = self.consecutive_spikes = self.consecutive_overflows = 0
        self.windows.clear()

    def _score(self, name: str, value: float) -> float:
        """Compute (value − median) / (1.4826 · MAD) over the window; 0 while the window is short."""
        window = self.windows.get(name, ())
        if len(window) < max(self.config.spike_window // 4, 8):
            return 0.0
        middle = statistics.median(window)
        spread = 1.4826 * statistics.median(abs(item - middle) for item in window)
        return (value - middle) / max(spread, 0.01 * abs(middle), 1e-12)

    def _admit(self, name: str, value: float) -> None:
        self.windows.setdefault(name, collections.deque(maxlen=self.config.spike_window)).append(value)

    def to_dict(self) -> dict[str, Any]:
        counts = {name: count for name, count in vars(self).items() if isinstance(count, int)}
        return counts | {"windows": {name: list(window) for name, window in self.windows.items()}}

    def load(self, found: dict[str, Any]) -> None:
        for name in self.to_dict().keys() - {"windows"}:
            setattr(self, name, int(found.get(name, 0)))  # older checkpoints have no overflows
        windows = {name: map(float, values) for name, values in found["windows"].items()}
        self.windows = {
            name: collections.deque(values, maxlen=self.config.spike_window) for name, values in windows.items()
        }
