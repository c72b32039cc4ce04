"""Whole findings, outcomes and reports: every number has its own name, and a check reports what it ran with."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mm_ldlm
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.gpu_check import __main__ as command
from mm_ldlm.extras.gpu_check import child, flops, kernels, models, report, task
from mm_ldlm.extras.gpu_check.outcome import Finding, Outcome, Setting
from mm_ldlm.extras.gpu_check.runner import run_checks
from mm_ldlm.models.mmdit import MMDiTConfig

# -- the command and its report ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_command_checks_and_reports_the_device_and_the_options_of_the_process(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    outcomes = [Outcome("flops", status, {}, "", 1.0) for status in ("passed", "passed", "left out")]  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "run_checks", lambda names, **given: asked.append((names, given)) or outcomes)
    monkeypatch.setattr(command.report, "write", lambda found, **given: asked.append((found, given)) or ("J", "T"))
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", device, "--only", "flops"])
    assert command.main() == 0
    out = Path("data/gpu_check")
    about = {"device": device, "out": out}
    assert asked[0] == (["flops"], {**about, "seconds": 1800.0, "show": command._show})
    assert asked[1] == (
        outcomes, {**about, "command": f"python -m mm_ldlm.extras.gpu_check --device {device} --only flops"}
    )  # fmt: skip
    assert capsys.readouterr().out == "2 passed, 1 left out\nwritten: J and T; append the second to docs/log.md\n"


def test_the_report_has_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(name="G", total_memory=3 * 2**30 + 2**29, major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: about.name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "nccl", SimpleNamespace(version=lambda: (2, 9)))
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    outcomes = [
        Outcome("flops", "passed", {"error": 0.5}, "", 2.5), Outcome("ranks", "failed", {"ranks": 2}, "Why.", 1.5)
    ]  # fmt: skip
    versions = {
        "mm_ldlm": mm_ldlm.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "system": platform.system(), "cuda": "99.1",
    }  # fmt: skip
    cpu = {"device": "CPU", "devices": 0, "memory_gib": None, "capability": None, "peak_tflops": None, "nccl": None}
    gpu = {"device": "G", "devices": 2, "memory_gib": 3.5, "capability": "8.6", "peak_tflops": None, "nccl": "2.9"}
    for device, machine, line in (("cpu", cpu, "CPU"), ("cuda", gpu, "2 × G, 3.5 GiB each")):
        paths = report.write(outcomes, device=device, command="the command", out=tmp_path / "a" / device)
        assert [path.relative_to(tmp_path / "a" / device).name for path in paths] == ["gpu_check.json", "gpu_check.md"]
        assert json.loads(paths[0].read_text()) == {
            "format_version": 1, "date": datetime.date.today().isoformat(), "command": "the command",
            "machine": versions | machine, "passed": False,
            "checks": [
                {"name": "flops", "status": "passed", "numbers": {"error": 0.5}, "reason": "", "seconds": 2.5},
                {"name": "ranks", "status": "failed", "numbers": {"ranks": 2}, "reason": "Why.", "seconds": 1.5},
            ],
        }  # fmt: skip
        assert f"`the command`; {line}, torch {torch.__version__}, CUDA 99.1, " in paths[1].read_text()


def test_on_a_gpu_no_check_is_left_out_and_an_outcome_has_its_seconds_and_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stating_child.py").write_text(
        "import json, os, sys\n"
        "print('to the output'); print('  to the errors', file=sys.stderr)\n"
        "if sys.argv[1] == 'flops': sys.exit(4)\n"
        "found = {'numbers': {'device': sys.argv[2]}, 'faults': [], 'left_out': ''}\n"
        "json.dump(found, open(os.path.join(sys.argv[3], 'finding.json'), 'w'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    shown: list[str] = []
    found = run_checks(
        ["compile", "flops"], device="cuda", out=tmp_path, seconds=60, show=shown.append, child="stating_child"
    )
    assert [(outcome.status, outcome.numbers) for outcome in found] == [("passed", {"device": "cuda"}), ("failed", {})]
    assert found[1].reason == (
        f"expected a finding, found exit code 4 (to the errors). Read {tmp_path / 'logs/flops.log'}."
    )
    assert all(outcome.seconds > 0.01 for outcome in found)
    assert shown == [str(outcome) for outcome in found]


def test_a_child_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(child, "die_with_parent", lambda: done.append("tied"))
    monkeypatch.setattr(child, "run", lambda name, setting: done.append(name) or Finding())
    child.main("flops", "cpu", str(tmp_path))
    assert done == ["tied", "flops"]
    monkeypatch.undo()
    for error, words in ((ValueError(), "ValueError: "), (OSError("  \n a\nb"), "OSError: a")):

        def raising(setting: Setting, error: Exception = error) -> Finding:
            raise error

        monkeypatch.setattr(child.CHECKS["flops"].__class__, "load", lambda self, check=raising: check)
        assert child.run("flops", Setting("cpu", tmp_path)).faults == (f"expected numbers, found {words}",)


# -- operations, models and kernels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"token_vectors": "encoder"}, {"direct_views": True}, {"cross_modal_blocks": 2}, {}]
)
def test_each_option_that_the_formula_does_not_cover_is_refused_by_itself(change: dict[str, Any]) -> None:
    config = MMDiTConfig(
        **{"dim": 32, "depth": 3, "heads": 2, "token_vectors": "random", "direct_views": False} | change
    )
    options: dict[str, Any] = {"examples": 1, "length": 1, "logits": 1, "heads": ("text",)}
    if not change:
        assert flops.forward_flops(config, task.TINY, **options) > 0
        return
    name, value = next(iter(change.items()))
    with pytest.raises(ConfigurationError, match=f"{name}={value!r}"):
        flops.forward_flops(config, task.TINY, **options)


def test_the_numbers_of_the_operations_are_those_that_were_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flops, "forward_flops", lambda *given, **more: 3 * 4096)
    monkeypatch.setattr(flops, "counted_flops", lambda *given, **more: (2 * 4096, 17))
    found = flops.flops(Setting("cpu", tmp_path))
    assert found.numbers == {"GFLOP per token": 9 / 1e9, "ratio to torch's counter": 1.5, "parameters": 17}
    assert found.faults == (
        "expected 8,192 operations (torch's counter), found 12,288 by formula. Correct forward_flops.",
        f"expected {flops.PARAMETERS_892M:,} parameters, found 17. Correct MMDIT_892M.",
    )


@pytest.mark.parametrize(("device", "size", "shape"), [
    ("cpu", {"dim": 16, "depth": 2}, task.TINY), ("cuda", {"dim": 128, "depth": 4}, models.LARGER)
])  # fmt: skip
def test_the_finding_of_the_models_has_their_largest_errors(
    device: str, size: dict[str, int], shape: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"latent_mlp": (2e-5, 0.0), "dit": (1e-5, 3e-4), "causal": (2e-4, 2e-4), "mmdit": (0.0, 2e-3)}
    asked: list[Any] = []

    def compare(setting: Setting, model: dict[str, Any], objective: str, shape: Any) -> tuple[float, float]:
        asked.append((setting.device, model, objective, shape))
        return errors[model["kind"]]

    monkeypatch.setattr(models, "MODELS", SimpleNamespace(known=list(errors)))
    monkeypatch.setattr(models, "partner", lambda model: f"of {model['kind']}")
    monkeypatch.setattr(models, "compare", compare)
    found = models.models(Setting(device, tmp_path))
    heads: dict[str, dict[str, int]] = {kind: {"heads": 2} for kind in errors} | {"latent_mlp": {}}
    assert asked == [(device, {"kind": kind, **size, **heads[kind]}, f"of {kind}", shape) for kind in errors]
    assert found.numbers == {
        "models": 4, "loss error": 2e-4, "gradient error": 2e-3, "loss tolerance": 1e-4, "gradient tolerance": 1e-3,
    }  # fmt: skip
    assert [fault.partition(". Run")[0] for fault in found.faults] == [
        f"{kind} with of {kind}: expected the losses within 0.0001 and the gradients within 0.001 of those on the CPU, "
        f"found {loss} and {gradient}"
        for kind, loss, gradient in (("causal", "0.0002", "0.0002"), ("mmdit", "0", "0.002"))
    ]


def test_models_are_compared_with_weights_that_are_not_those_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that start at zero would hide every error before them: no gradient would reach the blocks."""
    model = {"kind": "dit", "dim": 16, "depth": 1, "heads": 2}
    spec = task.spec(model, {"kind": "text_diffusion"}, device="cpu")
    with_noise = models.results(Setting("cpu", tmp_path), spec)[1]
    assert all(float(gradient.abs().max()) > 0 for name, gradient in with_noise.items() if "blocks" in name)
    monkeypatch.setattr(models, "perturb", lambda parts: None)
    without = models.results(Setting("cpu", tmp_path), spec)[1]
    assert without.keys() == with_noise.keys()
    assert any(float(gradient.abs().max()) == 0 for gradient in without.values())


def test_inputs_of_a_kernel_have_the_scale_that_is_asked_for() -> None:
    compared = kernels.Compared(Setting("cpu", Path()))
    one, two = compared.draw(2, (50, 40), dtype=torch.float16, scale=3.0)
    assert (one.dtype, one.shape) == (torch.float16, (50, 40))
    assert not torch.equal(one, two)
    assert float(one.float().std()) == pytest.approx(3.0, rel=0.1)
    assert float(compared.draw(1, (50, 40))[0].std()) == pytest.approx(1.0, rel=0.1)
