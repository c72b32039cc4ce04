"""Second cases of single parts: last batches, long lists, devices and types that the first cases do not have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from parts import ALONE
from test_importing import older
from torch import nn

from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.extras.foreign_checkpoints.exporting import export_checkpoint
from mm_ldlm.extras.foreign_checkpoints.importing import Given, import_checkpoint
from mm_ldlm.training import diagnostics, sanity
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import BatchConfig, PrecisionConfig
from mm_ldlm.training.diagnosis import Findings
from mm_ldlm.training.diagnostics import Diagnostics, underflow
from mm_ldlm.training.preflight import Check
from mm_ldlm.training.sanity import SanityConfig

CPU = torch.device("cpu")

# -- batches and diagnoses ---------------------------------------------------------------------------------------------


def test_the_last_batch_of_an_epoch_is_as_long_as_its_own_texts() -> None:
    """Three texts of 3 tokens move to the six of 7, of which four fill a batch: short ones may be left alone."""
    seen = set()
    for seed in range(20):
        plan = BatchPlan(
            np.array([3] * 3 + [7] * 6), BatchConfig(examples=4, length_multiple=4), seed=seed, max_length=8
        )  # fmt: skip
        *_, (rows, length) = plan.epoch(0)
        assert len(rows) == 1
        assert length == (4 if plan.lengths[rows].max() == 3 else 8)
        seen.add(length)
    assert seen == {4, 8}


def test_of_many_examples_that_are_not_finite_eight_are_named() -> None:
    found = Findings(
        rank=0, kind="a", examples={"latents": list(range(20, 40)), "images": [3]}, parameters=[]
    ).sentence()  # fmt: skip
    assert found == (
        "Rank 0, a step of kind a: the input is not finite: latents of examples [20, 21, 22, 23, 24, 25, 26, 27]; "
        "images of examples [3] contain NaN or Inf. Remove these examples."
    )


def test_the_peak_of_a_gpu_is_that_of_its_own_memory_and_begins_anew_with_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reset: list[Any] = []
    device = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda of: {device: 3 * 2**29}[of])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda of: 2**40)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    watch = Diagnostics(1, nn.Linear(1, 1), compiled=False, scaler=None, device=device, writes=False)  # type: ignore[arg-type]
    watch._numbers = {"grad_norm/x": torch.tensor(2.0)}
    watch.after_update(1, applied=False)
    assert watch.take() == {"grad_norm/x": 2.0, "memory_peak_gib": 1.5}
    watch.new_epoch()
    assert reset == [device]
    Diagnostics(1, nn.Linear(1, 1), compiled=False, scaler=None, device=CPU).new_epoch()  # type: ignore[arg-type]
    assert reset == [device]


def test_attention_logits_are_computed_in_float32() -> None:
    """A sum of 301 ones: bf16 has no number between 300 and 302."""
    watch = Diagnostics(1, nn.Linear(1, 1), compiled=False, scaler=None, device=CPU)  # type: ignore[arg-type]
    ones = torch.ones(1, 1, 1, 301, dtype=torch.bfloat16)
    watch._attention("blocks.0.attention")(None, (ones, ones, ones, None), ones)
    assert float(watch._seen["attention_logit_max/block0"]) == pytest.approx(301 / 301**0.5, rel=1e-5)


def test_the_zeros_of_vectors_and_single_numbers_are_those_of_parts_that_took_no_part() -> None:
    """Each entry of a vector is a row of its own, as that of a bias of the tokens."""
    assert float(underflow([torch.tensor([0.0, 1.0, 0.0])])) == 0.0
    assert float(underflow([torch.tensor(0.0), torch.tensor([[0.0, 1.0]])])) == 0.5
    assert float(underflow([torch.tensor(2.0), torch.zeros(2, 2, 2) + torch.tensor([0.0, 1.0])])) == 4 / 9


def test_the_underflow_of_a_step_is_that_of_all_parts() -> None:
    """Two of four entries of the first part are lost, and none of twelve of the last."""
    root: Any = nn.Module()
    root.first, root.last = nn.Linear(4, 1, bias=False), nn.Linear(12, 1, bias=False)
    root.first.weight.grad = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    root.last.weight.grad = torch.ones(1, 12)
    parts = [("first.weight", SimpleNamespace(name="a"), root.first.weight),
             ("last.weight", SimpleNamespace(name="b"), root.last.weight)]  # fmt: skip
    for order in (parts, parts[::-1]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(diagnostics, "tagged_parameters", lambda root, order=order: order)
            watch = Diagnostics(
                1, root, compiled=False, scaler=SimpleNamespace(get_scale=lambda: 4.0), device=CPU
            )  # fmt: skip
            watch.before_update()
            watch.after_update(1, applied=False)
        found = watch.take()
        assert (found["fp16_underflow"], found["fp16_scale"]) == (2 / 16, 4.0)
        assert (found["grad_zeros/a"], found["grad_zeros/b"]) == (0.5, 0.0)
        assert found["grad_norm/b"] == pytest.approx(12**0.5 / 4)


def test_only_the_blocks_of_a_model_are_reported_by_their_numbers() -> None:
    assert diagnostics.part_of("model.blocks.3", "backbone") == "backbone"
    assert diagnostics.part_of("objective.blocks.3.weight", "objective") == "objective"
    assert diagnostics.part_of("model.other_blocks.3.weight.x", "tag") == "tag"
    assert diagnostics.part_of("model.blocks.12.streams.0.a.b.c", "tag") == "block12.stream0"


# -- sanity checks -----------------------------------------------------------------------------------------------------


class Root(nn.Module):
    """A model with two blocks; its loss is given."""

    def __init__(self, loss: Any, **objective: Any) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.objective = SimpleNamespace(**{"kinds": ("a",), "idle_parts": frozenset(), **objective})
        self.loss = loss


def parts_of(root: Any, *, autocast: Any = "fp32") -> Any:
    return SimpleNamespace(
        stepper=SimpleNamespace(root=root, objective=root.objective, scaler=None,
                                total=lambda batch, *, kind, draw, step: root.loss(root, kind)),
        process=ALONE, config=SimpleNamespace(precision=PrecisionConfig(autocast=autocast)),
    )  # fmt: skip


def test_modules_in_evaluation_mode_are_counted_and_their_kinds_named_once_in_order() -> None:
    parts = parts_of(Root(None))
    assert sanity.train_mode(parts) == Check("train mode", "5 modules in training mode")
    parts.stepper.root.model.eval()
    words = "4 modules are in evaluation mode: Linear, Module, ModuleList"
    assert sanity.train_mode(parts) == Check("train mode", words, "call .train()")


def test_of_many_tensors_elsewhere_four_are_named() -> None:
    parts = parts_of(Root(None))
    parts.ema = SimpleNamespace(values={})
    batch: Any = SimpleNamespace(tensors={f"t{n}": torch.zeros(1, device="meta") for n in range(6)})
    words = ", ".join(f"batch t{n} on meta" for n in range(4))
    assert sanity.placement(parts, batch) == Check("placement", f"6 of them elsewhere: {words}", "move them to cpu")


@pytest.mark.parametrize("autocast", ["bf16", "fp32"])
def test_a_layer_that_leaves_the_configured_type_is_found(autocast: str) -> None:
    """One block computes in bf16 and the other in float32."""

    def loss(root: Any, kind: str) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            root.model.blocks[0](torch.ones(1, 2))
        return root.model.blocks[1](torch.ones(1, 2)).sum()

    found = sanity.precision(parts_of(Root(loss), autocast=autocast), None)  # type: ignore[arg-type]
    want = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}[autocast]
    assert found == Check(
        "precision", f"{autocast}: blocks compute in bfloat16, float32, parameters in float32",
        f"blocks should compute in {want} and parameters be float32",
    )  # fmt: skip


def test_every_first_loss_that_is_wrong_has_its_remedy() -> None:
    """That of kind a and name x is right: it is a mean over its count."""
    values = {"a": {"x": (12.0, 3.0), "y": (9.0, 1.0)}, "b": {"x": (1.0, 1.0), "other": (0.0, 1.0)}}

    def losses(batch: Any, *, kind: str, draw: int, step: int) -> Any:
        assert (draw, step, torch.is_grad_enabled()) == (0, 0, False)
        return {name: tuple(map(torch.tensor, pair)) for name, pair in values[kind].items()}

    root = Root(None, kinds=("a", "b"), expected_first_loss=lambda: {"x": 4.0, "y": 3.0})
    parts = parts_of(root)
    parts.stepper.losses = losses
    found = sanity.first_losses(parts, None, SanityConfig(), fresh=True)  # type: ignore[arg-type]
    remedy = "the head must start at 0, and ids that cannot occur be excluded"
    assert found == Check(
        "first loss", "a/x 4.0000, expected 4.0000; a/y 9.0000, expected 3.0000; b/x 1.0000, expected 4.0000",
        f"a/y: {remedy}; b/x: {remedy}",
    )  # fmt: skip


def test_gradients_are_read_in_the_first_eight_steps_and_in_every_sixteenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not finite in the 17th step is found, and the remedy has the fraction of the parameters."""
    monkeypatch.setattr(sanity, "tagged_parameters", lambda root: [
        (name, SimpleNamespace(name="tag", occasional=False), p) for name, p in root.named_parameters()
    ])  # fmt: skip
    for bad, ok in ((17, False), (18, True), (8, False), (9, True)):
        steps: list[int] = []

        def loss(root: Any, kind: str, steps: list[int] = steps, bad: int = bad) -> torch.Tensor:
            steps.append(1)
            factor = torch.inf if len(steps) == bad else 1.0
            return sum((p * factor).sum() for p in root.parameters()) * 0.0 + torch.tensor(4.0)

        root = Root(loss)
        parts = parts_of(root)
        parts.optimization = SimpleNamespace(
            clip=lambda norm: None, norm=lambda: torch.tensor(1.0), step=lambda: None, tensors=dict,
            drop_gradients=lambda root=root: root.zero_grad(),
        )  # fmt: skip
        batch: Any = SimpleNamespace(examples_B=range(3))
        found = {check.name: check for check in sanity.learning(parts, batch, SanityConfig(max_steps=20, fall=0.25))}
        assert found["finite gradients"].ok is ok, bad
        assert found["overfit one batch"] == Check(
            "overfit one batch", "loss 4.000 → 4.000 in 20 steps on one batch of 3 examples",
            "it should fall below 0.25 of its start: check the learning rate, then the objective",
        )  # fmt: skip
        names = [name for name, _ in root.named_parameters()]
        listed = f"{', '.join(names)} has not moved"
        assert found["movement"] == Check("movement", listed, "is it in an optimizer group?")


# -- exports -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imported")
    import_checkpoint(older(root / "older"), root / "runs" / "mine", Given())
    return root / "runs" / "mine"


def files(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_run_its_checkpoint_and_the_folder_of_runs_export_the_same_files(imported: Path, tmp_path: Path) -> None:
    path = imported / "checkpoints" / "step-00090000"
    export_checkpoint(imported, tmp_path / "run")
    for name, place in (("checkpoint", path), ("checkpoints", imported / "checkpoints"), ("runs", imported.parent)):
        assert export_checkpoint(place, tmp_path / name) == path, name
        found, expected = files(tmp_path / name), files(tmp_path / "run")
        for each in (found, expected):
            each.pop("model.pt")  # an archive with the name of its folder
        assert found == expected, name


def test_every_folder_of_a_checkpoint_is_exported(imported: Path, tmp_path: Path) -> None:
    source = imported / "checkpoints" / "step-00090000"
    (tmp_path / "normaliser" / "deep").mkdir(parents=True)
    (tmp_path / "normaliser" / "deep" / "a.json").write_text("[1]")
    run = tmp_path / "run"
    tensors = {"model.safetensors": folder.tensors(source, "model.safetensors")}
    documents = {"training_state.json": folder.document(source, "training_state.json")}
    parts = {"tokenizer": source / "tokenizer", "normaliser": tmp_path / "normaliser"}
    folder.write(run / "checkpoints", 3, folder.Contents(tensors, documents, parts))
    shutil.copy(imported / "config.json", run / "config.json")
    export_checkpoint(run, tmp_path / "out")
    found = files(tmp_path / "out")
    assert found["normaliser/deep/a.json"] == b"[1]"
    for file in (source / "tokenizer").iterdir():
        assert found[f"tokenizer/{file.name}"] == file.read_bytes()
    state = json.loads(found["training_state.json"])
    assert state["step"] == 90_000, "the counters are those of the state"
    (run / "config.json").write_text("{}")
    with pytest.raises(MMLDLMError):
        export_checkpoint(run, tmp_path / "other")
    assert not (tmp_path / "other").exists()
