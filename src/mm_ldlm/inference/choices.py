"""Sampler arguments of the Python API: a kind, a configuration or None, with the caller's overrides."""

from __future__ import annotations

from typing import Any

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.kinds import Kinds
from mm_ldlm.inference import inputs
from mm_ldlm.sampling.limits import MOST_DRAWS, MOST_STEPS
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, latent_sampler


def text_config(sampler: Any, steps: int | None, *, default: Any) -> Any:
    """Return the text sampler: `default` for None, a kind with the steps and temperature of `default`, or a
    configuration.

    Raises:
        ConfigurationError: there is no such kind, or a value is out of range; the message lists the kinds.
    """
    steps = inputs.check_optional(steps, name="steps", maximum=MOST_STEPS)
    if isinstance(sampler, str):
        sampler = _by_name(TEXT_SAMPLERS, sampler, default)
    chosen = parse_kind(TEXT_SAMPLERS, default if sampler is None else sampler, at="sampler")
    return chosen if steps is None else chosen.override(steps=steps)


def latent_config(sampler: Any, steps: int | None, draws: int | None) -> Any:
    """Return the latent sampler: `ddim` for None, a kind, or a configuration."""
    steps = inputs.check_optional(steps, name="steps", maximum=MOST_STEPS)
    draws = inputs.check_optional(draws, name="draws", maximum=MOST_DRAWS)
    if isinstance(sampler, str):
        sampler = {"kind": sampler}
    chosen = parse_kind(LATENT_SAMPLERS, latent_sampler("ddim") if sampler is None else sampler, at="sampler")
    return chosen if steps is None and draws is None else chosen.override(steps=steps, draws=draws)


def _by_name(kinds: Kinds, kind: str, default: Any) -> dict[str, Any]:
    """Build the parameters of a kind, with the steps and temperature of the default sampler if it reads them."""
    known = getattr(kinds.find(kind, at="sampler"), "__dataclass_fields__", {})
    inherited = {
        key: getattr(default, key) for key in ("steps", "temperature") if key in known and hasattr(default, key)
    }
    inner = {"inner": default} if "inner" in known else {}
    return {"kind": kind, **inherited, **inner}
