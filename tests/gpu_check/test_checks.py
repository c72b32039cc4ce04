"""Each check of the GPU acceptance at small sizes on the CPU: it passes, and fails where a fault is planted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import yaml

from mm_ldlm.core.config import parse_kind
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process, joined
from mm_ldlm.extras.gpu_check import (
    compiling,
    extraction,
    flops,
    kernels,
    models,
    precision,
    rank,
    ranks,
    task,
    throughput,
)
from mm_ldlm.extras.gpu_check.outcome import Finding, Setting
from mm_ldlm.models import layers
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.mmdit import MMDiTConfig
from mm_ldlm.models.registry import MODELS
from mm_ldlm.training import throughput as peaks
from mm_ldlm.training.guard import Guard


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("cpu", tmp_path)


@pytest.fixture
def as_found() -> Iterator[None]:
    """Restore what compilation changes in torch."""
    limit = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.reset()


def passed(finding: Finding) -> dict[str, Any]:
    assert not finding.faults, finding.faults
    assert not finding.left_out
    json.dumps(finding.numbers, allow_nan=False)
    return finding.numbers


# -- kernels and models ------------------------------------------------------------------------------------------------


def test_attention_equals_its_formula_in_all_types(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert passed(kernels.attention(setting))["cases"] == 18
    plain = layers.short_attention
    monkeypatch.setattr(layers, "short_attention", lambda q, k, v, mask: plain(q, k, v, None))
    assert "masked of 18 positions, fp32" in " ".join(kernels.attention(setting).faults)


def test_rounding_like_tf32_exceeds_the_tolerance_of_attention(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF32 keeps 10 bits of the mantissa; the tolerance of fp32 must notice that."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        cut = (x.detach().view(torch.int32) + 0x1000) & ~0x1FFF
        return x + (cut.view(torch.float32) - x).detach()

    plain = layers.short_attention
    monkeypatch.setattr(
        layers, "short_attention", lambda q, k, v, mask: plain(rounded(q), rounded(k), rounded(v), mask)
    )
    faults = kernels.attention(setting).faults
    assert faults
    assert all("18 positions, fp32" in fault and "TF32 is off" in fault for fault in faults)


def test_cross_entropy_equals_its_formula(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    passed(kernels.cross_entropy(setting))
    plain = kernels.token_loss
    monkeypatch.setattr(kernels, "token_loss", lambda *a, **k: plain(*a, **{**k, "vocab_size": None}))
    assert "token loss" in kernels.cross_entropy(setting).faults[0]


def test_normalisation_equals_its_formula(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    passed(kernels.normalisation(setting))
    plain = layers.PrepareQKV.apply
    monkeypatch.setattr(layers.PrepareQKV, "apply", lambda epsilon, ropes, *pairs: plain(epsilon, (None, None), *pairs))
    assert "QK-norm and RoPE" in kernels.normalisation(setting).faults[0]


def test_every_model_is_compared_and_another_value_is_found(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert passed(models.models(setting))["models"] == len(MODELS.known)
    plain, calls = models.results, []

    def other(setting: Setting, spec: Any) -> Any:
        losses, gradients = plain(setting, spec)
        calls.append(spec)
        factor = 1.01 if len(calls) % 2 == 0 else 1.0  # the device's results come second
        return losses, {name: value * factor for name, value in gradients.items()}

    monkeypatch.setattr(models, "results", other)
    monkeypatch.setattr(models, "MODELS", dataclasses.replace(MODELS, known={"dit": MODELS.known["dit"]}))
    (fault,) = models.models(setting).faults
    assert fault.startswith("dit with text_diffusion: expected the losses within")


def test_a_model_that_cannot_be_built_is_a_fault_and_the_others_are_compared(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"nonsense": "mm_ldlm.none:None", "latent_mlp": MODELS.known["latent_mlp"]}
    monkeypatch.setattr(models, "MODELS", dataclasses.replace(MODELS, known=known))
    found = models.models(setting)
    assert found.numbers["models"] == 1
    assert found.faults[0].startswith("nonsense: ")


# -- precision and compilation -----------------------------------------------------------------------------------------


def test_bf16_trains_like_fp32_and_passes_the_sanity_checks(setting: Setting) -> None:
    numbers = passed(precision.bf16(setting))
    assert numbers["sanity checks"] == numbers["sanity checks passed"] >= 10
    assert 0 < numbers["loss error"] < precision.LOSS_TOLERANCE, "the option has an effect"


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1.5])
def test_a_loss_that_is_no_number_or_far_from_float32_is_a_fault(loss: float, place: int) -> None:
    losses = {"fp32": [3.0, 2.0, 1.0], "bf16": [3.0, 2.0, 1.0]}
    assert precision._deviation(losses, "bf16") == (0.0, [])
    losses["bf16"][place] = loss
    error, faults = precision._deviation(losses, "bf16")
    assert error > precision.LOSS_TOLERANCE
    assert "within" in faults[0]


def test_fp16_overflow_halves_the_scale_which_grows_and_is_restored(setting: Setting) -> None:
    numbers = passed(precision.fp16(setting))
    assert numbers["scale after overflow"] == numbers["scale restored"] == numbers["scale"] / 2
    assert numbers["scale after growth"] == numbers["scale"]
    assert numbers["skipped"] == 1


def test_a_guard_that_applies_an_overflow_fails_fp16(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Guard.judge

    def blind(self: Guard, *, grad_norm: float, **more: Any) -> Any:
        return plain(self, grad_norm=1.0, **more)

    monkeypatch.setattr(Guard, "judge", blind)
    assert "expected that the step with an overflow is skipped (1 skip; found 0)" in precision.fp16(setting).faults[0]


@pytest.mark.slow
@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("right", [True, False])
def test_a_compiled_model_has_the_same_losses(right: bool, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph runs as it is, without a compiler; one that adds to the logits stands for a wrong graph."""
    plain = torch.compile

    def wrong(x: Any) -> Any:
        return x + torch.linspace(0, 1, x.shape[-1]) if x is not None and x.is_floating_point() else x

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return graph.forward if right else lambda *given: tuple(wrong(x) for x in graph.forward(*given))

    monkeypatch.setattr(torch, "compile", lambda model, **how: plain(model, backend=backend, **how))
    finding = compiling.compiled(setting)
    if right:
        assert passed(finding)["loss error"] < 1e-5
    else:
        assert "expected the losses of a compiled model within 0.001" in finding.faults[0]


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_agree_and_a_poisoned_one_moves_nothing(setting: Setting) -> None:
    numbers = passed(ranks.ranks(setting))
    assert (numbers["ranks"], numbers["backend"]) == (2, "gloo")
    assert numbers["change by a poisoned step"] == 0


def test_a_killed_run_resumes_to_the_bit(setting: Setting) -> None:
    numbers = passed(ranks.kill_resume(setting))
    assert (numbers["killed in step"], numbers["resumed from"]) == (5, "step-00000004")


def test_a_group_of_one_process_checks_every_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(device="cpu", group_of_one=True) as process:
        found = rank.check_collectives(process, megabytes=0.01)
        assert (found["wrong"], found["world"], found["backend"], found["active"]) == ([], 1, "gloo", True)
        monkeypatch.setattr(rank.collectives, "broadcast", lambda tensor: tensor + 1)
        monkeypatch.setattr(rank.collectives, "max_", lambda tensor: tensor - 1)
        assert rank.check_collectives(process, megabytes=0.01)["wrong"] == ["broadcast", "maximum"]
        monkeypatch.setattr(rank.collectives, "gather_texts", lambda text, *, device: [text, "sum,maximum", ""])
        found = rank.check_collectives(process, megabytes=0.01)
        assert found["wrong"] == ["broadcast", "gather", "maximum", "sum"], "also those of the other ranks"
    with joined(device="cpu") as process:
        assert process.backend is None


def test_faults_of_ranks_are_found(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process instead of the launched ones: a wrong sum, and a poisoned step that moves the weights."""

    def instead(setting: Setting, spec: Any, *, root: Path, fault: Any = None, **more: Any) -> None:
        root.mkdir(exist_ok=True)
        if spec is None:
            found = {"wrong": ["sum"], "world": 2, "backend": "gloo", "active": True, "gigabytes_per_second": 1.0}
            (root / "collectives.json").write_text(json.dumps(found))
        else:
            rank.train_case(spec, root=root)

    monkeypatch.setattr(ranks, "start", instead)
    first, second, third = ranks.ranks(setting).faults
    assert "found wrong results of sum" in first
    assert "expected a NaN on rank 1 in step 3 to be skipped on all ranks" in second
    assert "expected the losses of 2 processes within 0.001 of one, found inf" in third


def test_a_resumed_run_that_differs_is_found(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ranks.train_case
    monkeypatch.setattr(ranks, "train_case", lambda spec, *, root, **more: plain(spec, root=root, **more))

    def instead(setting: Setting, spec: Any, *, root: Path, **more: Any) -> None:
        other = ranks.task.replace_training(spec, max_steps=5)  # another end of the learning-rate schedule
        rank.train_case(other, root=root)
        raise ranks.WorkerFailed("rank 0 was ended by SIGKILL")

    monkeypatch.setattr(ranks, "start", instead)
    (fault,) = ranks.kill_resume(setting).faults
    assert "to equal the undisturbed one to the bit" in fault


# -- extraction --------------------------------------------------------------------------------------------------------


def test_extraction_equals_the_cpu_and_repeats(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    extract, seconds = extraction.extract, iter([5.0, 2.0, 1.0, 1.0])
    monkeypatch.setattr(extraction, "extract", lambda *given: extract(*given) and next(seconds))
    numbers = passed(extraction.extraction(setting))
    assert numbers["repeated bytes"] is True
    assert numbers["sentences per second"] == 96 / 2, "of the second time, when everything is loaded"
    plain, made = extraction.RandomEncoder.run, []

    def drifting(self: extraction.RandomEncoder, prepared: Any) -> Any:
        made.append(self)
        return plain(self, prepared) + 1e-3 * len(made)

    monkeypatch.setattr(extraction.RandomEncoder, "run", drifting)
    (setting.folder / "again").mkdir()
    faults = extraction.extraction(Setting("cpu", setting.folder / "again")).faults
    assert ["found a difference" in faults[0], "found others" in faults[1]] == [True, True]


def test_the_random_encoder_has_unit_vectors_that_do_not_depend_on_the_batch() -> None:
    encoder = extraction.RandomEncoder(dim=16, depth=1, heads=2, device="cpu")
    texts = ["a", "longer than the others", "", "b c"]
    vectors = encoder.encode(texts)
    assert torch.from_numpy(vectors)[[0, 1, 3]].norm(dim=1).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert vectors[1] == pytest.approx(encoder.encode(texts[1:2])[0], abs=1e-5)


# -- operations, throughput --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        (("text", "length"), {}),
        (("latent",), {"condition_on_latent": False, "conditioning_dim": 24}),
        (("text", "latent", "length"), {"mlp_ratio": 3.125, "length_hidden_dim": 20}),
        (("text", "latent"), {"self_condition": True}),
    ],
)
def test_the_formula_for_operations_equals_torchs_counter(heads: Any, options: dict[str, Any]) -> None:
    config = MMDiTConfig(dim=32, depth=3, heads=2, latent_tokens=3, token_vectors="random", **options)
    shape = DataShape(vocab_size=50, pad_id=0, mask_id=1, max_length=70, latent_dim=8)
    counted, _ = flops.counted_flops(config, shape, examples=2, heads=heads)
    assert counted == flops.forward_flops(config, shape, examples=2, length=70, logits=140, heads=heads)


def test_a_step_with_gradients_has_three_times_the_operations_of_a_forward_pass() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from mm_ldlm.models.mmdit import MMDiT

    config = MMDiTConfig(dim=64, depth=3, heads=2, latent_tokens=4, token_vectors="random")
    shape = DataShape(vocab_size=200, pad_id=0, mask_id=1, max_length=70, latent_dim=8)
    model = config.build(shape, generator=torch.Generator().manual_seed(0))
    assert isinstance(model, MMDiT)
    for block in model.blocks:
        block.attention.fused = False
    with FlopCounterMode(display=False) as counter:
        out = model(
            torch.zeros(2, 70, dtype=torch.int64), valid_BL=None, t_text_B=torch.zeros(2), latents_Bd=torch.zeros(2, 8),
            t_latent_B=torch.zeros(2), heads=("text", "length"),
        )  # fmt: skip
        (out.logits_BLV.sum() + out.length_logits_BN.sum()).backward()
    forward = flops.forward_flops(config, shape, examples=2, length=70, logits=140, heads=("text", "length"))
    assert counter.get_total_flops() == pytest.approx(flops.BACKWARD * forward, rel=0.02)


def test_the_892m_model_is_that_of_conf_and_its_operations_are_counted(project: Path, setting: Setting) -> None:
    written = yaml.safe_load((project / "conf/mmdit_892m/parameters.yml").read_text())["model"]
    assert parse_kind(MODELS, written, at="model") == flops.MMDIT_892M
    numbers = passed(flops.flops(setting))
    assert (numbers["ratio to torch's counter"], numbers["parameters"]) == (1.0, flops.PARAMETERS_892M)


def test_an_option_that_the_formula_does_not_cover_is_refused() -> None:
    config = MMDiTConfig(dim=32, heads=2, direct_views=True)
    with pytest.raises(flops.ConfigurationError, match=r"direct_views=True.*Use torch's FlopCounterMode"):
        flops.forward_flops(config, flops.SHAPE_892M, examples=1, length=1, logits=1, heads=("text",))


@pytest.mark.parametrize("check", [throughput.throughput, throughput.memory_892m])
def test_throughput_is_measured_and_the_peak_of_a_cpu_is_unknown(check: Any, setting: Setting) -> None:
    numbers = passed(check(setting))
    assert numbers["tokens per second"] > 0
    assert numbers["TFLOP per second"] > 0
    assert numbers["utilisation"] is None
    assert "memory GiB" not in numbers


def test_a_utilisation_above_one_and_losses_that_are_not_finite_are_faults() -> None:
    assert not throughput.implausible([1.0], 0.4)
    assert "between 0 and 1, found 1.2" in throughput.implausible([1.0], 1.2)[0]
    assert "expected finite losses" in throughput.implausible([float("nan")], None)[0]


class Timed:
    """A session whose steps take a known time, and whose losses are known."""

    def __init__(self, first: float, others: float, losses: list[float]) -> None:
        self.seconds, self._losses, self.steps = iter([first, others]), losses, []  # type: ignore[var-annotated]
        self.log = SimpleNamespace(losses=lambda: self._losses, lines=[{"masking_rate": 0.5}, {"masking_rate": 0.25}])

    def train(self, steps: int) -> float:
        self.steps.append(steps)
        return steps * next(self.seconds)


def test_a_throughput_is_that_of_the_timed_steps_in_the_units_of_its_name(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six texts of 12 tokens in two micro-batches take a quarter of a second; the two warm-up steps are not timed."""
    run = Timed(9.0, 0.25, [2.0, 1.0])
    monkeypatch.setattr(throughput, "session", lambda *_, **__: contextlib.nullcontext(run))
    numbers = passed(throughput.measure(setting, throughput.SMALL, task.TINY, examples=6, accumulation=2, steps=3))
    assert run.steps == [2, 3]
    operations = 3 * flops.forward_flops(
        throughput.SMALL, task.TINY, examples=6, length=12, logits=27, heads=("text", "length")
    )  # fmt: skip
    assert numbers == {
        "parameters": throughput.sum_of_parameters(throughput.SMALL, task.TINY), "tokens per second": 6 * 12 / 0.25,
        "ms per step": 250.0, "TFLOP per second": pytest.approx(operations / 0.25 / 1e12),
        "peak TFLOP per second": None, "utilisation": None,
    }  # fmt: skip


@pytest.mark.parametrize(("last", "faults"), [(1.0 + 0.9e-3, 0), (1.0 + 1.1e-3, 1), (float("nan"), 1)])
def test_the_times_with_and_without_compilation_keep_their_names(
    last: float, faults: int, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {False: Timed(1.0, 0.3, [2.0, 1.0]), True: Timed(10.0, 0.2, [2.0, last])}
    monkeypatch.setattr(
        compiling, "session", lambda spec, *_, **__: contextlib.nullcontext(runs[spec.training.precision.compile])
    )
    found = compiling.compiled(setting)
    assert [run.steps for run in runs.values()] == [[1, compiling.STEPS - 1]] * 2
    times = {name: found.numbers[name] for name in ("seconds of compiling", "ms per step", "ms per step without")}
    assert times == pytest.approx({"seconds of compiling": 9.8, "ms per step": 200.0, "ms per step without": 300.0})
    assert len(found.faults) == faults


def test_the_speed_of_an_all_reduce_counts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MiB in each of ten repeats, which take three seconds together."""
    monkeypatch.setattr(rank, "time", SimpleNamespace(perf_counter=iter([50.0, 53.0]).__next__))
    found = rank.check_collectives(Process(RankInfo(), torch.device("cpu"), None), megabytes=2.0)
    assert found["gigabytes_per_second"] == pytest.approx(2 * 2**20 / 0.3 / 1e9)
    assert (found["world"], found["active"]) == (1, False)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362), ("NVIDIA L4", 121), ("NVIDIA A10G", 70), ("Tesla T4", 65),
        ("NVIDIA GeForce GTX 970", None),
    ],
)  # fmt: skip
def test_the_peak_of_a_device_is_found_by_its_name(
    name: str, tflops: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peaks.peak_flops(torch.device("cuda")) == (None if tflops is None else tflops * 1e12)
    assert peaks.peak_flops(torch.device("cpu")) is None
