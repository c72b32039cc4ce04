from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.models.base import DataShape, count_parameters
from mm_ldlm.models.registry import MODELS
from mm_ldlm.training import memory
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.memory import estimate, refuse_beyond_memory, tokens_of_a_batch

GIB = 2**30
SHAPE = DataShape(
    vocab_size=50, pad_id=48, mask_id=49, max_length=12, latent_dim=8, state_dim=8, image_size=(8, 8, 1)
)  # fmt: skip


def model(kind: str = "mmdit", **options: Any) -> Any:
    return parse_kind(MODELS, {"kind": kind, **options}, at="model")


def training(**options: Any) -> TrainingConfig:
    options = {"max_steps": 200, "batch": {"examples": 64}, "device": "cpu", **options}
    return parse(TrainingConfig, options, at="training")


@pytest.mark.parametrize("kind", MODELS.known)
def test_parameters_are_counted_without_memory_for_their_values(kind: str) -> None:
    import torch

    config = model(kind, dim=64)
    built = config.build(SHAPE, generator=torch.Generator().manual_seed(0))
    found = estimate(config, SHAPE, training(), tokens=0)
    assert found.parameters == count_parameters(built)
    assert found.states == count_parameters(built) * 4 * 5  # weights, gradients, two moments, average
    assert all(not parameter.is_meta for parameter in built.parameters())


def test_states_depend_on_optimizer_average_and_sharding() -> None:
    plain = estimate(model(), SHAPE, training(ema={"enabled": False}, optimizer={"name": "muon"}), tokens=0)
    assert plain.states == plain.parameters * 4 * 3
    sharded = estimate(model(), SHAPE, training(parallel="fsdp", launch={"processes": 4}), tokens=0)
    assert sharded.states == plain.parameters * 4 * 5 // 4


def test_activations_grow_with_the_micro_batch_of_a_rank() -> None:
    def of(tokens: float, *, recompute: bool = False, **options: Any) -> int:
        return estimate(
            model(gradient_checkpointing=recompute), SHAPE, training(**options), tokens=tokens
        ).activations  # fmt: skip

    assert of(8000) == 8 * of(1000)
    assert of(8000, launch={"processes": 2}, batch={"examples": 64, "accumulation": 4}) == of(1000)
    assert of(8000, precision={"autocast": "bf16"}) == of(8000) // 2
    assert of(8000, precision={"autocast": "fp16"}) == of(8000) // 2
    assert of(8000, precision={"autocast": "auto"}) == of(8000) // 2, "the machine may choose bf16"
    assert of(8000, recompute=True) < of(8000) // 3


def test_what_cannot_fit_is_refused_with_the_estimate_and_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda device: ("CPU", 2 * GIB))
    refuse_beyond_memory(model(), SHAPE, training(), tokens=1000)
    started = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"^parameter 'model': training needs at least [\d,.]+ GiB .*2\.0 GiB"):
        refuse_beyond_memory(model(dim=16_384, depth=64), SHAPE, training(), tokens=1000)
    with pytest.raises(ConfigurationError, match=r"^parameter 'training\.batch': training needs .*found 2\.0 GiB"):
        refuse_beyond_memory(model(), SHAPE, training(), tokens=1e8)
    # Every process of a CPU has a replica of its own.
    one = estimate(model(dim=256), SHAPE, training(), tokens=0).bytes
    processes = 2 * GIB // one + 1
    with pytest.raises(ConfigurationError, match=f"× {processes} processes"):
        refuse_beyond_memory(model(dim=256), SHAPE, training(launch={"processes": processes}), tokens=0)
    refuse_beyond_memory(model(dim=256), SHAPE, training(launch={"processes": processes - 1}), tokens=0)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("options", [{"dim": 65_536, "mlp_ratio": 1000.0, "heads": 64}, {"conditioning_dim": 65_536}])
def test_the_largest_sizes_that_parameters_accept_are_estimated(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda device: ("CPU", 8 * GIB))
    shape = dataclasses.replace(SHAPE, max_length=65_536)
    if "dim" in options:
        with pytest.raises(ConfigurationError, match="training needs at least"):
            refuse_beyond_memory(model(**options), shape, training(), tokens=1)
    else:
        estimate(model(**options), shape, training(), tokens=1)


def test_tokens_of_a_batch_are_those_of_the_data() -> None:
    lengths = np.array([2, 4, 6])
    assert tokens_of_a_batch(training(batch={"examples": 2}), lengths) == 8
    assert tokens_of_a_batch(training(batch={"examples": 10**8}), lengths) == 12
    assert tokens_of_a_batch(training(batch={"tokens": 10}), lengths) == 10
    assert tokens_of_a_batch(training(batch={"tokens": 10**8}), lengths) == 12
    assert tokens_of_a_batch(training(), lengths[:0]) == 0


def test_a_compiled_step_has_the_tokens_of_a_full_batch() -> None:
    """Its batches are filled, so that few shapes occur: a small dataset does not make a large batch small."""
    lengths, compiled = np.array([4, 2, 6]), {"precision": {"compile": True}}
    assert tokens_of_a_batch(training(batch={"tokens": 10**8}, **compiled), lengths) == 10**8
    assert tokens_of_a_batch(training(batch={"examples": 10**8}, **compiled), lengths) == 4 * 10**8
    assert tokens_of_a_batch(training(batch={"examples": 2}, **compiled), lengths[:0]) == 0


def test_the_memory_of_this_machine_is_found() -> None:
    name, found = memory.memory_of("cpu")
    assert name == "CPU"
    assert 2**28 < found < 2**50


@pytest.mark.parametrize(("limit", "expected"), [("3000", 3000), ("max", 9000), ("99000", 9000), (None, 9000)])
def test_the_memory_of_a_container_is_its_limit(
    limit: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PAGE_SIZE": 90, "SC_PHYS_PAGES": 100}.__getitem__)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "memory.max")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
    for device in ("cpu", "auto"):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert memory.memory_of(device) == ("CPU", expected)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"batch_tokens": 1000, "batch_rows": 64, "max_length": 10}, 640),
        ({"batch_tokens": 500, "batch_rows": 64, "max_length": 10}, 500),
        ({"batch_tokens": 10**6, "batch_rows": 2, "max_length": None}, 2 * 512),
    ],
)
def test_a_batch_of_the_encoder_fits_up_to_the_whole_memory(
    options: dict[str, Any], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = SimpleNamespace(device="cpu", dim=16, **options)
    needed = tokens * 16 * 4 * 8  # eight vectors of float32 for each token
    monkeypatch.setattr(memory, "memory_of", lambda device: ("CPU", needed))
    memory.refuse_large_batch(encoder)
    monkeypatch.setattr(memory, "memory_of", lambda device: ("CPU", needed - 1))
    with pytest.raises(ConfigurationError, match=f"'encoder.batch_tokens': a batch of {tokens:,} tokens"):
        memory.refuse_large_batch(encoder)


def test_the_refusal_has_the_numbers_of_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda device: ("CPU", GIB))
    given = training(launch={"processes": 3}, batch={"examples": 64, "accumulation": 2})
    needed = estimate(model(dim=256), SHAPE, given, tokens=6e6)
    assert needed.states != needed.activations
    with pytest.raises(ConfigurationError) as raised:
        refuse_beyond_memory(model(dim=256), SHAPE, given, tokens=6e6)
    words = (
        f"training needs at least {3 * needed.bytes / GIB:,.1f} GiB for {needed.parameters:,} parameters and 1,000,000 "
        f"tokens in a micro-batch ({needed.states / GIB:,.1f} GiB of weights, gradients, optimizer and average, "
        f"{needed.activations / GIB:,.1f} GiB of activations, × 3 processes), found 1.0 GiB (CPU). "
    )
    assert words in str(raised.value)
